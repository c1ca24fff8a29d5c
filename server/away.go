package server

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/rs/zerolog"

	"noxmesh/events"
	"noxmesh/projections"
)

// awayKeeper puts absences of nodes on record once they are over: heartbeats age
// out, and how often a machine was away last month is asked later. What is to be
// recorded is a fold of both streams, so it needs no state of its own, and of
// several servers that see the same absence one writes it.
//
// It needs no allowance as reports do: a node must be silent for more than five
// minutes for each event, so one that does it on purpose makes 288 a day, a
// fifth of the reports that it may have recorded.
type awayKeeper struct {
	log    *events.Log
	runner meshView
	source string
	logger zerolog.Logger
	every  time.Duration // between two looks; awayEvery if zero
}

// meshView is what it needs of a [projections.Runner].
type meshView interface {
	Settled() <-chan struct{}
	View(func(*projections.Mesh))
	WaitEvent(ctx context.Context, seq uint64) error
}

const (
	awayEvery = 5 * time.Second
	// awayActor is who writes absences: nobody but the mesh says that a node was
	// not heard.
	awayActor = "mesh"
	// foldTimeout bounds the wait for what was written to come back.
	foldTimeout = 10 * time.Second
)

func (k *awayKeeper) run(ctx context.Context) error {
	select {
	case <-k.runner.Settled():
	case <-ctx.Done():
		return ctx.Err()
	}
	every := k.every
	if every == 0 {
		every = awayEvery
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		if err := k.look(ctx); err != nil && ctx.Err() == nil {
			k.logger.Error().Err(err).Msg("could not record that nodes were away; trying again")
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// look records at most one absence of each node. It returns once what it wrote is
// folded, so that the next look does not see it again.
func (k *awayKeeper) look(ctx context.Context) error {
	var list []projections.Absence
	k.runner.View(func(m *projections.Mesh) { list = m.Absences() })
	var last uint64
	for _, a := range list {
		e := events.New(a.Node, &a.NodeAway, events.Origin{Source: k.source, Actor: awayActor}, time.Now())
		seq, err := k.log.Append(ctx, e, a.Expected)
		if errors.Is(err, events.ErrConflict) {
			continue // another server was faster, or the node reported something: look again
		}
		if err != nil {
			return fmt.Errorf("recording that %s was away: %w", a.Node, err)
		}
		last = seq
	}
	if last == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, foldTimeout)
	defer cancel()
	return k.runner.WaitEvent(ctx, last)
}
