package events

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"
)

// Record is an event with its place in the log.
type Record struct {
	Seq   uint64
	Event Event
	// Stored is when the broker stored it, by its clock; zero if it was not read
	// from the log.
	Stored time.Time

	fact Fact // of Event, if it is decoded already
}

// Fact decodes the event's data, see [Event.Fact]. Records that were read from
// the log have it decoded already; it is shared, and not to be changed.
func (r Record) Fact() (Fact, error) {
	if r.fact != nil {
		return r.fact, nil
	}
	return r.Event.Fact()
}

// decodeRecord reads a message of EVENTS.
func decodeRecord(m Message) (Record, error) {
	if e, ok := canonical(m.Data); ok {
		if f, err := e.Fact(); err == nil {
			return Record{Seq: m.Seq, Event: e, Stored: m.Stored, fact: f}, nil
		}
	}
	e, err := decode(m.Data)
	if err != nil {
		return Record{}, fmt.Errorf("event %d on %s: %w", m.Seq, m.Subject, err)
	}
	r := Record{Seq: m.Seq, Event: e, Stored: m.Stored}
	if f, err := e.Fact(); err == nil {
		r.fact = f
	} else if !errors.Is(err, ErrUnknownType) {
		return Record{}, fmt.Errorf("event %d on %s: %w", m.Seq, m.Subject, err)
	}
	return r, nil
}

// Read hands over events in order, as [ReadStream] hands over messages. An
// event that does not decode ends it with an error: only the mesh writes
// EVENTS, so that is damage and not input.
func (l *Log) Read(ctx context.Context, opts ReadOptions, fn func(Record) error) error {
	return l.ReadBatches(ctx, opts, func(batch []Record) error {
		for _, rec := range batch {
			if err := fn(rec); err != nil {
				return err
			}
		}
		return nil
	})
}

// ReadBatches is [Log.Read] with the events in batches, see [ReadBatches].
// Several batches are decoded at a time, while the ones before them are worked on.
func (l *Log) ReadBatches(ctx context.Context, opts ReadOptions, fn func([]Record) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	type result struct {
		records []Record
		err     error
		caught  bool // nothing but the mark that all was handed over
	}
	// What is being decoded, in order.
	queue := make(chan chan result, 2*runtime.GOMAXPROCS(0))
	enqueue := func() (chan result, error) {
		out := make(chan result, 1)
		select {
		case queue <- out:
			return out, nil
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	read := opts
	if opts.CaughtUp != nil {
		read.CaughtUp = func() {
			if out, err := enqueue(); err == nil {
				out <- result{caught: true}
			}
		}
	}
	end := make(chan error, 1)
	go func() {
		defer close(queue)
		end <- ReadBatches(ctx, l.js, StreamEvents, read, func(batch []Message) error {
			out, err := enqueue()
			if err != nil {
				return err
			}
			go func() {
				records := make([]Record, 0, len(batch))
				for _, m := range batch {
					rec, err := decodeRecord(m)
					if err != nil {
						out <- result{records: records, err: err}
						return
					}
					records = append(records, rec)
				}
				out <- result{records: records}
			}()
			return nil
		})
	}()
	for out := range queue {
		r := <-out
		if r.caught {
			opts.CaughtUp()
			continue
		}
		if len(r.records) > 0 {
			if err := fn(r.records); err != nil {
				r.err = err
			}
		}
		if r.err != nil {
			cancel(r.err)
			for range queue { // until the reader is gone
			}
			return r.err
		}
	}
	return <-end
}
