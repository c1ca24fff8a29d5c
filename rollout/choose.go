package rollout

import (
	"math/rand/v2"
	"slices"
	"time"

	"noxmesh/events"
	"noxmesh/projections"
)

// present says whether a node was heard lately enough to be chosen: lately as of
// what was read, so that a reader that lags does not find everybody absent.
func present(m *projections.Mesh, n *projections.Node, policy events.Policy) bool {
	return n != nil && n.EnrolledSeq != 0 && n.Heard != nil &&
		m.Listening.Last().To.Sub(n.Heard.At) <= time.Duration(policy.Presence)
}

// candidates are the members that may be chosen now, in the cohort's order.
func candidates(m *projections.Mesh, r *projections.Rollout) []string {
	var out []string
	for _, id := range r.Plan.Cohort {
		if r.Members[id].Free() && present(m, m.Nodes[id], r.Plan.Policy) {
			out = append(out, id)
		}
	}
	return out
}

// choose picks up to count of the candidates, at random with the plan's seed:
// the same state gives the same batch. Canaries come from the steadier half,
// and every batch is spread over the kinds of machine there are.
func choose(m *projections.Mesh, r *projections.Rollout, from []string, count int, canaries bool) []string {
	from = slices.Clone(from)
	if canaries {
		from = steadier(m, from, count)
	}
	rng := rand.New(rand.NewPCG(r.Plan.Seed, uint64(len(r.Batches)+1)))
	rng.Shuffle(len(from), func(i, j int) { from[i], from[j] = from[j], from[i] })
	return spread(m, r, from, count)
}

// steadier keeps the half that has been heard the longest without a gap, and
// whoever is as steady as the last of them: a laptop that comes and goes makes
// a poor canary.
func steadier(m *projections.Mesh, from []string, count int) []string {
	heard := map[string]int{} // in units of a gap, so that seconds do not matter
	for _, id := range from {
		heard[id] = int(m.Listening.Since(m.Nodes[id].HeardSince()) / projections.Gap)
	}
	slices.SortStableFunc(from, func(a, b string) int { return heard[b] - heard[a] })
	keep := max(count, (len(from)+1)/2)
	for keep < len(from) && heard[from[keep]] == heard[from[keep-1]] {
		keep++
	}
	return from[:min(keep, len(from))]
}

// kindOf is what batches are spread over.
func kindOf(n *projections.Node) [3]string {
	var k [3]string
	if n != nil {
		k[2] = n.Labels["site"]
		if n.Heard != nil {
			k[0], k[1] = n.Heard.Architecture, n.Heard.OS
		}
	}
	return k
}

// spread picks nodes one after the other, each time of the kind that was met
// the least: first what was not met at all, then what was met the least for
// its share of the cohort. Among equals the order given decides.
func spread(m *projections.Mesh, r *projections.Rollout, from []string, count int) []string {
	var size, met [3]map[string]int
	for a := range size {
		size[a], met[a] = map[string]int{}, map[string]int{}
	}
	for _, id := range r.Plan.Cohort {
		for a, v := range kindOf(m.Nodes[id]) {
			size[a][v]++
			if !r.Members[id].Free() {
				met[a][v]++
			}
		}
	}
	type group struct {
		kind  [3]string
		nodes []string
	}
	var groups []*group
	byKind, place := map[[3]string]*group{}, map[string]int{}
	for i, id := range from {
		k := kindOf(m.Nodes[id])
		g := byKind[k]
		if g == nil {
			g = &group{kind: k}
			byKind[k] = g
			groups = append(groups, g)
		}
		g.nodes = append(g.nodes, id)
		place[id] = i
	}
	cost := func(g *group) float64 {
		sum := 0.0
		for a, v := range g.kind {
			if met[a][v] == 0 {
				sum -= float64(len(from))
			}
			sum += float64(met[a][v]) / float64(size[a][v])
		}
		return sum
	}
	var out []string
	for len(out) < count && len(groups) > 0 {
		best, least := groups[0], cost(groups[0])
		for _, g := range groups[1:] {
			if c := cost(g); c < least || c == least && place[g.nodes[0]] < place[best.nodes[0]] {
				best, least = g, c
			}
		}
		out = append(out, best.nodes[0])
		for a, v := range best.kind {
			met[a][v]++
		}
		if best.nodes = best.nodes[1:]; len(best.nodes) == 0 {
			groups = slices.DeleteFunc(groups, func(g *group) bool { return g == best })
		}
	}
	return out
}

// open words the opening of a batch.
func open(m *projections.Mesh, r *projections.Rollout, stage int, nodes []string) *events.BatchOpened {
	out := &events.BatchOpened{Batch: len(r.Batches) + 1, Stage: stage, Nodes: nodes, AsOf: asOf(m)}
	for _, id := range nodes {
		var seq uint64
		if h := m.Nodes[id].Heard; h != nil {
			seq = h.Seq
		}
		out.Presence = append(out.Presence, seq)
	}
	return out
}

func asOf(m *projections.Mesh) events.Position {
	return events.Position{Event: m.EventSeq, Heartbeat: m.HeartbeatSeq}
}
