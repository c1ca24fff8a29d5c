package simulate

import (
	"errors"
	"fmt"
	"strings"

	"noxmesh/events"
	"noxmesh/rollout"
)

// ErrConflict: the log did not follow the sequence that the writer expected.
var ErrConflict = errors.New("conflict")

// append is the log: it keeps the expected-sequence promise. Everybody who
// follows the log hears of the event.
func (w *World) append(e events.Event, expected uint64) error {
	subject, err := e.StreamSubject()
	if err != nil {
		return err
	}
	if w.last[subject] != expected {
		return ErrConflict
	}
	fact, err := e.Fact() // as the codec gives it back
	if err != nil {
		return err
	}
	rec := events.Record{Seq: uint64(len(w.Records)) + 1, Event: e}
	w.last[subject] = rec.Seq
	w.Records = append(w.Records, rec)
	for _, s := range w.servers {
		s.event(rec)
	}
	switch f := fact.(type) {
	case *events.Declared:
		if n := w.nodes[f.Node]; n != nil {
			n.declared = f
			w.after(w.jitter()/10, n.look)
		}
	case *events.NodeDecommissioned:
		if n := w.nodes[e.Subject]; n != nil {
			n.Die()
		}
	case *events.NodeRolledBack, *events.NodeRefused, *events.NodeFailedToApply:
		w.news = true
	}
	w.fail(w.Laws.Check(rec, fact))
	w.fail(w.countsAddUp(e.Subject, fact))
	if w.OnEvent != nil {
		w.OnEvent(rec, fact)
	}
	return nil
}

// countsAddUp checks the first server's view after an event: each node of the
// cohort has exactly one outcome.
func (w *World) countsAddUp(subject string, fact events.Fact) error {
	s := w.servers[0]
	if s.lag > 0 || s.down {
		return nil
	}
	var ids []string
	switch f := fact.(type) {
	case *events.Declared:
		if f.Because.Kind == events.CauseBatch {
			return nil // moves no count, and is what there is most of
		}
		ids = []string{f.Because.Rollout}
	case *events.NodeDecommissioned:
		for id := range s.mesh.Rollouts {
			ids = append(ids, id)
		}
	default:
		ids = []string{subject}
	}
	for _, id := range ids {
		r := s.mesh.Rollouts[id]
		if r == nil {
			continue
		}
		sum := 0
		for _, n := range r.Counts() {
			sum += n
		}
		if sum != len(r.Plan.Cohort) {
			return fmt.Errorf("%w: counts %v of rollout %s do not add up to %d after event %d", ErrLaw, r.Counts(), id, len(r.Plan.Cohort), s.mesh.EventSeq)
		}
	}
	return nil
}

// event makes an event with an id that follows from its place, so that two runs
// of one seed are alike.
func (w *World) event(subject string, fact events.Fact, actor, cause string) events.Event {
	return events.NewWithID(fmt.Sprintf("sim-%d-%d", w.cfg.Seed, len(w.Records)+1), subject, fact,
		events.Origin{Source: "simulate", Actor: actor, Cause: cause}, w.Now())
}

// write appends what an operator or a world does. Who writes it looked at the
// log a moment ago, so there is no conflict.
func (w *World) write(subject string, fact events.Fact) {
	e := w.event(subject, fact, "operator", "")
	stream, err := e.StreamSubject()
	if err == nil {
		err = w.append(e, w.last[stream])
	}
	w.fail(err)
}

// AddRelease puts a version's packages into the mesh.
func (w *World) AddRelease(version string, architectures ...string) {
	for _, arch := range architectures {
		r := events.Release{Version: version, Architecture: arch, File: events.PackageFile(version, arch), Size: 1, SHA256: strings.Repeat("a", 64)}
		w.write(r.Key(), &events.ReleaseAdded{Release: r})
	}
}

// Hold makes the mesh declare a version to nobody, Lift ends that.
func (w *World) Hold(version, reason string) {
	for _, r := range w.Mesh().ReleasesOf(version) {
		w.write(r.Key(), &events.ReleaseHeld{Reason: reason})
	}
	w.decide()
}

// Lift is described at [World.Hold].
func (w *World) Lift(version, reason string) {
	for _, r := range w.Mesh().ReleasesOf(version) {
		w.write(r.Key(), &events.ReleaseHoldLifted{Reason: reason})
	}
	w.decide()
}

// Decommission takes a node out of the fleet.
func (w *World) Decommission(id string) {
	w.write(id, &events.NodeDecommissioned{Reason: "scrapped"})
	w.decide()
}

// Start starts a rollout and gives its id.
func (w *World) Start(req rollout.Request) (string, error) {
	plan, err := rollout.Plan(w.Mesh(), req)
	if err != nil {
		return "", err
	}
	id := fmt.Sprintf("r%d", len(w.Mesh().Rollouts)+1)
	w.write(id, plan)
	w.decide()
	return id, w.err
}

// Do appends what an operator commands about a rollout, as the API would:
// where the rollout has moved on since the command was made, it fails.
func (w *World) Do(id string, fact events.Fact) error {
	if err := w.append(w.event(id, fact, "operator", ""), w.Mesh().Rollouts[id].Seq); err != nil {
		return err
	}
	w.decide()
	return w.err
}

// Append carries out something that a stager wanted, now or earlier.
func (w *World) Append(p rollout.Pending) error {
	e := w.event(p.Subject, p.Fact, "stager", p.Cause)
	if p.ID != "" {
		e.ID = p.ID
	}
	return w.append(e, p.Expected)
}
