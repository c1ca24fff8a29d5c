package rollout

import (
	"math/rand/v2"
	"time"

	"noxmesh/events"
	"noxmesh/projections"
)

// present says whether a node was heard lately enough to be chosen: lately as of
// what was read, so that a reader that lags does not find everybody absent.
func present(m *projections.Mesh, n *projections.Node, policy events.Policy) bool {
	return n != nil && n.Heard != nil && m.Listening.Last().To.Sub(n.Heard.At) <= time.Duration(policy.Presence)
}

// choose picks up to count nodes that are present and not exposed yet, at
// random with the plan's seed: the same state gives the same batch. It also
// says how many there were to choose from.
func choose(m *projections.Mesh, r *projections.Rollout, count int) (*events.BatchOpened, int) {
	exposed := r.Exposed()
	var candidates []string
	for _, id := range r.Plan.Cohort {
		if !exposed[id] && present(m, m.Nodes[id], r.Plan.Policy) {
			candidates = append(candidates, id)
		}
	}
	number := len(r.Batches) + 1
	rng := rand.New(rand.NewPCG(r.Plan.Seed, uint64(number)))
	rng.Shuffle(len(candidates), func(i, j int) { candidates[i], candidates[j] = candidates[j], candidates[i] })
	out := &events.BatchOpened{Batch: number, Nodes: candidates[:min(count, len(candidates))]}
	for _, id := range out.Nodes {
		out.Presence = append(out.Presence, m.Nodes[id].Heard.Seq)
	}
	return out, len(candidates)
}
