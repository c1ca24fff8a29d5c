package rollout

import (
	"fmt"
	"time"

	"noxmesh/events"
	"noxmesh/projections"
)

// late notes what came after a batch was closed: a node given up as silent that
// is heard and passes, one that passed and rolled back later, and every node of
// the tail.
func late(m *projections.Mesh, r *projections.Rollout, now time.Time) Decision {
	open := 0
	if b := r.OpenBatch(); b != nil && r.State != projections.Halted && r.State.Open() {
		open = b.Number
	}
	var out events.RolloutAmended
	judges := map[int]*judge{}
	wait, due := 0, false
	for _, id := range r.Plan.Cohort {
		member, n := r.Members[id], m.Nodes[id]
		if member.Batch == 0 || member.Batch == open || n == nil {
			continue
		}
		j := judges[member.Batch]
		if j == nil {
			j = newJudge(m, r, batchOf(r, member.Batch), now, false)
			judges[member.Batch] = j
		}
		v := j.late(n, member)
		switch {
		case v.Passed != nil:
			out.Passed = append(out.Passed, *v.Passed)
			due = due || j.passedFor(n, member) >= lateEvery
		case v.Failure != nil:
			out.Failures = append(out.Failures, *v.Failure)
		case member.Outcome == projections.Waiting:
			wait++
		}
	}
	if len(out.Passed)+len(out.Failures) == 0 || len(out.Failures) == 0 && wait > 0 && !due {
		return Decision{}
	}
	out.AsOf = asOf(m)
	return onRollout(r, &out)
}

// lateEvery is how long good news may wait for more of it: after a halt many
// nodes pass one after the other, and each is not an event of its own.
const lateEvery = 30 * time.Second

// passedFor is for how long it has been known that a node passed.
func (j *judge) passedFor(n *projections.Node, member *projections.Member) time.Duration {
	mark, _ := runOn(n, j.r.Plan.Version).AppliedSince(member.Revision)
	return j.m.Listening.Last().To.Sub(mark.At) - time.Duration(j.r.Plan.Policy.Soak)
}

func batchOf(r *projections.Rollout, number int) *projections.Batch {
	for i := range r.Batches {
		if r.Batches[i].Number == number {
			return &r.Batches[i]
		}
	}
	return nil
}

// late is the verdict on a node whose batch is closed, empty if nothing new is
// known.
func (j *judge) late(n *projections.Node, member *projections.Member) Verdict {
	switch member.Outcome {
	case projections.Decommissioned, projections.GivenBack, projections.Outcome(events.RolledBack):
		return Verdict{}
	}
	if member.Revision == 0 {
		return Verdict{}
	}
	if rolledBackFrom(n, j.r, j.b, member) != nil {
		v, _ := j.spoken(n, member)
		return v
	}
	switch member.Outcome {
	case projections.Waiting:
		if !declaredBy(n, j.r) {
			return Verdict{} // it is somebody else's now
		}
		return j.node(n.ID)
	case projections.Outcome(events.Silent), projections.Outcome(events.NotApplied):
		if v := j.node(n.ID); v.Passed != nil || v.Spoken && events.FailureKind(member.Outcome) != v.Failure.Kind {
			return v
		}
	}
	return Verdict{}
}

// holdOnLateEvidence holds a release that completed, when so many nodes have
// rolled back since that it would have halted.
func holdOnLateEvidence(m *projections.Mesh, r *projections.Rollout) Decision {
	var d Decision
	for _, rel := range r.Plan.Releases {
		have := m.Releases[rel.Key()]
		if have == nil || have.Held != nil || have.SHA256 != rel.SHA256 {
			continue // held already, or rebuilt since
		}
		t := tallyOf(r, nil, have.LiftedSeq)
		t.notApplied = 0
		why, yes := t.tooMany()
		if !yes || t.broken == acceptedBroken(r, have.LiftedSeq) {
			continue
		}
		d = d.with(Pending{Subject: rel.Key(), Expected: have.LastSeq, Cause: r.EventID, Fact: &events.ReleaseHeld{
			Reason:  fmt.Sprintf("late evidence in rollout %s: %s", r.ID, why),
			Rollout: r.ID, Evidence: events.Evidence{Events: []uint64{r.Seq}}, AsOf: asOf(m),
		}})
	}
	return d
}

// acceptedBroken counts the failures that were known, and tolerated, when the
// rollout completed.
func acceptedBroken(r *projections.Rollout, after uint64) int {
	n := 0
	for _, member := range r.Members {
		if o := events.FailureKind(member.Outcome); (o == events.RolledBack || o == events.Unstable) &&
			member.Batch > r.Accepted && member.Since > after && member.Since < r.CompletedSeq {
			n++
		}
	}
	return n
}

// tailShare bounds the nodes of the tail that are declared and not judged yet:
// one for this many that passed, and one at least.
const tailShare = 20

// followTail declares nodes that were absent when the rollout completed and are
// heard again.
func followTail(m *projections.Mesh, r *projections.Rollout) Decision {
	if m.HeldOf(r.Plan.Releases) != nil {
		return Decision{}
	}
	passed, unjudged := judged(r)
	for i := range r.Batches {
		if b := &r.Batches[i]; b.Tail {
			if d := declarations(m, r, b); len(d.Events) > 0 {
				return d
			}
		}
	}
	room := max(1, passed/tailShare) - unjudged
	var nodes []string
	for _, id := range r.Plan.Cohort {
		member, n := r.Members[id], m.Nodes[id]
		// One that was given up as silent and taken back is in the same place.
		absent := member.Free() || member.Recalled && member.Outcome == projections.Outcome(events.Silent)
		if len(nodes) < room && absent && present(m, n, r.Plan.Policy) && n.Rollout == r.ID {
			nodes = append(nodes, id)
		}
	}
	if len(nodes) == 0 {
		return Decision{}
	}
	opened := open(m, r, len(r.Plan.Targets)+1, nodes)
	opened.Tail = true
	return onRollout(r, opened)
}

// judged counts the nodes that passed, and those that were declared the version
// and are still waited for.
func judged(r *projections.Rollout) (passed, unjudged int) {
	for _, member := range r.Members {
		switch member.Outcome {
		case projections.Passed:
			passed++
		case projections.Waiting:
			unjudged++
		}
	}
	return passed, unjudged
}
