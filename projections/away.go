package projections

import (
	"slices"
	"time"

	"noxmesh/events"
)

const (
	maxGaps = 16
	maxAway = 512
	// awayKept is for how long an absence is kept in the state: a quarter of a
	// year. In the log it is for ever.
	awayKept = 92 * 24 * time.Hour
	// awayListed is how many absences the view of a node has in a list of many.
	awayListed = 8
)

func (n *Node) gap(g events.NodeAway) {
	n.Gaps = append(n.Gaps, g)
	if len(n.Gaps) > maxGaps {
		n.Gaps = slices.Clone(n.Gaps[1:])
	}
}

func (n *Node) away(s Span) {
	n.Away = append(n.Away, s)
	from := s.To.Add(-awayKept)
	keep := 0
	for keep < len(n.Away) && (len(n.Away)-keep > maxAway || n.Away[keep].To.Before(from)) {
		keep++
	}
	if keep > 0 {
		n.Away = slices.Clone(n.Away[keep:])
	}
}

// Absence is a node's absence that is over and not on record yet, with the
// sequence that its event expects.
type Absence struct {
	Node     string
	Expected uint64
	events.NodeAway
}

// Absences gives the oldest absence that is not on record of each node that is
// let in, in order of name. Time in which the mesh did not listen is no absence,
// nor is what was before the machine joined.
func (m *Mesh) Absences() []Absence {
	var out []Absence
	for id, n := range m.Nodes {
		if n.EnrolledSeq == 0 || n.Revoked {
			continue
		}
		from := n.EnrolledAt
		if k := len(n.Away); k > 0 && n.Away[k-1].To.After(from) {
			from = n.Away[k-1].To
		}
		// One that begins before the last one on record ended is that one,
		// however the broker tells it now.
		i := slices.IndexFunc(n.Gaps, func(g events.NodeAway) bool { return !g.From.Before(from) })
		if i >= 0 {
			out = append(out, Absence{Node: id, Expected: n.EventSeq, NodeAway: n.Gaps[i]})
		}
	}
	slices.SortFunc(out, func(a, b Absence) int {
		if a.Node < b.Node {
			return -1
		}
		return 1
	})
	return out
}

// AwayView is an absence as a pair, from and to, in whole seconds.
type AwayView [2]time.Time

// awayViews gives the newest absences on record, oldest first.
func (n *Node) awayViews(most int) []AwayView {
	var out []AwayView
	for _, s := range n.Away[max(0, len(n.Away)-most):] {
		out = append(out, AwayView{s.From.UTC().Truncate(time.Second), s.To.UTC().Truncate(time.Second)})
	}
	return out
}

// Detail is the view of one node with all its absences.
func (n *Node) Detail() NodeView {
	v := n.View()
	v.Away, v.AwayMore = n.awayViews(maxAway), 0
	return v
}
