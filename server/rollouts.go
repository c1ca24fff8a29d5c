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

// withDefaults fills what the operator left open.
func withDefaults(p events.Policy) events.Policy {
	d := rollout.DefaultPolicy()
	if len(p.Batches) == 0 {
		p.Batches = d.Batches
	}
	if p.Window == 0 {
		p.Window = d.Window
	}
	if p.Soak == 0 {
		// A short window asks for a short soak.
		p.Soak = min(d.Soak, p.Window/2)
	}
	if p.Presence == 0 {
		p.Presence = d.Presence
	}
	return p
}

func (a *api) startRollout(ctx context.Context, by caller, q StartRequest) (*rollout.Status, error) {
	req := rollout.Request{Version: q.Version, Selector: q.Selector, Policy: withDefaults(q.Policy), Seed: q.Seed, Retry: q.Retry}
	if req.Seed == 0 {
		req.Seed = rand.Uint64()
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

func (a *api) status(id string) (out *rollout.Status, err error) {
	a.runner.View(func(m *projections.Mesh) {
		list := m.InOrder()
		if id == "latest" && len(list) > 0 {
			id = list[len(list)-1].ID
		}
		if out = rollout.StatusOf(m, id, time.Now()); out != nil {
			return
		}
		err = fmt.Errorf("there is no rollout %q: nox-mesh rollout ls shows all", id)
		if len(list) == 0 {
			err = fmt.Errorf("there is no rollout yet: start one with nox-mesh rollout start VERSION")
		}
	})
	return out, err
}

func (a *api) rolloutStatus(_ context.Context, _ caller, q RolloutRequest) (*rollout.Status, error) {
	return a.status(q.ID)
}

func (a *api) listRollouts(context.Context, caller, struct{}) (out RolloutList, err error) {
	a.runner.View(func(m *projections.Mesh) {
		out.EventSeq = m.EventSeq
		out.Rollouts = []*rollout.Status{}
		for _, r := range slices.Backward(m.InOrder()) {
			s := rollout.StatusOf(m, r.ID, time.Now())
			s.Nodes = nil
			out.Rollouts = append(out.Rollouts, s)
		}
	})
	return out, nil
}

func (a *api) abortRollout(ctx context.Context, by caller, q RolloutRequest) (*rollout.Status, error) {
	current, err := a.status(q.ID)
	if err != nil {
		return nil, err
	}
	_, err = a.change(ctx, by, func(m *projections.Mesh) (string, events.Fact, uint64, error) {
		r := m.Rollouts[current.ID]
		if !r.State.Open() {
			return "", nil, 0, fmt.Errorf("rollout %s is %s already: there is nothing to abort", r.ID, r.State)
		}
		fact := &events.RolloutAborted{Reason: q.Reason}
		if r.State == projections.Running {
			fact.Recall = rollout.Recallable(m, r, r.OpenBatch())
		}
		return r.ID, fact, r.Seq, nil
	})
	if err != nil {
		return nil, err
	}
	return a.status(current.ID)
}
