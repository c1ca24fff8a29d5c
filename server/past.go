package server

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"noxmesh/events"
	"noxmesh/projections"
)

// Past says which moment a view is of, and what it rests on.
type Past struct {
	At time.Time `json:"at"`
	// EventSeq and HeartbeatSeq are the last ones of then.
	EventSeq     uint64 `json:"event_seq"`
	HeartbeatSeq uint64 `json:"heartbeat_seq"`
	// Notes say what the view cannot know any more.
	Notes []string `json:"notes,omitempty"`
}

// pastMesh is the state at a moment. Nobody changes it.
type pastMesh struct {
	Past
	mesh *projections.Mesh
}

// pastKeeper folds both streams up to a moment, one moment at a time, and keeps
// the last ones that were asked for: whoever looks at a moment looks at several
// things of it.
type pastKeeper struct {
	once    sync.Once
	turn    chan struct{}
	mu      sync.Mutex
	moments []*pastMesh
}

const (
	pastKept = 2
	// pastWait bounds the wait for somebody else's replay.
	pastWait = 20 * time.Second
	// pastSlack is how far from its place in the log the time of an event may be:
	// clocks of servers differ, and events are stamped before they are stored.
	pastSlack = time.Minute
)

var errPastBusy = fmt.Errorf("another moment is being replayed: %w", errBusy)

// past gives the state at a moment.
func (a *api) past(ctx context.Context, at time.Time) (*pastMesh, error) {
	at = at.UTC()
	now := time.Now()
	if at.After(now) {
		return nil, fmt.Errorf("%s is in the future: the log says what was", at.Format(time.RFC3339))
	}
	k := &a.moments
	k.once.Do(func() { k.turn = make(chan struct{}, 1) })
	wait, cancel := context.WithTimeout(ctx, pastWait)
	defer cancel()
	select {
	case k.turn <- struct{}{}:
		defer func() { <-k.turn }()
	case <-wait.Done():
		return nil, errPastBusy
	}
	if p := k.kept(at); p != nil {
		return p, nil
	}
	p, err := a.replayTo(ctx, at)
	if err != nil {
		return nil, fmt.Errorf("replaying the log up to %s: %w", at.Format(time.RFC3339), err)
	}
	if now.Sub(at) > 2*pastSlack { // nothing is written into it any more
		k.keep(p)
	}
	return p, nil
}

func (k *pastKeeper) kept(at time.Time) *pastMesh {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, p := range k.moments {
		if p.At.Equal(at) {
			return p
		}
	}
	return nil
}

func (k *pastKeeper) keep(p *pastMesh) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.moments = append(k.moments, p)
	if len(k.moments) > pastKept {
		k.moments = slices.Clone(k.moments[1:])
	}
}

var errReached = errors.New("the moment is reached")

// replayTo folds both streams up to a moment. The state of a moment is what the
// log has up to its last event that is no later, by the clock of the mesh or of
// the broker. Clocks differ and may once have been wrong, so reading goes on until
// an event is later than that by more than a minute, by both.
func (a *api) replayTo(ctx context.Context, at time.Time) (*pastMesh, error) {
	p := &pastMesh{Past: Past{At: at}, mesh: projections.NewMesh()}
	var held []events.Record // later than the moment, unless one follows that is not
	err := a.log.Read(ctx, events.ReadOptions{}, func(rec events.Record) error {
		later := func(than time.Time) bool { return rec.Event.Time.After(than) && rec.Stored.After(than) }
		held = append(held, rec)
		switch {
		case later(at.Add(pastSlack)):
			return errReached
		case later(at):
			return nil
		}
		for _, rec := range held {
			if err := p.mesh.ApplyEvent(rec); err != nil {
				return err
			}
		}
		held = held[:0]
		return nil
	})
	if err != nil && !errors.Is(err, errReached) {
		return nil, err
	}
	var first events.Message
	err = events.ReadStream(ctx, a.js, events.StreamHeartbeats, events.ReadOptions{}, func(m events.Message) error {
		if first.Seq == 0 {
			first = m
		}
		if m.Stored.After(at) {
			return errReached
		}
		p.mesh.ApplyHeartbeat(m)
		return nil
	})
	if err != nil && !errors.Is(err, errReached) {
		return nil, err
	}
	p.EventSeq, p.HeartbeatSeq = p.mesh.EventSeq, p.mesh.HeartbeatSeq
	switch {
	case first.Seq <= 1:
	case p.HeartbeatSeq == 0:
		p.Notes = append(p.Notes, "no heartbeat of then is left: what a node ran is what it had confirmed last")
	default:
		p.Notes = append(p.Notes, fmt.Sprintf("heartbeats from before %s have aged out: a node that was heard before that only is shown as it had confirmed last", first.Stored.Format(time.RFC3339)))
	}
	return p, nil
}

// state gives the state of a moment, or of now if none is given.
func (a *api) state(ctx context.Context, at *time.Time, fn func(m *projections.Mesh, now time.Time)) (*Past, error) {
	if at == nil {
		a.runner.View(func(m *projections.Mesh) { fn(m, time.Now()) })
		return nil, nil
	}
	p, err := a.past(ctx, *at)
	if err != nil {
		return nil, err
	}
	fn(p.mesh, p.At)
	return &p.Past, nil
}
