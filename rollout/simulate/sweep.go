package simulate

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
)

// Sweep plays every setting with every seed from first on, on all processors.
// progress, if given, hears how many of the runs are done. It gives a row for
// each setting, and for each the first run that broke a law or did not end.
func Sweep(ctx context.Context, settings []Setting, first uint64, seeds int, opts Options, progress func(done, all int)) ([]Row, []Result, error) {
	results := make([][]Result, len(settings))
	for i := range results {
		results[i] = make([]Result, seeds)
	}
	all := len(settings) * seeds
	var next, done atomic.Int64
	var workers sync.WaitGroup
	var mu sync.Mutex
	for range min(runtime.GOMAXPROCS(0), all) {
		workers.Go(func() {
			for ctx.Err() == nil {
				i := int(next.Add(1)) - 1
				if i >= all {
					return
				}
				s, k := i/seeds, i%seeds
				results[s][k] = Run(settings[s], first+uint64(k), opts)
				if progress != nil {
					mu.Lock()
					progress(int(done.Add(1)), all)
					mu.Unlock()
				}
			}
		})
	}
	workers.Wait()
	if err := ctx.Err(); err != nil {
		return nil, nil, err
	}
	var rows []Row
	var broken []Result
	for i, s := range settings {
		rows = append(rows, RowOf(s, results[i], opts))
		for _, r := range results[i] {
			if r.Err != nil {
				broken = append(broken, r)
				break
			}
		}
	}
	return rows, broken, nil
}

// IsLaw says whether a run failed by a broken law, which is worth shortening.
func (r Result) IsLaw() bool { return errors.Is(r.Err, ErrLaw) }
