package projections

import (
	"maps"

	"noxmesh/events"
)

// Touched are the entities whose view may have become another one. It is never
// larger than the state itself.
type Touched struct {
	// All: everything that there is or was. It is so when nobody asked before.
	All      bool
	Nodes    map[string]bool
	Rollouts map[string]bool
	// Releases: the counts of any of them. All are looked at together, since a
	// node counts for several.
	Releases bool
}

// Add takes in what else was touched.
func (t *Touched) Add(more Touched) {
	if t.Nodes == nil {
		t.Nodes, t.Rollouts = map[string]bool{}, map[string]bool{}
	}
	maps.Copy(t.Nodes, more.Nodes)
	maps.Copy(t.Rollouts, more.Rollouts)
	t.Releases, t.All = t.Releases || more.Releases, t.All || more.All
}

// Empty says that nothing was touched.
func (t *Touched) Empty() bool {
	return !t.All && len(t.Nodes) == 0 && len(t.Rollouts) == 0 && !t.Releases
}

// TakeTouched gives what was touched since it was called last. Nothing is noted
// for those who never call it; the first time it is everything.
func (m *Mesh) TakeTouched() Touched {
	if m.touched == nil {
		m.touched = &Touched{Nodes: map[string]bool{}, Rollouts: map[string]bool{}}
		return Touched{All: true}
	}
	if m.touched.Empty() {
		return Touched{}
	}
	t := *m.touched
	m.touched = &Touched{Nodes: map[string]bool{}, Rollouts: map[string]bool{}}
	return t
}

// touchedBy notes what an event has changed.
func (m *Mesh) touchedBy(e events.Event, fact events.Fact) {
	t := m.touched
	if t == nil {
		return
	}
	switch f := fact.(type) {
	case *events.ReleaseAdded, *events.ReleaseHeld, *events.ReleaseHoldLifted:
		t.Releases = true
		for id, r := range m.Rollouts { // which say whether their release is held
			for _, rel := range r.Plan.Releases {
				t.Rollouts[id] = t.Rollouts[id] || rel.Key() == e.Subject
			}
		}
	case *events.KeyTrusted:
		t.Releases = true // they say whether the key of now has signed them
	case *events.Declared:
		t.Nodes[e.Subject], t.Releases = true, true
		if m.Rollouts[f.Because.Rollout] != nil {
			t.Rollouts[f.Because.Rollout] = true
		}
	case *events.NodeDecommissioned:
		t.Nodes[e.Subject], t.Releases = true, true
		for id, r := range m.Rollouts {
			t.Rollouts[id] = t.Rollouts[id] || r.Members[e.Subject] != nil
		}
	case *events.NodeEnrolled, *events.NodeRolledBack:
		t.Nodes[e.Subject], t.Releases = true, true
	case *events.NodeInvited, *events.NodeJoinRefused, *events.NodeRevoked, *events.NodeConfirmed,
		*events.NodeRefused, *events.NodeFailedToApply, *events.NodeReportRejected:
		t.Nodes[e.Subject] = true
	case *events.UserAdded, *events.UserRevoked:
	default:
		t.Rollouts[e.Subject] = true
	}
}

// standing is what of a heartbeat the counts of releases depend on.
type standing struct {
	architecture, confirmed string
	silent                  bool
}

func (n *Node) standing() (s standing) {
	if h := n.Heard; h != nil {
		s = standing{architecture: h.Architecture, silent: n.Declaration != nil && h.At.Before(n.Declaration.At)}
		if h.Confirmed() {
			s.confirmed = h.Version
		}
	}
	return s
}

// touchedBeat notes what a heartbeat has changed; before is how the node stood.
func (m *Mesh) touchedBeat(n *Node, before standing) {
	if t := m.touched; t != nil {
		t.Nodes[n.ID] = true
		t.Releases = t.Releases || n.standing() != before
	}
}
