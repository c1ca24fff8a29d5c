package projections

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"noxmesh/events"
)

// Mesh is everything that is known, as of two stream positions.
type Mesh struct {
	// EventSeq and HeartbeatSeq are the last sequences applied. Every view
	// states them.
	EventSeq     uint64
	HeartbeatSeq uint64

	Nodes     map[string]*Node
	Rollouts  map[string]*Rollout
	Releases  map[string]*Release // by release key
	Listening Listening
	// ReportSeq is the highest sequence of REPORTS that became an event.
	ReportSeq uint64
	// Commands are the latest commands that led to an event, by id: the
	// aggregate's id. A command that is given twice is carried out once.
	Commands map[string]string
	commands []string // in order, to forget the oldest
	// Skipped counts events of types this program does not know.
	Skipped int
}

// NewMesh is the state before the first event.
func NewMesh() *Mesh {
	return &Mesh{
		Nodes:    map[string]*Node{},
		Rollouts: map[string]*Rollout{},
		Releases: map[string]*Release{},
		Commands: map[string]string{},
	}
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
	fact, err := rec.Event.Fact()
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
	case *events.ReleaseAdded:
		m.Releases[rec.Event.Subject] = &Release{Release: f.Release, Added: rec.Event.Time, Seq: rec.Seq}
	case *events.Declared:
		m.node(rec.Event.Subject).declared(rec, *f)
		if r := m.Rollouts[f.Because.Rollout]; r != nil {
			r.declared(*f)
		}
	case *events.NodeEnrolled, *events.NodeConfirmed, *events.NodeRolledBack,
		*events.NodeRefused, *events.NodeFailedToApply, *events.NodeReportRejected:
		m.node(rec.Event.Subject).fact(rec, fact)
		if f, ok := fact.(interface{ GetReceipt() events.Receipt }); ok {
			m.ReportSeq = max(m.ReportSeq, f.GetReceipt().ReportSeq)
		}
	default:
		if m.Rollouts[rec.Event.Subject] == nil {
			m.Rollouts[rec.Event.Subject] = &Rollout{ID: rec.Event.Subject}
		}
		m.Rollouts[rec.Event.Subject].apply(rec, fact)
	}
	return nil
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
	hb, err := events.DecodeHeartbeat(msg.Data)
	if err != nil {
		n.Malformed++
		n.MalformedReason = events.Printable(err.Error(), 200)
		return
	}
	n.heard(msg, hb)
}

// maxCommands bounds how far back a repeated command is recognised.
const maxCommands = 1024

func (m *Mesh) command(e events.Event) {
	if e.Cause == "" || m.Commands[e.Cause] != "" {
		return
	}
	m.Commands[e.Cause] = e.Subject
	m.commands = append(m.commands, e.Cause)
	if len(m.commands) > maxCommands {
		delete(m.Commands, m.commands[0])
		m.commands = slices.Clone(m.commands[1:])
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
