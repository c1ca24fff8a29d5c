package rollout_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"sort"
	"strings"
	"time"

	"noxmesh/events"
	"noxmesh/projections"
	"noxmesh/rollout"
)

// world is a mesh in memory: a log with expected sequences, nodes that behave
// in known ways, and a clock that only moves when told to. It stands in for the
// broker and the machines; what decides in it is the real thing.
type world struct {
	now    time.Time
	mesh   *projections.Mesh
	last   map[string]uint64 // last sequence on each stream subject
	beats  uint64
	deaf   bool
	since  time.Time // of the pulse
	nodes  map[string]*fakeNode
	trace  strings.Builder
	quiet  bool
	starts int
	// onEvent and onBeat hear of everything that is stored.
	onEvent  func(events.Record)
	onBeat   func(events.Message)
	records  []events.Record
	messages []events.Message
}

type fakeNode struct {
	id, version, knownGood, start string
	declared, applied             uint64
	away                          bool
	mode                          string // upgrade, crash, stuck, loop, die, refuse
	due                           time.Time
	reported                      bool
}

const (
	pulseEvery = 5 * time.Second
	beatEvery  = 15 * time.Second
)

func newWorld() *world {
	t := time.Date(2026, 9, 1, 12, 0, 0, 0, time.UTC)
	return &world{now: t, since: t, mesh: projections.NewMesh(), last: map[string]uint64{}, nodes: map[string]*fakeNode{}}
}

var errConflict = errors.New("conflict")

// append is the log: it keeps the expected-sequence promise.
func (w *world) append(e events.Event, expected uint64) error {
	subject, err := e.StreamSubject()
	if err != nil {
		return err
	}
	if w.last[subject] != expected {
		return errConflict
	}
	rec := events.Record{Seq: w.mesh.EventSeq + 1, Event: e}
	w.last[subject] = rec.Seq
	w.records = append(w.records, rec)
	if err := w.mesh.ApplyEvent(rec); err != nil {
		return err
	}
	if !w.quiet {
		fact, err := e.Fact()
		if err != nil {
			return err
		}
		fmt.Fprintf(&w.trace, "%s %3d %s\n", w.now.Format("15:04:05"), rec.Seq, traceLine(e, fact))
	}
	if d, err := e.Fact(); err == nil {
		if d, ok := d.(*events.Declared); ok {
			w.nodes[d.Node].hear(w, d)
		}
	}
	if w.onEvent != nil {
		w.onEvent(rec)
	}
	return nil
}

func traceLine(e events.Event, fact events.Fact) string {
	name := strings.TrimSuffix(strings.TrimPrefix(e.Type, "mesh."), ".v1")
	switch f := fact.(type) {
	case *events.BatchOpened:
		nodes := append([]string(nil), f.Nodes...)
		sort.Strings(nodes)
		return fmt.Sprintf("%s %s: batch %d: %s", e.Subject, name, f.Batch, strings.Join(nodes, " "))
	case *events.BatchPassed:
		s := fmt.Sprintf("%s %s: batch %d: %d passed", e.Subject, name, f.Batch, len(f.Passed))
		for _, x := range f.Failures {
			s += fmt.Sprintf("; %s %s", x.Node, x.Kind)
		}
		return s
	case *events.RolloutHalted:
		s := fmt.Sprintf("%s %s: %s: %s (undeclared %d, listened %s)", e.Subject, name, f.Diagnosis, f.Reason, f.Undeclared, f.Listened)
		for _, x := range f.Failures {
			s += fmt.Sprintf("\n             %s: %s: %s", x.Node, x.Kind, x.Detail)
		}
		if len(f.Recall) > 0 {
			s += "\n             recall: " + strings.Join(f.Recall, " ")
		}
		return s
	case *events.Declared:
		v := "-"
		if h := f.Host(); h != nil {
			v = h.Version
			if h.Retry {
				v += " (retry)"
			}
		}
		return fmt.Sprintf("%s %s: revision %d, host %s, %s", e.Subject, name, f.Revision, v, f.Because.Kind)
	case *events.RolloutCompleted:
		return fmt.Sprintf("%s %s: %d passed, %d failed, tail %v", e.Subject, name, f.Passed, f.Failed, f.Tail)
	case *events.RolloutStarted:
		return fmt.Sprintf("%s %s: %s over %d nodes, targets %v", e.Subject, name, f.Version, len(f.Cohort), f.Targets)
	case *events.NodeRolledBack:
		return fmt.Sprintf("%s %s: from %s to %s", e.Subject, name, f.From, f.To)
	case *events.NodeRefused:
		return fmt.Sprintf("%s %s: %s", e.Subject, name, f.Reason)
	}
	return e.Subject + " " + name
}

func (w *world) event(subject string, fact events.Fact) events.Event {
	return events.New(subject, fact, events.Origin{Source: "test", Actor: "test"}, w.now)
}

func (w *world) must(err error) {
	if err != nil {
		panic(err)
	}
}

func (w *world) enroll(id, version string, labels map[string]string) {
	w.must(w.append(w.event(id, &events.NodeEnrolled{Labels: labels, PublicKey: "U"}), 0))
	w.nodes[id] = &fakeNode{id: id, version: version, knownGood: version, start: id + "-0", mode: "upgrade"}
}

func (w *world) release(version string) {
	r := events.Release{Version: version, Architecture: "amd64", File: "f", Size: 1, SHA256: strings.Repeat("a", 64)}
	w.must(w.append(w.event(r.Key(), &events.ReleaseAdded{Release: r}), 0))
}

// hear is the node getting its declaration, however it gets there.
func (n *fakeNode) hear(w *world, d *events.Declared) {
	n.declared = d.Revision
	n.due = w.now.Add(4 * time.Second)
}

// tick is what the node does in one second.
func (n *fakeNode) tick(w *world) {
	if n.away || w.deaf || n.declared == n.applied || w.now.Before(n.due) {
		return
	}
	target := n.knownGood
	if d := w.mesh.Nodes[n.id].Declaration; d != nil {
		if h := d.Host(); h != nil {
			target = h.Version
		}
	}
	if target == n.version {
		n.applied = n.declared
		return
	}
	switch n.mode {
	case "upgrade":
		n.restart(w, target)
		n.knownGood, n.applied = target, n.declared
	case "loop":
		n.restart(w, target)
		n.knownGood, n.applied = target, n.declared
		n.declared++ // never done: the next tick starts again
		n.due = w.now.Add(beatEvery)
		n.applied = n.declared - 1
		n.mode = "looping"
	case "crash":
		if !n.reported {
			n.reported = true
			n.due = w.now.Add(10 * time.Second) // silent until the supervisor gives up
			n.version = ""
			return
		}
		n.restart(w, n.knownGood)
		n.applied = n.declared - 1
		n.declared = n.applied // refuses it from now on
		f := &events.NodeRolledBack{From: target, To: n.knownGood, Revision: n.applied + 1, Reason: "3 starts failed"}
		f.SetReceipt(events.Receipt{ReportID: n.id + target})
		w.must(w.append(w.event(n.id, f), w.mesh.Nodes[n.id].EventSeq))
	case "refuse":
		f := &events.NodeRefused{Version: target, Revision: n.declared, Reason: "no parachute"}
		n.declared = n.applied
		w.must(w.append(w.event(n.id, f), w.mesh.Nodes[n.id].EventSeq))
	case "die":
		n.version = ""
	case "stuck":
	}
}

func (n *fakeNode) restart(w *world, version string) {
	w.starts++
	n.start = fmt.Sprintf("%s-%d", n.id, w.starts)
	n.version = version
}

func (n *fakeNode) beat(w *world) {
	if n.away || n.version == "" {
		return
	}
	if n.mode == "looping" {
		n.restart(w, n.version)
	}
	raw, err := json.Marshal(events.Heartbeat{StartID: n.start, Version: n.version, KnownGood: n.knownGood,
		Revision: n.applied, Architecture: "amd64", Retained: true})
	w.must(err)
	w.store(n.id, raw)
}

func (w *world) store(id string, raw []byte) {
	w.beats++
	msg := events.Message{Seq: w.beats, Subject: events.HeartbeatSubject(id), Stored: w.now, Data: raw}
	w.messages = append(w.messages, msg)
	w.mesh.ApplyHeartbeat(msg)
	if w.onBeat != nil {
		w.onBeat(msg)
	}
}

// ids in order.
func (w *world) ids() []string {
	var out []string
	for id := range w.nodes {
		out = append(out, id)
	}
	sort.Strings(out)
	return out
}

// advance lets time pass, a second at a time.
func (w *world) advance(d time.Duration) {
	for end := w.now.Add(d); w.now.Before(end); {
		w.now = w.now.Add(time.Second)
		second := w.now.Unix()
		for i, id := range w.ids() {
			n := w.nodes[id]
			n.tick(w)
			if !w.deaf && (second+int64(i))%int64(beatEvery/time.Second) == 0 {
				n.beat(w)
			}
		}
		if !w.deaf && second%int64(pulseEvery/time.Second) == 0 {
			raw, err := json.Marshal(events.Pulse{Server: "test", Since: w.since})
			w.must(err)
			w.store(events.PulseID, raw)
		}
		w.decide()
	}
}

// decide runs the stager until there is nothing left to do.
func (w *world) decide() {
	for !w.deaf {
		wrote := false
		for _, r := range w.mesh.InOrder() {
			for _, p := range rollout.Decide(w.mesh, r.ID, w.now).Events {
				if w.carryOut(p) == nil {
					wrote = true
				}
			}
		}
		if !wrote {
			return
		}
	}
}

func (w *world) carryOut(p rollout.Pending) error {
	e := events.New(p.Subject, p.Fact, events.Origin{Source: "test", Actor: "stager", Cause: p.Cause}, w.now)
	if p.ID != "" {
		e.ID = p.ID
	}
	return w.append(e, p.Expected)
}

func (w *world) start(req rollout.Request) (string, error) {
	plan, err := rollout.Plan(w.mesh, req)
	if err != nil {
		return "", err
	}
	id := fmt.Sprintf("r%d", len(w.mesh.Rollouts)+1)
	return id, w.append(w.event(id, plan), 0)
}
