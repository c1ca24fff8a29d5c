package eventstest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"noxmesh/events"
)

// Watcher reads a log, from where it was asked to.
type Watcher struct {
	// Timeout bounds one [Expect] or [ExpectExactly].
	Timeout time.Duration

	log     *events.Log
	opts    events.ReadOptions
	records chan events.Record
	ended   chan error
}

// NewWatcher reads a log until the test ends: from opts.From on, only what is on
// opts.Subjects if there are any.
func NewWatcher(t testing.TB, log *events.Log, opts events.ReadOptions) *Watcher {
	t.Helper()
	w := &Watcher{Timeout: DefaultTimeout, log: log, opts: opts, records: make(chan events.Record), ended: make(chan error, 1)}
	opts.Follow = true
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.ended <- log.Read(ctx, opts, func(rec events.Record) error {
			select {
			case w.records <- rec:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
	}()
	t.Cleanup(func() { cancel(); <-done })
	return w
}

// Filter is an event that is waited for.
type Filter struct {
	what  string
	match func(events.Record) error // nil: it is the one
}

// errOther: the event is of another type.
var errOther = errors.New("")

// Type waits for an event of one type.
func Type[F events.Fact]() Filter { return Match(func(F) error { return nil }) }

// Match waits for an event of one type that fn has no error for. The error says
// what is wrong with one that is not it.
func Match[F events.Fact](fn func(F) error) Filter {
	var none F
	return Filter{what: none.EventType(), match: func(rec events.Record) error {
		fact, err := rec.Event.Fact()
		if errors.Is(err, events.ErrUnknownType) {
			return errOther
		} else if err != nil {
			return err
		}
		f, ok := fact.(F)
		if !ok {
			return errOther
		}
		return fn(f)
	}}
}

// About waits for an event that another filter waits for, about one aggregate: a
// node, a rollout, a release.
func About(subject string, f Filter) Filter {
	return Filter{what: f.what + " about " + subject, match: func(rec events.Record) error {
		if rec.Event.Subject != subject {
			return errOther
		}
		return f.match(rec)
	}}
}

// Expect waits until events have come that the filters wait for, in this order.
// Others may come between them.
func Expect(w *Watcher, filters ...Filter) error { return w.expect(filters, false) }

// ExpectExactly waits until events have come that the filters wait for, in this
// order, with no other between them, before them or behind the last one. What comes
// after it has returned is for the next call.
func ExpectExactly(w *Watcher, filters ...Filter) error { return w.expect(filters, true) }

func (w *Watcher) expect(filters []Filter, exactly bool) error {
	deadline := time.NewTimer(w.Timeout)
	defer deadline.Stop()
	var seen []string
	fail := func(i int, format string, args ...any) error {
		text := fmt.Sprintf(format, args...)
		if i < len(filters) {
			text = fmt.Sprintf("waiting for %s (%d of %d): %s", filters[i].what, i+1, len(filters), text)
		}
		if len(seen) == 0 {
			return errors.New(text + "; no event was seen")
		}
		return fmt.Errorf("%s; seen:\n%s", text, strings.Join(seen, "\n"))
	}
	for i := 0; i < len(filters); {
		select {
		case rec := <-w.records:
			w.opts.From = rec.Seq + 1
			err := filters[i].match(rec)
			line := fmt.Sprintf("%6d  %s  %s  %s", rec.Seq, rec.Event.Type, rec.Event.Subject, rec.Event.Data)
			switch {
			case err == nil:
				line += fmt.Sprintf("  <- %d of %d", i+1, len(filters))
				i++
			case !errors.Is(err, errOther):
				line += "  <- " + err.Error()
			}
			seen = append(seen, line)
			if err != nil && exactly {
				return fail(i, "another event came")
			}
		case err := <-w.ended:
			w.ended <- err
			return fail(i, "the log ended: %v", err)
		case <-deadline.C:
			return fail(i, "it did not come within %s", w.Timeout)
		}
	}
	if !exactly {
		return nil
	}
	return w.nothingMore(func(rec events.Record) error {
		seen = append(seen, fmt.Sprintf("%6d  %s  %s  %s  <- one too many", rec.Seq, rec.Event.Type, rec.Event.Subject, rec.Event.Data))
		return fail(len(filters), "more came than was waited for")
	})
}

// nothingMore looks at what is in the log now behind what was seen.
func (w *Watcher) nothingMore(fail func(events.Record) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), w.Timeout)
	defer cancel()
	return w.log.Read(ctx, events.ReadOptions{From: w.opts.From, Subjects: w.opts.Subjects}, fail)
}
