package rollout

import (
	"fmt"
	"slices"
	"time"

	"noxmesh/events"
	"noxmesh/projections"
)

// Pending is an event that should be appended, with the sequence that must
// still be the last one on its subject.
type Pending struct {
	ID       string // empty: any fresh id
	Subject  string // the aggregate's id
	Expected uint64
	Cause    string
	Fact     events.Fact
}

// Decision is what should happen next in one rollout: events to append, in
// order, or the reasons for waiting.
type Decision struct {
	Events  []Pending
	Waiting []string
}

// Decide says what should happen next in a rollout. It is pure: the same state
// and time give the same decision, on whichever server.
func Decide(m *projections.Mesh, id string, now time.Time) Decision {
	r := m.Rollouts[id]
	if r == nil {
		return Decision{}
	}
	switch r.State {
	case projections.Halted, projections.Aborted:
		return recalls(m, r)
	case projections.Running:
		if other := m.OpenOver(r.Plan.Cohort, r.StartSeq); other != nil {
			return waiting("rollout %s started earlier over some of these nodes and is %s", other.ID, other.State)
		}
		if b := r.OpenBatch(); b != nil {
			if d := declarations(m, r, b); len(d.Events) > 0 {
				return d
			}
			return judgeBatch(m, r, b, now)
		}
		return nextBatch(m, r)
	}
	return Decision{}
}

func waiting(format string, args ...any) Decision {
	return Decision{Waiting: []string{fmt.Sprintf(format, args...)}}
}

func (d Decision) with(p Pending) Decision {
	d.Events = append(d.Events, p)
	return d
}

func onRollout(r *projections.Rollout, fact events.Fact) Decision {
	return Decision{}.with(Pending{Subject: r.ID, Expected: r.Seq, Cause: r.EventID, Fact: fact})
}

// declarations are the ones of an open batch that are not in the log yet.
func declarations(m *projections.Mesh, r *projections.Rollout, b *projections.Batch) Decision {
	var d Decision
	cause := events.DeclarationCause{Kind: events.CauseBatch, Rollout: r.ID, Batch: b.Number}
	for _, node := range b.Nodes {
		if _, done := b.Declared[node]; done {
			continue
		}
		n := m.Nodes[node]
		if n == nil || n.Heard == nil {
			continue // chosen by a heartbeat that is not read yet on this server
		}
		release, ok := releaseFor(r.Plan.Releases, n.Heard.Architecture)
		if !ok {
			continue // judged as not applied once the window has passed
		}
		spec := events.HostSpec{Release: release, Fallback: fallback(m, n), Retry: r.Plan.Retry}
		d = d.with(declare(n, cause, b.EventID, withHost(n.Declaration, spec)))
	}
	return d
}

func declare(n *projections.Node, cause events.DeclarationCause, causeID string, resources []events.Resource) Pending {
	return Pending{
		ID: events.DeclarationID(cause, n.ID), Subject: n.ID, Expected: n.DeclarationSeq(), Cause: causeID,
		Fact: &events.Declared{Node: n.ID, Revision: n.Revision() + 1, Because: cause, Resources: resources},
	}
}

func releaseFor(releases []events.Release, architecture string) (events.Release, bool) {
	i := slices.IndexFunc(releases, func(r events.Release) bool { return r.Architecture == architecture })
	if i < 0 {
		return events.Release{}, false
	}
	return releases[i], true
}

// fallback is the package of what the node runs now, where the mesh has it.
func fallback(m *projections.Mesh, n *projections.Node) *events.Release {
	if n.Heard.KnownGood == "" {
		return nil
	}
	if r := m.Releases[events.ReleaseKey(n.Heard.KnownGood, n.Heard.Architecture)]; r != nil {
		return &r.Release
	}
	return nil
}

// withHost is a declaration's resources with another host version, last.
func withHost(d *projections.Declaration, spec events.HostSpec) []events.Resource {
	out := []events.Resource{}
	if d != nil {
		for _, res := range d.Resources {
			if res.Type != events.ResourceHost {
				out = append(out, res)
			}
		}
	}
	return append(out, events.ResourceFromSpec(events.ResourceHost, events.HostPackage, spec))
}

// recalls are the declarations that give nodes their previous one back, as the
// rollout's end intended, and that are not in the log yet.
func recalls(m *projections.Mesh, r *projections.Rollout) Decision {
	var d Decision
	for _, node := range r.RecallIntended() {
		n := m.Nodes[node]
		if r.Recalled[node] || n == nil || n.Declaration == nil {
			continue
		}
		because := n.Declaration.Because
		if because.Kind != events.CauseBatch || because.Rollout != r.ID {
			continue // somebody declared something newer: that counts
		}
		previous := []events.Resource{}
		if n.Previous != nil {
			previous = n.Previous.Resources
		}
		cause := events.DeclarationCause{Kind: events.CauseRecall, Rollout: r.ID, Batch: because.Batch}
		d = d.with(declare(n, cause, r.EventID, previous))
	}
	return d
}

// Recallable are the nodes of an open batch that have not applied it yet.
func Recallable(m *projections.Mesh, r *projections.Rollout, b *projections.Batch) []string {
	var out []string
	if b == nil {
		return nil
	}
	for _, node := range b.Nodes {
		n := m.Nodes[node]
		if n == nil {
			continue
		}
		if rolledBackFrom(n, r, b) != nil {
			continue
		}
		if n.Heard != nil && (n.Heard.Version == r.Plan.Version || n.Heard.Revision >= b.Declared[node] && b.Declared[node] > 0) {
			continue
		}
		out = append(out, node)
	}
	return out
}

// judgeBatch passes or halts an open batch, or says what it waits for.
func judgeBatch(m *projections.Mesh, r *projections.Rollout, b *projections.Batch, now time.Time) Decision {
	passed := []events.NodePassed{}
	var failures []events.Failure
	var wait []string
	for _, node := range b.Nodes {
		switch v := Judge(m, r, b, node, now); {
		case v.Passed != nil:
			passed = append(passed, *v.Passed)
		case v.Failure != nil:
			failures = append(failures, *v.Failure)
		default:
			wait = append(wait, node+": "+v.Waiting)
		}
	}
	tolerated := r.Plan.Policy.MaxFailed
	if b.Number == 1 {
		tolerated = 0 // the canaries are chosen to be believed
	}
	if len(failures) > tolerated {
		return onRollout(r, halt(m, r, b, passed, failures))
	}
	if len(wait) > 0 {
		return Decision{Waiting: wait}
	}
	return onRollout(r, &events.BatchPassed{Batch: b.Number, Passed: passed, Failures: failures})
}

// nextBatch opens the next batch or completes the rollout.
func nextBatch(m *projections.Mesh, r *projections.Rollout) Decision {
	exposed := len(r.Exposed())
	left := len(r.Plan.Cohort) - exposed
	if left == 0 {
		return onRollout(r, complete(r))
	}
	target, final := 0, false
	for i, t := range r.Plan.Targets {
		if t > exposed && len(r.Batches) <= i {
			target, final = t, i == len(r.Plan.Targets)-1
			break
		}
	}
	if target == 0 {
		// The last batch is behind us; who was absent then is the tail.
		return onRollout(r, complete(r))
	}
	opened, there := choose(m, r, target-exposed)
	span := m.Listening.Last()
	if listened := span.To.Sub(span.From); there < left && listened < time.Duration(r.Plan.Policy.Presence) {
		// Right after a start everybody looks absent. Who is there shows once
		// the mesh has listened for as long as a node may pause.
		return waiting("listening for %s only; a batch is chosen after %s, or once all %d nodes left are heard", round(listened), r.Plan.Policy.Presence, left)
	}
	if len(opened.Nodes) > 0 {
		return onRollout(r, opened)
	}
	since := r.Started
	if k := len(r.Batches); k > 0 {
		since = r.Batches[k-1].PassedAt
	}
	if final && exposed > 0 && m.Listening.Since(since) >= time.Duration(r.Plan.Policy.Window) {
		return onRollout(r, complete(r))
	}
	return waiting("none of the %d nodes left was heard in the last %s", left, r.Plan.Policy.Presence)
}

func complete(r *projections.Rollout) *events.RolloutCompleted {
	out := &events.RolloutCompleted{}
	for _, b := range r.Batches {
		if b.Passed != nil {
			out.Passed += len(b.Passed.Passed)
			out.Failed += len(b.Passed.Failures)
		}
	}
	exposed := r.Exposed()
	for _, id := range r.Plan.Cohort {
		if !exposed[id] {
			out.Tail = append(out.Tail, id)
		}
	}
	return out
}
