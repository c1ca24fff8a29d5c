package lab

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// WaitFor asks again and again until ask gives no error. After the time within,
// or at the end of ctx, its error names what was waited for and the last
// answer.
func WaitFor(ctx context.Context, what string, within time.Duration, ask func(ctx context.Context) error) error {
	outer := ctx
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	last := errors.New("never asked")
	for {
		err := ask(ctx)
		if err == nil {
			return nil
		}
		if ctx.Err() == nil {
			last = err // and not one that only says that time is up
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			if err := context.Cause(outer); err != nil {
				return fmt.Errorf("waiting until %s: %w; last: %w", what, err, last)
			}
			return fmt.Errorf("waited %s in vain until %s: %w", within, what, last)
		}
	}
}
