package server

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"noxmesh/events"
	"noxmesh/projections"
	"noxmesh/rollout"
)

// maxSeed keeps seeds that the mesh chooses short enough to type, and exact in
// tools that read JSON's numbers as floating point.
const maxSeed = 1 << 32

// requestOf makes a complete request of what the operator asked for.
func requestOf(q StartRequest) (rollout.Request, error) {
	policy, err := policyOf(q)
	if q.Seed == 0 {
		q.Seed = 1 + rand.Uint64N(maxSeed-1)
	}
	return rollout.Request{Version: q.Version, Selector: q.Selector, Policy: policy, Seed: q.Seed, Retry: q.Retry}, err
}

// planRollout says what a start would do now. It writes nothing.
func (a *api) planRollout(_ context.Context, _ caller, q StartRequest) (out PlanReply, err error) {
	req, err := requestOf(q)
	if err != nil {
		return out, err
	}
	a.runner.View(func(m *projections.Mesh) {
		var plan *events.RolloutStarted
		if plan, err = rollout.Plan(m, req); err != nil {
			return
		}
		out = PlanReply{
			Version: plan.Version, Selector: plan.Selector, Cohort: len(plan.Cohort), Batches: len(plan.Targets),
			Policy: plan.Policy, Seed: plan.Seed, Schedule: rollout.Preview(m, plan),
			EventSeq: m.EventSeq, HeartbeatSeq: m.HeartbeatSeq,
		}
	})
	return out, err
}

func (a *api) startRollout(ctx context.Context, by caller, q StartRequest) (*rollout.Status, error) {
	req, err := requestOf(q)
	if err != nil {
		return nil, err
	}
	id, err := a.change(ctx, by, func(m *projections.Mesh) (string, events.Fact, uint64, error) {
		plan, err := rollout.Plan(m, req)
		// Ids count up; of two servers that take the same one, one tries again.
		return "r" + strconv.Itoa(len(m.Rollouts)+1), plan, 0, err
	})
	if err != nil {
		return nil, err
	}
	return a.status(id)
}

// find gives a rollout by its id, or the latest one.
func find(m *projections.Mesh, id string) (*projections.Rollout, error) {
	list := m.InOrder()
	switch {
	case m.Rollouts[id] != nil:
		return m.Rollouts[id], nil
	case len(list) == 0:
		return nil, fmt.Errorf("there is no rollout yet: start one with nox-mesh rollout start VERSION")
	case id == "latest":
		return list[len(list)-1], nil
	}
	return nil, fmt.Errorf("there is no rollout %q: nox-mesh rollout ls shows all", id)
}

func (a *api) status(id string) (out *rollout.Status, err error) {
	a.runner.View(func(m *projections.Mesh) {
		var r *projections.Rollout
		if r, err = find(m, id); err == nil {
			out = rollout.StatusOf(m, r.ID, time.Now())
		}
	})
	return out, err
}

func (a *api) rolloutStatus(ctx context.Context, _ caller, q RolloutRequest) (out RolloutStatus, err error) {
	var missing error
	out.Past, err = a.state(ctx, q.At, func(m *projections.Mesh, now time.Time) {
		var r *projections.Rollout
		if r, missing = find(m, q.ID); missing == nil {
			out.Status = rollout.StatusOf(m, r.ID, now)
		}
	})
	switch {
	case err != nil:
		return out, err
	case missing != nil && out.Past != nil:
		return out, fmt.Errorf("at %s %w", out.Past.At.Format(time.RFC3339), missing)
	case missing == nil && out.Past != nil:
		out.Next = nil // what made sense then
	}
	return out, missing
}

func (a *api) listRollouts(ctx context.Context, _ caller, q AtRequest) (out RolloutList, err error) {
	out.Past, err = a.state(ctx, q.At, func(m *projections.Mesh, now time.Time) {
		out.EventSeq = m.EventSeq
		out.Rollouts = []*rollout.Status{}
		for _, r := range slices.Backward(m.InOrder()) {
			s := rollout.StatusOf(m, r.ID, now)
			s.Nodes = nil
			if q.At != nil {
				s.Next = nil
			}
			out.Rollouts = append(out.Rollouts, s)
		}
	})
	return out, err
}

// act carries one command about one rollout out and gives the status after it.
func act[F events.Fact](ctx context.Context, a *api, by caller, q RolloutRequest, fn func(m *projections.Mesh, r *projections.Rollout) (F, error)) (*rollout.Status, error) {
	id, err := a.change(ctx, by, func(m *projections.Mesh) (string, events.Fact, uint64, error) {
		r, err := find(m, q.ID)
		if err != nil {
			return "", nil, 0, err
		}
		fact, err := fn(m, r)
		return r.ID, fact, r.Seq, err
	})
	if err != nil {
		return nil, err
	}
	return a.status(id)
}

func (a *api) pauseRollout(ctx context.Context, by caller, q RolloutRequest) (*rollout.Status, error) {
	return act(ctx, a, by, q, func(_ *projections.Mesh, r *projections.Rollout) (*events.RolloutPaused, error) {
		return rollout.Pause(r, reasonText(q.Reason))
	})
}

func (a *api) resumeRollout(ctx context.Context, by caller, q RolloutRequest) (*rollout.Status, error) {
	return act(ctx, a, by, q, func(m *projections.Mesh, r *projections.Rollout) (*events.RolloutResumed, error) {
		return rollout.Resume(m, r, q.Mode, reasonText(q.Reason))
	})
}

func (a *api) abortRollout(ctx context.Context, by caller, q RolloutRequest) (*rollout.Status, error) {
	return act(ctx, a, by, q, func(m *projections.Mesh, r *projections.Rollout) (*events.RolloutAborted, error) {
		return rollout.Abort(m, r, reasonText(q.Reason))
	})
}

func (a *api) revertRollout(ctx context.Context, by caller, q RolloutRequest) (*rollout.Status, error) {
	return act(ctx, a, by, q, func(m *projections.Mesh, r *projections.Rollout) (*events.RolloutReverted, error) {
		return rollout.Revert(m, r, reasonText(q.Reason))
	})
}

// maxReason bounds what an operator gives as a reason, in bytes. It is kept for
// ever and printed on other people's terminals.
const maxReason = 500

func reasonText(s string) string { return events.Printable(s, maxReason) }
