package server

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"noxmesh/events"
	"noxmesh/projections"
	"noxmesh/rollout"
)

// backtest replays a recorded rollout under another policy. It reads both
// streams once, in the order of time, and writes nothing.
func (a *api) backtest(ctx context.Context, _ caller, q BacktestRequest) (*rollout.BacktestResult, error) {
	current, err := a.status(q.ID)
	if err != nil {
		return nil, err
	}
	policy, err := q.policy(current.Policy)
	if err != nil {
		return nil, err
	}
	listening, err := a.listened(ctx)
	if err != nil {
		return nil, err
	}
	bt := rollout.NewBacktest(current.ID, func(events.Policy) events.Policy { return policy }, listening)
	if err := a.replay(ctx, bt); err != nil {
		return nil, err
	}
	var out *rollout.BacktestResult
	a.runner.View(func(m *projections.Mesh) { out, err = bt.Result(m.Rollouts[current.ID]) })
	return out, err
}

// policy is the recorded one with what the operator wants to try.
func (q BacktestRequest) policy(p events.Policy) (events.Policy, error) {
	if q.MaxFailed != "" {
		var err error
		if p.Tolerate, p.MaxFailed, err = ParseMaxFailed(q.MaxFailed); err != nil {
			return p, err
		}
	}
	for _, f := range []struct {
		to *events.Duration
		v  events.Duration
	}{{&p.Window, q.Window}, {&p.Soak, q.Soak}, {&p.Presence, q.Presence}} {
		if f.v != 0 {
			*f.to = f.v
		}
	}
	return p, rollout.CheckPolicy(p)
}

// listened is when the mesh was listening, as far as pulses are kept.
func (a *api) listened(ctx context.Context) ([]projections.Span, error) {
	var l projections.Listening
	err := events.ReadStream(ctx, a.js, events.StreamHeartbeats,
		events.ReadOptions{Subjects: []string{events.HeartbeatSubject(events.PulseID)}},
		func(m events.Message) error {
			var p events.Pulse
			if json.Unmarshal(m.Data, &p) == nil {
				l.Pulse(p.Since, m.Stored)
			}
			return nil
		})
	return l.Spans, err
}

// replay hands both streams to a backtest, merged by time.
func (a *api) replay(ctx context.Context, bt *rollout.Backtest) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type item struct {
		at   time.Time
		give func() (bool, error)
	}
	read := func(stream string, decode func(m events.Message) (item, error)) (<-chan item, <-chan error) {
		out, end := make(chan item, 256), make(chan error, 1)
		go func() {
			defer close(out)
			end <- events.ReadStream(ctx, a.js, stream, events.ReadOptions{}, func(m events.Message) error {
				it, err := decode(m)
				if err != nil {
					return err
				}
				select {
				case out <- it:
					return nil
				case <-ctx.Done():
					return ctx.Err()
				}
			})
		}()
		return out, end
	}
	log, logEnd := read(events.StreamEvents, func(m events.Message) (item, error) {
		e, err := events.Decode(m.Data)
		return item{e.Time, func() (bool, error) { return bt.Event(events.Record{Seq: m.Seq, Event: e}) }}, err
	})
	beats, beatsEnd := read(events.StreamHeartbeats, func(m events.Message) (item, error) {
		return item{m.Stored, func() (bool, error) { return bt.Beat(m), nil }}, nil
	})
	x, moreLog := <-log
	y, moreBeats := <-beats
	for moreLog || moreBeats {
		next := &x
		fromLog := moreLog && (!moreBeats || !y.at.Before(x.at))
		if !fromLog {
			next = &y
		}
		done, err := next.give()
		if err != nil || done {
			return err
		}
		if fromLog {
			x, moreLog = <-log
		} else {
			y, moreBeats = <-beats
		}
	}
	return errors.Join(<-logEnd, <-beatsEnd)
}
