package rollout

import (
	"fmt"
	"slices"
	"time"

	"noxmesh/events"
	"noxmesh/projections"
)

// What the log alone says about a decision. The state is the one that the
// decision was made in, without any heartbeat: what rests on heartbeats is left
// to [Audit.again].

// stagerName is the actor of what the stager writes.
const stagerName = "stager"

func (a *Audit) check(d *decision, m *projections.Mesh) {
	if d.Command {
		a.checkCommand(d, m)
		return
	}
	if actor := d.rec.Event.Actor; actor != stagerName {
		d.finding("decided by "+actor, "only the stager decides that")
	}
	r := m.Rollouts[d.Rollout]
	if r == nil || r.StartSeq == 0 {
		d.finding(brief(d.fact), "there is no rollout %s that was started", d.Rollout)
		return
	}
	switch f := d.fact.(type) {
	case *events.BatchOpened:
		a.checkOpened(d, m, r, f)
	case *events.BatchPassed:
		a.checkPassed(d, m, r, f)
	case *events.RolloutHalted:
		a.checkHalted(d, m, r, f)
	case *events.RolloutPaused:
		d.checkFree(m, r)
		d.checkLink(m, f.Control, projections.Running, r, linkAway, "the link is away")
	case *events.RolloutResumed:
		d.checkFree(m, r)
		d.checkLink(m, f.Control, projections.Paused, r, linkBack, "the link is back")
		if r.Pause != nil && r.Pause.Because != events.ByLink {
			d.finding(brief(f), "an operator paused it: nobody else resumes that")
		}
	case *events.RolloutCompleted:
		d.checkCompleted(m, r, f)
	case *events.RolloutAmended:
		a.checkAmended(d, m, r, f)
	case *events.Declared:
		a.checkDeclared(d, m, r, f)
	case *events.ReleaseHeld:
		a.among(d, func() Decision { return holdOnLateEvidence(m, r) })
	}
}

// among looks for the decision among what the log alone leads to.
func (a *Audit) among(d *decision, decide func() Decision) {
	want := a.wants.at(d.Rollout, events.Position{Event: d.at}, decide).fact(d)
	if want == nil {
		d.finding(brief(d.fact), "nothing in the log leads to it")
	} else if recorded, policy := differences(d.fact, want); recorded != "" || policy != "" {
		d.finding(recorded, "%s", policy)
	}
}

// checkState says whether the rollout was in a state in which something can be
// decided.
func (d *decision) checkState(r *projections.Rollout, states ...projections.State) bool {
	if slices.Contains(states, r.State) {
		return true
	}
	d.finding(brief(d.fact), "the rollout is %s", r.State)
	return false
}

// checkFree says whether anything else had to be decided first.
func (d *decision) checkFree(m *projections.Mesh, r *projections.Rollout) {
	if other := m.OpenOver(r.Plan.Cohort, r.StartSeq); other != nil {
		d.finding(brief(d.fact), "to wait: rollout %s started earlier over some of these nodes and is %s", other.ID, other.State)
	}
	if held := m.HeldOf(r.Plan.Releases); held != nil {
		d.finding(brief(d.fact), "to halt: %s is held since event %d", held.Version, held.Held.Seq)
	}
}

func (a *Audit) checkOpened(d *decision, m *projections.Mesh, r *projections.Rollout, f *events.BatchOpened) {
	for i, seq := range f.Presence {
		if i < len(f.Nodes) && seq > 0 {
			a.cites(d, seq, f.Nodes[i], "shows the presence", nil)
		}
	}
	if f.Tail {
		d.checkTail(m, r, f)
		return
	}
	if !d.checkState(r, projections.Running) {
		return
	}
	if !d.checkBetween(m, r, f) {
		return
	}
	again, fresh, tries := d.checkNodes(r, f)
	s := stageWith(r, func() ([]string, bool) { return again, tries })
	if s.number == 0 {
		d.finding(brief(f), "nothing is left to be opened")
		return
	}
	if f.Stage != 0 && f.Stage != s.number { // there were no stages in 0.1
		d.finding(fmt.Sprintf("stage %d", f.Stage), "stage %d is next", s.number)
	}
	if fresh > s.fresh {
		d.finding(fmt.Sprintf("%d nodes that were not told before, in batch %d", fresh, f.Batch),
			"at most %d: the target of stage %d is %d of %d", s.fresh, s.number, r.Plan.Targets[s.number-1], len(r.Plan.Cohort))
	}
	if f.Retry != tries {
		d.finding(fmt.Sprintf("retry %v", f.Retry), "retry %v", tries)
	}
	if k := len(r.Batches); k > 0 && !r.Batches[k-1].Passed && !r.Batches[k-1].Tail {
		for _, id := range r.Plan.Cohort {
			member := r.Members[id]
			if member.Batch > 0 && member.Batch == r.Accepted && member.Outcome == projections.Waiting && !slices.Contains(again, id) {
				d.finding(brief(f), "%s is declared and not judged: it comes first", id)
			}
		}
	}
}

// checkNodes looks at who is in a batch: each in the cohort, and either never
// told, or told before and to be judged again.
func (d *decision) checkNodes(r *projections.Rollout, f *events.BatchOpened) (again []string, fresh int, tries bool) {
	if want := len(r.Batches) + 1; f.Batch != want {
		d.finding(fmt.Sprintf("batch %d", f.Batch), "batch %d is next", want)
	}
	if len(f.Nodes) == 0 || len(f.Presence) != len(f.Nodes) {
		d.finding(fmt.Sprintf("%d nodes and %d heartbeats that show their presence", len(f.Nodes), len(f.Presence)), "at least one node, and a heartbeat for each")
	}
	seen := map[string]bool{}
	for _, id := range f.Nodes {
		member := r.Members[id]
		recorded := fmt.Sprintf("%s is in batch %d", id, f.Batch)
		switch {
		case seen[id]:
			d.finding(recorded+" twice", "once")
		case member == nil:
			d.finding(recorded, "it is not in the cohort")
		case member.Free():
			fresh++
		case member.Outcome == projections.Waiting && r.Resume != nil && member.Batch <= r.Accepted:
			again = append(again, id)
		case member.Outcome.Failed() && r.Resume != nil && r.Resume.Mode == events.ResumeRetry && member.Batch <= r.Accepted:
			again, tries = append(again, id), true
		default:
			d.finding(recorded, "it is %s in batch %d, event %d", member.Outcome, member.Batch, member.Since)
		}
		seen[id] = true
	}
	return again, fresh, tries
}

// checkTail looks at a batch of nodes that were absent when the rollout completed.
func (d *decision) checkTail(m *projections.Mesh, r *projections.Rollout, f *events.BatchOpened) {
	if !d.checkState(r, projections.Completed) {
		return
	}
	if held := m.HeldOf(r.Plan.Releases); held != nil {
		d.finding(brief(f), "%s is held since event %d: nobody is declared it", held.Version, held.Held.Seq)
	}
	passed, unjudged := judged(r)
	if room := max(1, passed/tailShare) - unjudged; len(f.Nodes) > room {
		d.finding(fmt.Sprintf("%d nodes of the tail at once", len(f.Nodes)), "at most %d: %d passed and %d are not judged yet", max(room, 0), passed, unjudged)
	}
	for _, id := range f.Nodes {
		member, n := r.Members[id], m.Nodes[id]
		recorded := fmt.Sprintf("%s is in batch %d of the tail", id, f.Batch)
		switch {
		case member == nil || n == nil:
			d.finding(recorded, "it is not in the cohort")
		case !member.Free() && !(member.Recalled && member.Outcome == projections.Outcome(events.Silent)):
			d.finding(recorded, "it is %s in batch %d, event %d", member.Outcome, member.Batch, member.Since)
		case n.Rollout != r.ID:
			d.finding(recorded, "it is in rollout %s by now", n.Rollout)
		}
	}
}

// checkLink looks at a pause for the link, or its end.
func (d *decision) checkLink(m *projections.Mesh, c events.Control, state projections.State, r *projections.Rollout, so func(events.Control) bool, what string) {
	d.checkState(r, state)
	if d.checkControl(m, c) && !so(c) {
		d.finding(fmt.Sprintf("%s: %s", what, controlSays(c)[0]), "by these numbers it is not so")
	}
}

// checkControl says whether the numbers of a control group can be.
func (d *decision) checkControl(m *projections.Mesh, c events.Control) bool {
	enrolled := 0
	for _, n := range m.Nodes {
		if n.EnrolledSeq != 0 {
			enrolled++
		}
	}
	if c.Silent < 0 || c.Silent > c.Nodes || c.Nodes > enrolled {
		d.finding("control "+controlSays(c)[0], "%d nodes are enrolled", enrolled)
		return false
	}
	return true
}

// checkBetween is about what happens between two batches: none is open, and late
// evidence does not halt.
func (d *decision) checkBetween(m *projections.Mesh, r *projections.Rollout, f events.Fact) bool {
	d.checkFree(m, r)
	if b := r.OpenBatch(); b != nil {
		d.finding(brief(f), "batch %d is still open", b.Number)
		return false
	}
	if late, yes := haltForLate(m, r); yes {
		d.finding(brief(f), "%s", brief(late.Events[0].Fact))
	}
	return true
}

func (d *decision) checkCompleted(m *projections.Mesh, r *projections.Rollout, f *events.RolloutCompleted) {
	if !d.checkState(r, projections.Running) {
		return
	}
	if !d.checkBetween(m, r, f) {
		return
	}
	s := stageWith(r, func() ([]string, bool) { return nil, false })
	// Nodes that are absent are waited for until a window is over.
	if k := len(r.Batches); s.number != 0 && (s.number < len(r.Plan.Targets) || k == 0 ||
		d.Time.Sub(r.Batches[k-1].Ended)+windowSlack < time.Duration(r.Plan.Policy.Window)) {
		d.finding(brief(f), "stage %d of %d is next", s.number, len(r.Plan.Targets))
	}
	if recorded, policy := differences(f, complete(m, r)); recorded != "" || policy != "" {
		d.finding(recorded, "%s", policy)
	}
}
