package projections

import (
	"context"
	"fmt"
	"sync"

	"github.com/nats-io/nats.go/jetstream"

	"noxmesh/events"
)

// Runner keeps a [Mesh] up to date from the broker.
type Runner struct {
	js  jetstream.JetStream
	log *events.Log

	mu      sync.RWMutex
	mesh    *Mesh
	changed chan struct{} // closed and replaced at each change
	ready   chan struct{} // closed once both streams were read to their end
}

// NewRunner makes a runner; nothing is read before [Runner.Run].
func NewRunner(js jetstream.JetStream, log *events.Log) *Runner {
	r := &Runner{js: js, log: log, mesh: NewMesh(), changed: make(chan struct{}), ready: make(chan struct{})}
	r.mesh.Track()
	return r
}

// Run reads both streams until ctx ends, or until something is wrong with the
// log itself. It is called once.
func (r *Runner) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var readers, behind sync.WaitGroup
	behind.Add(2)
	go func() { behind.Wait(); close(r.ready) }()
	read := func(name string, f func(opts events.ReadOptions) error) {
		readers.Go(func() {
			var once sync.Once
			opts := events.ReadOptions{Follow: true, CaughtUp: func() { once.Do(behind.Done) }}
			if err := f(opts); err != nil && ctx.Err() == nil {
				cancel(fmt.Errorf("reading %s: %w", name, err))
			}
		})
	}
	read(events.StreamEvents, func(opts events.ReadOptions) error {
		return r.log.Read(ctx, opts, func(rec events.Record) error {
			return r.update(func(m *Mesh) error { return m.ApplyEvent(rec) })
		})
	})
	read(events.StreamHeartbeats, func(opts events.ReadOptions) error {
		return events.ReadStream(ctx, r.js, events.StreamHeartbeats, opts, func(msg events.Message) error {
			return r.update(func(m *Mesh) error { m.ApplyHeartbeat(msg); return nil })
		})
	})
	readers.Wait()
	return context.Cause(ctx)
}

func (r *Runner) update(fn func(*Mesh) error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := fn(r.mesh); err != nil {
		return err
	}
	close(r.changed)
	r.changed = make(chan struct{})
	return nil
}

// Ready is closed once all that was in the streams at the start is folded.
func (r *Runner) Ready() <-chan struct{} { return r.ready }

// View hands out the state for reading; fn must not keep any of it.
func (r *Runner) View(fn func(*Mesh)) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	fn(r.mesh)
}

// TakeTouched gives what was touched since it was called last. It is for one
// caller.
func (r *Runner) TakeTouched() Touched {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mesh.TakeTouched()
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
