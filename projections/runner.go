package projections

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"noxmesh/events"
)

// Runner keeps a [Mesh] and an [Index] up to date from the broker.
type Runner struct {
	// Dir is where snapshots are kept; none are if it is empty.
	Dir    string
	Logger zerolog.Logger

	js  jetstream.JetStream
	log *events.Log

	mu      sync.RWMutex
	live    *folds
	changed chan struct{} // closed and replaced at each change
	ready   chan struct{} // closed once both streams were read to their end
	settled chan struct{} // closed once the state is of this program's version

	// swapWhen, if set, is what a rebuild waits for before it swaps. Tests look at
	// what is shown until then.
	swapWhen <-chan struct{}

	// What streams the state is of, known once Run has begun.
	created struct{ events, heartbeats time.Time }
}

// folds are what is kept of the streams.
type folds struct {
	mesh    *Mesh
	index   *Index
	eventID string // of the last event
}

func newFolds() *folds { return &folds{mesh: NewMesh(), index: NewIndex()} }

// apply folds one event. Strict refuses what this program does not know.
func (f *folds) apply(rec events.Record, strict bool) error {
	if _, err := rec.Fact(); strict && errors.Is(err, events.ErrUnknownType) {
		return fmt.Errorf("event %d: %w: a newer nox-mesh wrote it, and what this one made of the log without it would be wrong: start that version", rec.Seq, err)
	}
	if err := errors.Join(f.mesh.ApplyEvent(rec), f.index.Apply(rec)); err != nil {
		return err
	}
	f.eventID = rec.Event.ID
	return nil
}

// NewRunner makes a runner; nothing is read before [Runner.Run].
func NewRunner(js jetstream.JetStream, log *events.Log) *Runner {
	return &Runner{
		Logger: zerolog.Nop(), js: js, log: log, live: newFolds(),
		changed: make(chan struct{}), ready: make(chan struct{}), settled: make(chan struct{}),
	}
}

// Run reads both streams until ctx ends, or until something is wrong with the
// log itself. It goes on from the snapshot, if there is one of these streams. It
// is called once.
func (r *Runner) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	base, version, err := r.restore(ctx)
	if err != nil {
		return err
	}
	anew := base == nil
	if !anew {
		r.mu.Lock()
		r.live = base
		r.mu.Unlock()
	}
	f := r.follow(ctx, cancel, r.live, func(name string, fn func(f *folds) error) error {
		r.mu.Lock()
		defer r.mu.Unlock()
		err := fn(r.live)
		close(r.changed)
		r.changed = make(chan struct{})
		return err
	})
	f.strict = func() bool { return anew && !closed(r.ready) }
	f.caughtUp = func() {
		close(r.ready)
		if anew || version == Version {
			close(r.settled)
		}
	}
	f.start()
	var parts sync.WaitGroup
	if !anew && version != Version {
		parts.Go(func() {
			if err := r.rebuild(ctx, version); err != nil && ctx.Err() == nil {
				cancel(fmt.Errorf("folding the log anew: %w", err))
			}
		})
	}
	if r.Dir != "" {
		parts.Go(func() { r.keepSnapshots(ctx) })
	}
	f.readers.Wait()
	parts.Wait()
	if r.Dir != "" && closed(r.ready) && closed(r.settled) {
		if err := r.snapshot(); err != nil {
			r.Logger.Warn().Err(err).Msg("the next start takes longer")
		}
	}
	return context.Cause(ctx)
}

func closed(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

// follower reads both streams into some folds.
type follower struct {
	r        *Runner
	ctx      context.Context
	cancel   context.CancelCauseFunc
	from     *folds
	update   func(stream string, fn func(*folds) error) error
	strict   func() bool
	caughtUp func() // once both streams were read to their end
	readers  sync.WaitGroup
}

func (r *Runner) follow(ctx context.Context, cancel context.CancelCauseFunc, from *folds, update func(string, func(*folds) error) error) *follower {
	return &follower{r: r, ctx: ctx, cancel: cancel, from: from, update: update, strict: func() bool { return true }, caughtUp: func() {}}
}

func (f *follower) start() {
	var behind sync.WaitGroup
	behind.Add(2)
	go func() { behind.Wait(); f.caughtUp() }()
	read := func(stream string, last uint64, do func(opts events.ReadOptions) error) {
		f.readers.Go(func() {
			var once sync.Once
			opts := events.ReadOptions{From: last + 1, Follow: true, CaughtUp: func() { once.Do(behind.Done) }}
			if err := do(opts); err != nil && f.ctx.Err() == nil {
				f.cancel(fmt.Errorf("reading %s: %w", stream, err))
			}
		})
	}
	event, beat := f.from.mesh.EventSeq, f.from.mesh.HeartbeatSeq
	read(events.StreamEvents, event, func(opts events.ReadOptions) error {
		return f.r.log.ReadBatches(f.ctx, opts, func(batch []events.Record) error {
			strict := f.strict()
			return f.update(events.StreamEvents, func(to *folds) error {
				for _, rec := range batch {
					if err := to.apply(rec, strict); err != nil {
						return err
					}
				}
				return nil
			})
		})
	})
	read(events.StreamHeartbeats, beat, func(opts events.ReadOptions) error {
		return events.ReadBatches(f.ctx, f.r.js, events.StreamHeartbeats, opts, func(batch []events.Message) error {
			return f.update(events.StreamHeartbeats, func(to *folds) error {
				for _, msg := range batch {
					to.mesh.ApplyHeartbeat(msg)
				}
				return nil
			})
		})
	})
}

// rebuild folds both streams from their beginning, beside the live state, which
// another version of the program made of them, and puts the result in its place.
func (r *Runner) rebuild(ctx context.Context, version int) error {
	r.Logger.Info().Int("from", version).Int("to", Version).Msg("the log is folded anew by this version; until then what the one before made of it is shown, and rollouts wait")
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var (
		mu     sync.Mutex // of fresh
		fresh  = newFolds()
		behind = true
	)
	swap := func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if behind || closed(r.settled) || fresh.mesh.EventSeq < r.live.mesh.EventSeq || fresh.mesh.HeartbeatSeq < r.live.mesh.HeartbeatSeq {
			return
		}
		r.live = fresh
		close(r.changed)
		r.changed = make(chan struct{})
		close(r.settled)
		r.Logger.Info().Uint64("events", fresh.mesh.EventSeq).Msg("the log is folded anew")
		cancel(nil)
	}
	f := r.follow(ctx, cancel, newFolds(), func(_ string, fn func(*folds) error) error {
		mu.Lock()
		defer mu.Unlock()
		if closed(r.settled) {
			return nil // fresh is live by now, and not ours any more
		}
		err := fn(fresh)
		if err == nil {
			swap()
		}
		return err
	})
	f.caughtUp = func() {
		if r.swapWhen != nil {
			select {
			case <-r.swapWhen:
			case <-ctx.Done():
				return
			}
		}
		mu.Lock()
		defer mu.Unlock()
		behind = false
		swap()
	}
	f.start()
	f.readers.Wait()
	if closed(r.settled) {
		return nil
	}
	return context.Cause(ctx)
}

// Ready is closed once all that was in the streams at the start is folded.
func (r *Runner) Ready() <-chan struct{} { return r.ready }

// Settled is closed once what is shown is what this version of the program makes
// of the log, which is when it is ready but for the first start of a new version.
// Nothing is to be decided on the state before.
func (r *Runner) Settled() <-chan struct{} { return r.settled }

// View hands out the state for reading; fn must not keep any of it.
func (r *Runner) View(fn func(*Mesh)) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	fn(r.live.mesh)
}

// Index hands out the index of EVENTS for reading; fn must not keep any of it. It
// is as far as the state's events are.
func (r *Runner) Index(fn func(*Index)) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	fn(r.live.index)
}

// TakeTouched gives what was touched since it was called last. It is for one
// caller.
func (r *Runner) TakeTouched() Touched {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.live.mesh.TakeTouched()
}

// Changed gives a channel that is closed at the next change. Ask for it before
// looking at the state.
func (r *Runner) Changed() <-chan struct{} {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.changed
}

// WaitEvent waits until the event with that sequence is folded.
func (r *Runner) WaitEvent(ctx context.Context, seq uint64) error {
	for {
		changed := r.Changed()
		var at uint64
		r.View(func(m *Mesh) { at = m.EventSeq })
		if at >= seq {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("waiting for event %d to be read (at %d): %w", seq, at, ctx.Err())
		}
	}
}
