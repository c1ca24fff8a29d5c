package rollout

import (
	"slices"
	"time"

	"noxmesh/events"
	"noxmesh/projections"
)

// linkPatience is for how many windows a rollout waits for the link before it
// halts.
const linkPatience = 6

// controlGroup counts the nodes that were present at a moment and are in no open
// batch, of this rollout or another, and how many of them are not heard any
// more. They were told nothing, so their silence says what is ordinary.
func controlGroup(m *projections.Mesh, policy events.Policy, at time.Time) events.Control {
	presence := time.Duration(policy.Presence)
	var c events.Control
	var last []time.Time
	for id, n := range m.Nodes {
		if n.EnrolledSeq == 0 || n.Heard == nil {
			continue
		}
		if newest := m.Rollouts[n.Rollout]; newest != nil && newest.Members[id] != nil && newest.Members[id].Outcome == projections.Waiting {
			continue
		}
		if !n.PresentAt(at, presence, &m.Listening) {
			continue
		}
		c.Nodes++
		if m.Listening.Since(n.Heard.At) > presence {
			c.Silent++
			last = append(last, n.Heard.At)
		}
	}
	if len(last) > 0 {
		slices.SortFunc(last, time.Time.Compare)
		c.Since = last[len(last)/2]
	}
	return c
}

// linkGroup is the control group that tells whether the link is there: nodes
// that were present a window ago, or when the batch opened if that is later.
// While the rollout waits for the link it is the group that found it gone.
func linkGroup(m *projections.Mesh, r *projections.Rollout) events.Control {
	k := len(r.Batches)
	if k == 0 {
		return events.Control{}
	}
	at := r.Batches[k-1].Opened
	to := m.Listening.Last().To
	if r.State == projections.Paused && r.Pause.Because == events.ByLink {
		to = r.PausedAt
	}
	if ago := m.Listening.AgoFrom(to, time.Duration(r.Plan.Policy.Window)); ago.After(at) {
		at = ago
	}
	return controlGroup(m, r.Plan.Policy, at)
}

// linkAway says whether more of a control group fell silent than machines do by
// themselves.
func linkAway(c events.Control) bool {
	return c.Silent > 0 && binomialTail(c.Silent, c.Nodes, ordinaryAway) < significance
}

// linkBack says whether no more are silent than may be by themselves.
func linkBack(c events.Control) bool { return float64(c.Silent) <= ordinaryAway*float64(c.Nodes) }

// listened is the listening time since a moment, without the time in which the
// link was away.
func listened(m *projections.Mesh, r *projections.Rollout, since time.Time) time.Duration {
	sum := m.Listening.Since(since)
	for _, away := range r.LinkAway {
		from, to := away.From, away.To
		if from.Before(since) {
			from = since
		}
		if to.IsZero() {
			to = m.Listening.Last().To
		}
		if to.After(from) {
			sum -= m.Listening.Within(from, to)
		}
	}
	return sum
}
