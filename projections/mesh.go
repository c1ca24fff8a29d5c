package projections

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"noxmesh/events"
)

// Mesh is everything that is known, as of two stream positions.
type Mesh struct {
	// EventSeq and HeartbeatSeq are the last sequences applied. Every view
	// states them.
	EventSeq     uint64
	HeartbeatSeq uint64

	Nodes    map[string]*Node
	Rollouts map[string]*Rollout
	Releases map[string]*Release // by release key
	Users    map[string]*User
	// Invites are the nodes that invites were issued for, by invite.
	Invites map[string]string
	// AccessSeq is the last event that changed whose key is let in.
	AccessSeq uint64
	// Keys are the signing keys by role, each signed by the one before it; the
	// last one signs. What is in the log and does not follow from the key before
	// it, because somebody else wrote it there, is left out. KeySeq is the last
	// event on each role's subject.
	Keys      map[string][]events.Rotation
	KeySeq    map[string]uint64
	Listening Listening
	// ReportSeq is the highest sequence of REPORTS that became an event.
	ReportSeq uint64
	// Commands are the latest commands that led to an event, by id: the
	// aggregate's id. A command that is given twice is carried out once.
	Commands     map[string]string
	CommandOrder []string // in order, to forget the oldest
	// Skipped counts events of types this program does not know.
	Skipped int

	touched *Touched // nil: nobody asked for it
}

// NewMesh is the state before the first event.
func NewMesh() *Mesh {
	return &Mesh{
		Nodes:    map[string]*Node{},
		Rollouts: map[string]*Rollout{},
		Releases: map[string]*Release{},
		Commands: map[string]string{},
		Users:    map[string]*User{},
		Invites:  map[string]string{},
		Keys:     map[string][]events.Rotation{},
		KeySeq:   map[string]uint64{},
	}
}

// User is a person or a tool that was given a credential.
type User struct {
	Role      string
	PublicKey string   // of the newest credential
	Former    []string // keys of credentials before it
	Revoked   bool
	LastSeq   uint64    // last event on the user's subject
	At        time.Time // of that event
}

func (m *Mesh) formerKeys(user string) []string {
	u := m.Users[user]
	if u == nil {
		return nil
	}
	return append(slices.Clone(u.Former), u.PublicKey)
}

// ErrGap means that events are missing between two that were read.
var ErrGap = errors.New("events are missing from the log")

// ApplyEvent folds one event.
func (m *Mesh) ApplyEvent(rec events.Record) error {
	switch {
	case rec.Seq <= m.EventSeq:
		return nil
	case rec.Seq != m.EventSeq+1:
		return fmt.Errorf("%w: event %d follows %d", ErrGap, rec.Seq, m.EventSeq)
	}
	fact, err := rec.Fact()
	if errors.Is(err, events.ErrUnknownType) {
		m.EventSeq = rec.Seq
		m.Skipped++
		return nil
	}
	if err != nil {
		return fmt.Errorf("event %d: %w", rec.Seq, err)
	}
	m.EventSeq = rec.Seq
	m.command(rec.Event)
	switch f := fact.(type) {
	case *events.NodeEnrolled, *events.NodeRevoked, *events.NodeDecommissioned, *events.NodeJoinRefused,
		*events.UserAdded, *events.UserRevoked:
		m.AccessSeq = rec.Seq
	case *events.NodeInvited:
		m.Invites[f.Invite] = rec.Event.Subject
	}
	switch f := fact.(type) {
	case *events.ReleaseAdded:
		if r := m.Releases[rec.Event.Subject]; r != nil && r.SHA256 == f.SHA256 {
			r.Signature, r.LastSeq = f.Signature, rec.Seq // the same package, signed anew
		} else {
			m.Releases[rec.Event.Subject] = &Release{Release: f.Release, Added: rec.Event.Time, Seq: rec.Seq, LastSeq: rec.Seq}
		}
	case *events.ReleaseHeld:
		if r := m.Releases[rec.Event.Subject]; r != nil {
			r.Held, r.LastSeq = &FactOf[events.ReleaseHeld]{rec.Seq, rec.Event.Time, *f}, rec.Seq
		}
	case *events.ReleaseHoldLifted:
		if r := m.Releases[rec.Event.Subject]; r != nil {
			r.Held, r.LiftedSeq, r.LastSeq = nil, rec.Seq, rec.Seq
		}
	case *events.Declared:
		n := m.node(rec.Event.Subject)
		before := n.Declaration
		n.declared(rec, *f)
		if r := m.Rollouts[f.Because.Rollout]; r != nil {
			r.declared(*f, before, rec.Seq)
		}
	case *events.NodeDecommissioned:
		m.node(rec.Event.Subject).fact(rec, f)
		for _, r := range m.Rollouts {
			r.decommissioned(rec.Event.Subject, rec.Seq)
		}
	case *events.UserAdded:
		m.Users[rec.Event.Subject] = &User{Role: f.Role, PublicKey: f.PublicKey, Former: m.formerKeys(rec.Event.Subject), LastSeq: rec.Seq, At: rec.Event.Time}
	case *events.UserRevoked:
		if u := m.Users[rec.Event.Subject]; u != nil {
			u.Revoked, u.LastSeq, u.At = true, rec.Seq, rec.Event.Time
		}
	case *events.KeyTrusted:
		m.KeySeq[rec.Event.Subject] = rec.Seq
		if f.Role == rec.Event.Subject && m.follows(f.Rotation) {
			m.Keys[f.Role] = append(m.Keys[f.Role], f.Rotation)
		}
	case *events.NodeInvited, *events.NodeJoinRefused, *events.NodeRevoked:
		m.node(rec.Event.Subject).fact(rec, fact)
	case *events.NodeEnrolled, *events.NodeConfirmed, *events.NodeRolledBack,
		*events.NodeRefused, *events.NodeFailedToApply, *events.NodeReportRejected, *events.NodeAway:
		m.node(rec.Event.Subject).fact(rec, fact)
		if f, ok := fact.(interface{ GetReceipt() events.Receipt }); ok {
			m.ReportSeq = max(m.ReportSeq, f.GetReceipt().ReportSeq)
		}
	default:
		if m.Rollouts[rec.Event.Subject] == nil {
			m.Rollouts[rec.Event.Subject] = &Rollout{ID: rec.Event.Subject}
		}
		r := m.Rollouts[rec.Event.Subject]
		r.apply(rec, fact)
		if f, ok := fact.(*events.RolloutStarted); ok {
			m.claim(r, f.Cohort)
		}
	}
	m.touchedBy(rec.Event, fact)
	return nil
}

// follows says whether a key may sign from now on: it is the first of its role,
// or signed by the one that signs now.
func (m *Mesh) follows(r events.Rotation) bool {
	chain := m.Keys[r.Role]
	if len(chain) == 0 {
		return r.Signature == "" && events.CheckKey(r.Role, r.Key) == nil
	}
	return !slices.ContainsFunc(chain, func(old events.Rotation) bool { return old.Key == r.Key }) &&
		r.Verify(chain[len(chain)-1].Key) == nil
}

// Key gives the public key of a role that signs now, empty if there is none.
func (m *Mesh) Key(role string) string {
	chain := m.Keys[role]
	if len(chain) == 0 {
		return ""
	}
	return chain[len(chain)-1].Key
}

// Rotations lead from the first keys that nodes pin to the ones that sign now.
func (m *Mesh) Rotations() []events.Rotation {
	var out []events.Rotation
	for _, role := range []string{events.KeyDelivery, events.KeyRelease} {
		if chain := m.Keys[role]; len(chain) > 1 {
			out = append(out, chain[1:]...)
		}
	}
	return out
}

// Signed says whether the key that signs releases now has signed one, and why
// not. A mesh of before there were keys has nothing to ask for.
func (m *Mesh) Signed(r events.Release) error {
	key := m.Key(events.KeyRelease)
	if key == "" {
		return nil
	}
	return events.VerifyRelease(key, r)
}

// claim makes a rollout the newest of its nodes.
func (m *Mesh) claim(r *Rollout, cohort []string) {
	for _, id := range cohort {
		n := m.node(id)
		if old := m.Rollouts[n.Rollout]; old != nil {
			if old.Claims--; old.Claims == 0 && !old.State.Open() && old.State != Reverted {
				old.forget()
			}
		}
		n.Rollout = r.ID
		r.Claims++
	}
}

// ApplyHeartbeat folds one message of HEARTBEATS: a node's heartbeat or the
// mesh's own pulse.
func (m *Mesh) ApplyHeartbeat(msg events.Message) {
	if msg.Seq <= m.HeartbeatSeq {
		return
	}
	m.HeartbeatSeq = msg.Seq
	id, _, err := events.SubjectNode(msg.Subject)
	if err != nil {
		return
	}
	if id == events.PulseID {
		var p events.Pulse
		if json.Unmarshal(msg.Data, &p) == nil {
			m.Listening.Pulse(p.Since, msg.Stored)
		}
		return
	}
	n := m.node(id)
	defer m.touchedBeat(n, n.standing())
	hb, err := events.DecodeHeartbeat(msg.Data)
	if err != nil {
		n.Malformed++
		n.MalformedReason = events.Printable(err.Error(), 200)
		return
	}
	n.heard(msg.Seq, msg.Stored, hb, &m.Listening)
}

// Heard folds a heartbeat that is decoded already; a simulation has no use for
// the bytes. Everything else goes through [Mesh.ApplyHeartbeat].
func (m *Mesh) Heard(node string, seq uint64, at time.Time, hb events.Heartbeat) {
	if seq > m.HeartbeatSeq {
		m.HeartbeatSeq = seq
		n := m.node(node)
		defer m.touchedBeat(n, n.standing())
		n.heard(seq, at, hb, &m.Listening)
	}
}

// Pulse folds a pulse that is decoded already, as [Mesh.Heard].
func (m *Mesh) Pulse(seq uint64, at, since time.Time) {
	if seq > m.HeartbeatSeq {
		m.HeartbeatSeq = seq
		m.Listening.Pulse(since, at)
	}
}

// maxCommands bounds how far back a repeated command is recognised.
const maxCommands = 1024

func (m *Mesh) command(e events.Event) {
	// The cause of what a node reports is the report's id, which is the node's to
	// choose: it must not pass for a command, nor push commands out.
	if strings.Contains(e.Actor, ":") {
		return
	}
	if e.Cause == "" || m.Commands[e.Cause] != "" {
		return
	}
	m.Commands[e.Cause] = e.Subject
	m.CommandOrder = append(m.CommandOrder, e.Cause)
	if len(m.CommandOrder) > maxCommands {
		delete(m.Commands, m.CommandOrder[0])
		m.CommandOrder = slices.Delete(m.CommandOrder, 0, 1)
	}
}

func (m *Mesh) node(id string) *Node {
	n := m.Nodes[id]
	if n == nil {
		n = &Node{ID: id}
		m.Nodes[id] = n
	}
	return n
}

// Enrolled gives a node that is enrolled, or nil.
func (m *Mesh) Enrolled(id string) *Node {
	if n := m.Nodes[id]; n != nil && n.EnrolledSeq != 0 {
		return n
	}
	return nil
}
