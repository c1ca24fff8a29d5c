package projections

import (
	"fmt"
	"sort"
	"time"

	"noxmesh/events"
)

// NodeView is one node of the fleet as a person or a tool sees it.
type NodeView struct {
	Node     string            `json:"node"`
	Labels   map[string]string `json:"labels,omitempty"`
	Declared string            `json:"declared,omitempty"` // version it should run
	Revision uint64            `json:"revision"`           // of its newest declaration
	// Running is the version it said last: in a heartbeat or, if it was never
	// heard or its heartbeats are not at hand, in a report.
	Running string `json:"running,omitempty"`
	// KnownGood is the version the node would roll back to.
	KnownGood string     `json:"known_good,omitempty"`
	Applied   uint64     `json:"applied_revision"`
	LastHeard *time.Time `json:"last_heard,omitempty"`
	// HeardSince is since when it has been heard without a gap, as far back as
	// heartbeats are kept.
	HeardSince *time.Time `json:"heard_since,omitempty"`
	// Retained: the package of known-good is on the node, so it could roll back.
	Retained bool `json:"retained"`
	// NoWayBack says why the node could not roll back today, empty if it could.
	NoWayBack    string `json:"no_way_back,omitempty"`
	Architecture string `json:"architecture,omitempty"`
	// Waiting says what stands between the node and its declaration, if anything.
	Waiting    string        `json:"waiting,omitempty"`
	Refused    string        `json:"refused,omitempty"` // version it will not install
	RolledBack *RolledBackTo `json:"rolled_back,omitempty"`
	Problems   []string      `json:"problems,omitempty"`
	Revoked    bool          `json:"revoked,omitempty"` // its key is not let in
	// Away are the newest absences on record as pairs of from and to, oldest
	// first; AwayMore is how many more there are, which the view of one node has.
	Away     []AwayView `json:"away,omitempty"`
	AwayMore int        `json:"away_more,omitempty"`
}

// RolledBackTo is a node's last rollback in short.
type RolledBackTo struct {
	From   string    `json:"from"`
	To     string    `json:"to"`
	At     time.Time `json:"at"`
	Reason string    `json:"reason,omitempty"`
}

// View makes the view of one node.
func (n *Node) View() NodeView {
	v := NodeView{Node: n.ID, Labels: n.Labels, Declared: n.DeclaredVersion(), Revision: n.Revision(), Revoked: n.Revoked}
	if h := n.Heard; h != nil {
		v.Running, v.KnownGood, v.Applied, v.Retained = h.Version, h.KnownGood, h.Revision, h.Retained
		v.Architecture, v.Problems = h.Architecture, h.Problems
		since := n.HeardSince()
		v.LastHeard, v.HeardSince = &h.At, &since
		switch {
		case !h.Retained:
			v.NoWayBack = "no package of " + h.KnownGood + " retained"
			if h.KnownGood == "" {
				v.NoWayBack = "no version was confirmed yet"
			}
		case h.Drill != nil && !h.Drill.OK:
			v.NoWayBack = "the drill failed: " + h.Drill.Error
		}
	} else {
		v.Running = n.reportedVersion()
	}
	if f := n.RolledBack; f != nil {
		v.RolledBack = &RolledBackTo{From: f.Fact.From, To: f.Fact.To, At: f.At, Reason: f.Fact.Reason}
	}
	if f := n.Refused; f != nil && f.Fact.Revision == n.Revision() {
		v.Refused = f.Fact.Version
	}
	if n.Malformed > 0 {
		v.Problems = append(v.Problems, fmt.Sprintf("%d of its heartbeats did not read: %s", n.Malformed, n.MalformedReason))
	}
	if f := n.Rejected; f != nil {
		v.Problems = append(v.Problems, fmt.Sprintf("a %s report was rejected: %s", f.Fact.Kind, f.Fact.Reason))
	}
	v.Waiting = n.waiting()
	v.Away, v.AwayMore = n.awayViews(awayListed), max(0, len(n.Away)-awayListed)
	return v
}

// reportedVersion is what the node runs by the last report that says so: it
// confirmed a version, or went back to one.
func (n *Node) reportedVersion() string {
	c, rb := n.Confirmed, n.RolledBack
	switch {
	case rb != nil && (c == nil || rb.Seq > c.Seq):
		return rb.Fact.To
	case c != nil:
		return c.Fact.Version
	}
	return ""
}

func (n *Node) waiting() string {
	d := n.Declaration
	switch {
	case n.Revoked:
		return "revoked: it joins again with a new invite only"
	case n.Heard == nil:
		return "never heard"
	case d == nil, n.Heard.Revision >= d.Declared.Revision:
		return ""
	}
	if f := n.Refused; f != nil && f.Fact.Revision == d.Declared.Revision {
		return "refuses: " + f.Fact.Reason
	}
	if f := n.FailedToApply; f != nil && f.Fact.Revision == d.Declared.Revision {
		return f.Fact.Resource + ": " + f.Fact.Error
	}
	if n.Heard.At.Before(d.At) {
		return "not heard since it was declared"
	}
	return fmt.Sprintf("applying revision %d", d.Declared.Revision)
}

// Fleet gives the views of up to limit enrolled nodes whose names come after a
// given one, in order of name; more says that there are further ones.
func (m *Mesh) Fleet(after string, limit int) (views []NodeView, more bool) {
	var ids []string
	for id, n := range m.Nodes {
		if n.EnrolledSeq != 0 && id > after {
			ids = append(ids, id)
		}
	}
	sort.Strings(ids)
	if more = len(ids) > limit; more {
		ids = ids[:limit]
	}
	views = []NodeView{}
	for _, id := range ids {
		views = append(views, m.Nodes[id].View())
	}
	return views, more
}

// ReleaseView is one release and where it is.
type ReleaseView struct {
	events.Release
	Added      time.Time `json:"added"`
	Declared   int       `json:"declared"`    // nodes that should run it
	Confirmed  int       `json:"confirmed"`   // nodes that run it, confirmed
	RolledBack int       `json:"rolled_back"` // nodes whose last rollback was from it
	Silent     int       `json:"silent"`      // declared, and not heard since
	// Held says why nobody is declared the release, empty if it is not held.
	Held string `json:"held,omitempty"`
	// Unsigned says why nodes would refuse the release, empty if they would not.
	Unsigned string `json:"unsigned,omitempty"`
}

// ReleaseViews gives all releases, the one added last first. It looks at each
// node once.
func (m *Mesh) ReleaseViews() []ReleaseView {
	type key struct{ version, architecture string }
	views := make(map[key]*ReleaseView, len(m.Releases))
	out := make([]ReleaseView, 0, len(m.Releases))
	seq := map[string]uint64{}
	for _, r := range m.Releases {
		v := ReleaseView{Release: r.Release, Added: r.Added}
		if r.Held != nil {
			v.Held = r.Held.Fact.Reason
		}
		if err := m.Signed(r.Release); err != nil {
			v.Unsigned = err.Error()
		}
		seq[r.Key()] = r.Seq
		out = append(out, v)
	}
	sort.Slice(out, func(i, j int) bool { return seq[out[i].Key()] > seq[out[j].Key()] })
	for i := range out {
		views[key{out[i].Version, out[i].Architecture}] = &out[i]
	}
	for _, n := range m.Nodes {
		if n.EnrolledSeq == 0 || n.Heard == nil {
			continue
		}
		of := func(version string) *ReleaseView { return views[key{version, n.Heard.Architecture}] }
		if v := of(n.DeclaredVersion()); v != nil {
			v.Declared++
			if n.Heard.At.Before(n.Declaration.At) {
				v.Silent++
			}
		}
		if v := of(n.Heard.Version); v != nil && n.Heard.Confirmed() {
			v.Confirmed++
		}
		if n.RolledBack != nil {
			if v := of(n.RolledBack.Fact.From); v != nil {
				v.RolledBack++
			}
		}
	}
	return out
}
