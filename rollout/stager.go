package rollout

import (
	"context"
	"errors"
	"time"

	"github.com/rs/zerolog"

	"noxmesh/events"
	"noxmesh/projections"
)

// Stager appends what [Decide] wants, for every open rollout.
type Stager struct {
	Log    *events.Log
	Runner *projections.Runner
	Source string // of the events it writes
	Logger zerolog.Logger
}

// retryPause is how long a stager that could not append waits before it tries
// again without news from the log.
const retryPause = time.Second

// pace is the pause between two looks. A large fleet beats hundreds of times a
// second, and nothing is decided better for looking at each beat.
const pace = 50 * time.Millisecond

// foldTimeout bounds the wait for an appended event to come back.
const foldTimeout = 10 * time.Second

// Run decides whenever something changed, until ctx ends. Every pulse of the
// mesh is a change, so windows end without a timer.
func (s *Stager) Run(ctx context.Context) error {
	select {
	case <-s.Runner.Settled():
	case <-ctx.Done():
		return ctx.Err()
	}
	for {
		changed := s.Runner.Changed()
		wrote, err := s.step(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		var again <-chan time.Time
		switch {
		case errors.Is(err, events.ErrConflict):
			// Somebody else wrote; what they wrote is the news to wait for.
		case err != nil:
			s.Logger.Error().Err(err).Msg("could not append; trying again")
			again = time.After(retryPause)
		}
		if wrote && err == nil {
			continue
		}
		select {
		case <-changed:
		case <-again:
		case <-ctx.Done():
			return ctx.Err()
		}
		select {
		case <-time.After(pace):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// step decides once for each rollout and appends what is wanted. It returns
// after what it wrote is folded, so that the next step sees it.
func (s *Stager) step(ctx context.Context) (wrote bool, err error) {
	type decided struct {
		rollout string
		seq     uint64
		events  []Pending
	}
	var all []decided
	s.Runner.View(func(m *projections.Mesh) {
		now := time.Now()
		for _, r := range m.InOrder() {
			if d := Decide(m, r.ID, now); len(d.Events) > 0 {
				all = append(all, decided{r.ID, r.Seq, d.Events})
			}
		}
	})
	var last uint64
	var conflict error
	for _, d := range all {
		// One rollout whose event cannot be written does not hold up the others.
		seq, one := s.carryOut(ctx, d.rollout, d.seq, d.events)
		if seq > 0 {
			wrote, last = true, max(last, seq)
		}
		if errors.Is(one, events.ErrConflict) {
			conflict = one
		} else {
			err = errors.Join(err, one)
		}
	}
	if err == nil {
		err = conflict
	}
	if !wrote {
		return false, err
	}
	ctx, cancel := context.WithTimeout(ctx, foldTimeout)
	defer cancel()
	return true, errors.Join(err, s.Runner.WaitEvent(ctx, last))
}

// carryOut appends what was decided in one rollout, in order. It gives the last
// sequence it wrote.
func (s *Stager) carryOut(ctx context.Context, rollout string, seq uint64, list []Pending) (last uint64, err error) {
	for _, p := range list {
		if !s.unchanged(rollout, seq, p) {
			break // an operator stepped in while declarations were written
		}
		origin := events.Origin{Source: s.Source, Actor: "stager", Cause: p.Cause}
		e := events.New(p.Subject, p.Fact, origin, time.Now())
		if p.ID != "" {
			e.ID = p.ID
		}
		written, err := s.Log.Append(ctx, e, p.Expected)
		if err != nil {
			return last, err
		}
		last = written
		s.Logger.Info().Str("type", e.Type).Str("subject", e.Subject).Uint64("seq", written).Msg("decided")
	}
	return last, nil
}

// unchanged says whether what was decided still is what the log asks for: the
// rollout is as it was, and nobody has held the release meanwhile.
func (s *Stager) unchanged(rollout string, seq uint64, p Pending) (same bool) {
	s.Runner.View(func(m *projections.Mesh) {
		r := m.Rollouts[rollout]
		same = r.Seq == seq
		if d, ok := p.Fact.(*events.Declared); ok && d.Because.Kind == events.CauseBatch && m.HeldOf(r.Plan.Releases) != nil {
			same = false
		}
	})
	return same
}
