package projections

import (
	"slices"
	"time"

	"noxmesh/events"
)

// Node is what is known of one node. Nothing in it is a verdict: when a node
// was last heard is a fact, how long is too long is a policy's business.
type Node struct {
	ID          string
	Labels      map[string]string
	EnrolledAt  time.Time
	EnrolledSeq uint64 // 0: not enrolled, only heard of
	GoneSeq     uint64 // of its decommissioning, 0 if it was not or is back
	EventSeq    uint64 // last event on the node's own subject
	// PublicKey is the key that it joined with last, FormerKeys the ones before
	// that; none of those is let in.
	PublicKey  string
	FormerKeys []string
	MachineID  string
	Revoked    bool // its key is not let in either
	// Told are keys that are not let in, and whose holder has knocked at the
	// door and been told so.
	Told []string
	// Invites are the tokens issued for its name, the newest last; at most
	// [maxInvites] are kept.
	Invites []Invite
	Rollout string // newest rollout whose cohort it is in

	Declaration *Declaration // newest, nil before the first
	Previous    *Declaration // the one before it

	// Runs are the process starts heard lately, oldest first; the last is the
	// one heard last. At most [maxRuns] are kept.
	Runs []Run
	// Heard is the last heartbeat, nil before the first.
	Heard *Heard
	// Hearing are the spans of time in which it was heard without a gap, oldest
	// first; the last one goes on. At most [maxHearing] are kept.
	Hearing []Span
	// Gaps are the times between two spans of hearing, oldest first, as far as
	// heartbeats show them. At most [maxGaps] are kept.
	Gaps []events.NodeAway
	// Away are the absences on record that ended in the [awayKept] before the
	// newest one did, oldest first. At most [maxAway] are kept.
	Away []Span

	Confirmed     *FactOf[events.NodeConfirmed]
	RolledBack    *FactOf[events.NodeRolledBack]
	Refused       *FactOf[events.NodeRefused]
	FailedToApply *FactOf[events.NodeFailedToApply]
	Rejected      *FactOf[events.NodeReportRejected]
	JoinRefused   *FactOf[events.NodeJoinRefused]
	// ReportIDs are the reports that became an event last.
	ReportIDs []string

	// Malformed counts heartbeats that did not read.
	Malformed       int
	MalformedReason string
}

// Invite is a token with which a machine may join under the node's name.
type Invite struct {
	ID        string
	Labels    map[string]string
	Expires   time.Time
	PublicKey string // opens the joining door only
	UsedBy    string // key of the machine that joined with it, empty if none did
	// Void says why nobody may join with it any more, empty if it was used or
	// still may be.
	Void string
}

// Open says whether a machine may join with the invite at a moment.
func (i Invite) Open(now time.Time) bool {
	return i.UsedBy == "" && i.Void == "" && now.Before(i.Expires)
}

// Invite finds an invite of the node by its id.
func (n *Node) Invite(id string) *Invite {
	for i := range n.Invites {
		if n.Invites[i].ID == id {
			return &n.Invites[i]
		}
	}
	return nil
}

// void takes back what was issued and not used.
func (n *Node) void(why string) {
	for i := range n.Invites {
		if inv := &n.Invites[i]; inv.UsedBy == "" && inv.Void == "" {
			inv.Void = why
		}
	}
}

// Barred says whether a key was the node's and is not let in any more.
func (n *Node) Barred(key string) bool {
	return slices.Contains(n.FormerKeys, key) || n.Revoked && n.PublicKey == key
}

// Declaration is a declaration with its place in the log.
type Declaration struct {
	Seq uint64
	At  time.Time
	events.Declared
}

// FactOf is the newest fact of one kind about a node.
type FactOf[T any] struct {
	Seq  uint64
	At   time.Time
	Fact T
}

// Heard is the last heartbeat of a node.
type Heard struct {
	Seq uint64
	At  time.Time // broker's clock
	events.Heartbeat
}

// Run is one process start of a node's host, as far as it was heard.
type Run struct {
	StartID  string
	Version  string
	FirstSeq uint64
	First    time.Time
	LastSeq  uint64
	Last     time.Time
	// Applied marks where the run was first heard confirmed on a revision, or
	// a later one.
	Applied []Mark
}

// Mark is the first heartbeat that showed something.
type Mark struct {
	Revision uint64
	Seq      uint64
	At       time.Time
}

// Gap is how much listening time without a heartbeat ends a span of hearing. It
// is longer than a restart of the machine.
const Gap = 5 * time.Minute

const (
	maxHearing   = 16
	maxInvites   = 16
	maxRuns      = 16
	maxMarks     = 4
	maxReportIDs = 16
)

// AppliedSince gives the heartbeat from which on the run was confirmed with
// the revision, or a later one, applied.
func (r Run) AppliedSince(revision uint64) (Mark, bool) {
	for _, m := range r.Applied {
		if m.Revision >= revision {
			return m, true
		}
	}
	return Mark{}, false
}

// Version is what the node said last that it runs, or "".
func (n *Node) Version() string {
	if n.Heard == nil {
		return ""
	}
	return n.Heard.Version
}

// LastHeard is when the node was heard last, zero if never.
func (n *Node) LastHeard() time.Time {
	if n.Heard == nil {
		return time.Time{}
	}
	return n.Heard.At
}

// DeclaredVersion is the host version that the node should run, or "".
func (n *Node) DeclaredVersion() string {
	if n.Declaration == nil {
		return ""
	}
	if h := n.Declaration.Host(); h != nil {
		return h.Version
	}
	return ""
}

// Revision of the newest declaration, 0 before the first.
func (n *Node) Revision() uint64 {
	if n.Declaration == nil {
		return 0
	}
	return n.Declaration.Declared.Revision
}

// DeclarationSeq is what a writer of the next declaration must expect.
func (n *Node) DeclarationSeq() uint64 {
	if n.Declaration == nil {
		return 0
	}
	return n.Declaration.Seq
}

// HasReport says whether a report of the node is in the log already.
func (n *Node) HasReport(id string) bool { return slices.Contains(n.ReportIDs, id) }

func (n *Node) declared(rec events.Record, d events.Declared) {
	n.Previous = n.Declaration
	n.Declaration = &Declaration{Seq: rec.Seq, At: rec.Event.Time, Declared: d}
}

func (n *Node) fact(rec events.Record, fact events.Fact) {
	n.EventSeq = rec.Seq
	at := rec.Event.Time
	switch f := fact.(type) {
	case *events.NodeEnrolled:
		n.EnrolledSeq, n.EnrolledAt, n.Labels, n.GoneSeq = rec.Seq, at, f.Labels, 0
		if n.PublicKey != "" && n.PublicKey != f.PublicKey {
			n.FormerKeys = append(n.FormerKeys, n.PublicKey)
		}
		n.PublicKey, n.MachineID, n.Revoked = f.PublicKey, f.MachineID, false
		if inv := n.Invite(f.Invite); inv != nil {
			inv.UsedBy = f.PublicKey
		}
	case *events.NodeInvited:
		n.void("a newer token was issued for the same name")
		n.Invites = append(n.Invites, Invite{ID: f.Invite, Labels: f.Labels, Expires: f.Expires, PublicKey: f.PublicKey})
		if len(n.Invites) > maxInvites {
			n.Invites = slices.Clone(n.Invites[1:])
		}
	case *events.NodeJoinRefused:
		n.JoinRefused = &FactOf[events.NodeJoinRefused]{rec.Seq, at, *f}
		if f.Invite == "" && n.Barred(f.PublicKey) && !slices.Contains(n.Told, f.PublicKey) {
			n.Told = append(n.Told, f.PublicKey)
		}
	case *events.NodeRevoked:
		n.Revoked = true
		n.void("the node was revoked after the token was issued")
	case *events.NodeDecommissioned:
		n.void("the node was decommissioned after the token was issued")
		n.EnrolledSeq, n.GoneSeq, n.Revoked = 0, rec.Seq, true
	case *events.NodeConfirmed:
		n.Confirmed = &FactOf[events.NodeConfirmed]{rec.Seq, at, *f}
		n.reported(f.ReportID)
	case *events.NodeRolledBack:
		n.RolledBack = &FactOf[events.NodeRolledBack]{rec.Seq, at, *f}
		n.reported(f.ReportID)
	case *events.NodeRefused:
		n.Refused = &FactOf[events.NodeRefused]{rec.Seq, at, *f}
		n.reported(f.ReportID)
	case *events.NodeFailedToApply:
		n.FailedToApply = &FactOf[events.NodeFailedToApply]{rec.Seq, at, *f}
		n.reported(f.ReportID)
	case *events.NodeAway:
		n.away(Span{f.From, f.To})
	case *events.NodeReportRejected:
		n.Rejected = &FactOf[events.NodeReportRejected]{rec.Seq, at, *f}
	}
}

func (n *Node) reported(id string) {
	n.ReportIDs = append(n.ReportIDs, id)
	if len(n.ReportIDs) > maxReportIDs {
		n.ReportIDs = slices.Delete(n.ReportIDs, 0, 1)
	}
}

func (n *Node) heard(seq uint64, at time.Time, hb events.Heartbeat, l *Listening) {
	n.heardFrom(seq, at, l)
	n.Heard = &Heard{Seq: seq, At: at, Heartbeat: hb}
	if len(n.Runs) == 0 || n.Runs[len(n.Runs)-1].StartID != hb.StartID {
		n.Runs = append(n.Runs, Run{StartID: hb.StartID, Version: hb.Version, FirstSeq: seq, First: at})
		if len(n.Runs) > maxRuns {
			n.Runs = slices.Clone(n.Runs[1:])
		}
	}
	run := &n.Runs[len(n.Runs)-1]
	run.LastSeq, run.Last = seq, at
	if run.Version != hb.Version {
		// One process start runs one version; a node that says otherwise is
		// taken at its newest word, and starts anew.
		run.Version, run.FirstSeq, run.First, run.Applied = hb.Version, seq, at, nil
	}
	if !hb.Confirmed() {
		return
	}
	if k := len(run.Applied); k == 0 || run.Applied[k-1].Revision < hb.Revision {
		run.Applied = append(run.Applied, Mark{Revision: hb.Revision, Seq: seq, At: at})
		if len(run.Applied) > maxMarks {
			run.Applied = slices.Clone(run.Applied[1:])
		}
	}
}

// heardFrom keeps the spans of hearing.
func (n *Node) heardFrom(seq uint64, at time.Time, l *Listening) {
	if k := len(n.Hearing); k > 0 {
		last := &n.Hearing[k-1]
		listened := at.Sub(last.To)
		if listened > Gap {
			listened = l.Within(last.To, at)
		}
		if listened <= Gap {
			last.To = at
			return
		}
		n.gap(events.NodeAway{From: last.To, To: at, FromHeartbeat: n.Heard.Seq, ToHeartbeat: seq, Listened: events.Duration(listened)})
	}
	n.Hearing = append(n.Hearing, Span{at, at})
	if len(n.Hearing) > maxHearing {
		n.Hearing = slices.Clone(n.Hearing[1:])
	}
}

// HeardSince is since when the node has been heard without a gap, zero if it
// was never heard.
func (n *Node) HeardSince() time.Time {
	if k := len(n.Hearing); k > 0 {
		return n.Hearing[k-1].From
	}
	return time.Time{}
}

// PresentAt says whether the node was heard lately as of a moment: no more than
// presence of listening time before it.
func (n *Node) PresentAt(t time.Time, presence time.Duration, l *Listening) bool {
	for i := len(n.Hearing) - 1; i >= 0; i-- {
		if s := n.Hearing[i]; !s.From.After(t) {
			return !s.To.Before(t) || l.Within(s.To, t) <= presence
		}
	}
	return false
}
