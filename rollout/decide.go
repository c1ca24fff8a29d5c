package rollout

import (
	"fmt"
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
func Decide(m *projections.Mesh, id string, now time.Time) Decision { return decide(m, id, now, false) }

// Explain is Decide with the reasons for waiting in words, which a person wants
// and the stager, who looks all the time, does not.
func Explain(m *projections.Mesh, id string, now time.Time) Decision { return decide(m, id, now, true) }

func decide(m *projections.Mesh, id string, now time.Time, explain bool) Decision {
	r := m.Rollouts[id]
	switch {
	case r == nil:
		return Decision{}
	case !r.State.Open():
		return decideEnded(m, r, now)
	case r.State == projections.Halted:
		if d := recalls(m, r); len(d.Events) > 0 {
			return d
		}
		return late(m, r, now)
	}
	if other := m.OpenOver(r.Plan.Cohort, r.StartSeq); other != nil {
		return waiting("rollout %s started earlier over some of these nodes and is %s", other.ID, other.State)
	}
	if held := m.HeldOf(r.Plan.Releases); held != nil {
		return onRollout(r, haltHeld(m, r, held))
	}
	if d := late(m, r, now); len(d.Events) > 0 {
		return d
	}
	b := r.OpenBatch()
	if b != nil {
		if d := declarations(m, r, b); len(d.Events) > 0 {
			return d
		}
		return judgeBatch(m, r, b, now, explain)
	}
	if r.State == projections.Paused {
		return decidePaused(m, r)
	}
	return nextBatch(m, r, now)
}

// decideEnded is what is left to do in a rollout that ended: give declarations
// back, note late evidence, see to the tail.
func decideEnded(m *projections.Mesh, r *projections.Rollout, now time.Time) Decision {
	if r.Claims == 0 && r.State != projections.Reverted {
		return Decision{} // every node has a newer rollout: this one is history
	}
	if r.State == projections.Reverted {
		return reverts(m, r)
	}
	if d := recalls(m, r); len(d.Events) > 0 {
		return d
	}
	if d := late(m, r, now); len(d.Events) > 0 || r.State != projections.Completed {
		return d
	}
	if d := holdOnLateEvidence(m, r); len(d.Events) > 0 {
		return d
	}
	return followTail(m, r)
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

// judgeBatch passes or halts an open batch, pauses for the link, or says what
// it waits for.
func judgeBatch(m *projections.Mesh, r *projections.Rollout, b *projections.Batch, now time.Time, explain bool) Decision {
	link := linkGroup(m, r)
	onLink := r.State == projections.Paused && r.Pause.Because == events.ByLink
	away := !r.LinkIgnored && (linkAway(link) || onLink && !linkBack(link))
	spent := onLink && linkWait(m, r) >= patience(r.Plan.Policy)

	j := newJudge(m, r, b, now, explain)
	passed := []events.NodePassed{}
	var failures []events.Failure
	var gone, wait []string
	open := 0
	for _, node := range b.Nodes {
		if r.Members[node].Outcome == projections.Decommissioned {
			gone = append(gone, node)
			continue
		}
		switch v := j.node(node); {
		case v.Passed != nil:
			passed = append(passed, *v.Passed)
		case v.Failure != nil && (v.Spoken || !away || spent):
			failures = append(failures, *v.Failure)
		default:
			open++
			if explain && v.Waiting != "" {
				wait = append(wait, node+": "+v.Waiting)
			}
		}
	}
	var c events.Control
	if open == 0 || len(failures) > 0 {
		c = controlGroup(m, r.Plan.Policy, b.Opened)
	}
	if why, yes := tooMany(r, b, failures, c); yes {
		return onRollout(r, halt(m, r, b, passed, failures, c, why))
	}
	switch {
	case open == 0:
		return onRollout(r, &events.BatchPassed{
			Batch: b.Number, Passed: passed, Failures: failures, Gone: gone, Control: c, AsOf: asOf(m)})
	case spent:
		return onRollout(r, haltLink(m, r, b, passed, failures, link))
	case onLink:
		return waitForLink(m, r, link, wait)
	case away && r.State == projections.Running:
		return onRollout(r, pauseForLink(m, link))
	}
	return Decision{Waiting: wait}
}

func pauseForLink(m *projections.Mesh, c events.Control) *events.RolloutPaused {
	return &events.RolloutPaused{
		Because: events.ByLink, Control: c, AsOf: asOf(m),
		Reason: fmt.Sprintf("%d of %d nodes that were told nothing fell silent too: the link, not the release", c.Silent, c.Nodes),
	}
}

// linkWait is for how long, in listening time, the link has been away.
func linkWait(m *projections.Mesh, r *projections.Rollout) time.Duration {
	return m.Listening.Since(r.Pause.Control.Since)
}

// waitForLink resumes once the link is back, or says that it is waited for.
func waitForLink(m *projections.Mesh, r *projections.Rollout, c events.Control, wait []string) Decision {
	if linkBack(c) {
		return onRollout(r, &events.RolloutResumed{
			Because: events.ByLink, Control: c, AsOf: asOf(m),
			Reason: fmt.Sprintf("%d of %d of the control group are heard again", c.Nodes-c.Silent, c.Nodes),
		})
	}
	d := waiting("for the link: %d of %d nodes that were told nothing are silent, for %s. It goes on by itself when they are back, and halts if that takes longer than %s",
		c.Silent, c.Nodes, round(linkWait(m, r)), patience(r.Plan.Policy))
	d.Waiting = append(d.Waiting, wait...)
	return d
}

// decidePaused is a paused rollout without an open batch.
func decidePaused(m *projections.Mesh, r *projections.Rollout) Decision {
	if d, yes := haltForLate(m, r); yes {
		return d
	}
	if r.Pause.Because != events.ByLink {
		return waiting("paused: %s", orElse(r.Pause.Reason, "no reason was given"))
	}
	link := linkGroup(m, r)
	if linkWait(m, r) >= patience(r.Plan.Policy) && !linkBack(link) {
		return onRollout(r, haltLink(m, r, nil, nil, nil, link))
	}
	return waitForLink(m, r, link, nil)
}

func orElse(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}

// haltForLate halts between two batches if late evidence is too much.
func haltForLate(m *projections.Mesh, r *projections.Rollout) (Decision, bool) {
	if len(r.Batches) == 0 {
		return Decision{}, false
	}
	why, yes := tooMany(r, nil, nil, events.Control{})
	if !yes {
		return Decision{}, false
	}
	return onRollout(r, halt(m, r, nil, nil, nil, events.Control{}, why)), true
}

// nextBatch opens the next batch or completes the rollout.
func nextBatch(m *projections.Mesh, r *projections.Rollout, now time.Time) Decision {
	if d, yes := haltForLate(m, r); yes {
		return d
	}
	s := stageOf(m, r)
	if s.number == 0 {
		return onRollout(r, complete(m, r))
	}
	if len(r.Batches) > 0 && !r.LinkIgnored {
		if link := linkGroup(m, r); linkAway(link) {
			return onRollout(r, pauseForLink(m, link))
		}
	}
	span := m.Listening.Last()
	from := candidates(m, r)
	if heard := span.To.Sub(span.From); len(from) < s.free && heard < time.Duration(r.Plan.Policy.Presence) {
		// Right after a start everybody looks absent. Who is there shows once
		// the mesh has listened for as long as a node may pause.
		return waiting("listening for %s only; a batch is chosen after %s, or once all %d nodes left are heard", round(heard), r.Plan.Policy.Presence, s.free)
	}
	nodes := append(s.again, choose(m, r, from, s.fresh, s.number == 1)...)
	if len(nodes) > 0 {
		opened := open(m, r, s.number, nodes)
		opened.Retry = s.retry
		return onRollout(r, opened)
	}
	since := r.Started
	if k := len(r.Batches); k > 0 {
		since = r.Batches[k-1].Ended
	}
	if s.number == len(r.Plan.Targets) && len(r.Batches) > 0 && m.Listening.Since(since) >= time.Duration(r.Plan.Policy.Window) {
		return onRollout(r, complete(m, r))
	}
	return waiting("none of the %d nodes left was heard in the last %s", s.free, r.Plan.Policy.Presence)
}

// stage is what the next batch is made of.
type stage struct {
	number int // of the plan's target, from 1; 0 if nothing is left to open
	again  []string
	retry  bool // again includes nodes that failed
	fresh  int  // how many more may be chosen
	free   int  // members that could be chosen if they are there
}

// stageOf says which stage is next. A stage that was halted and resumed, or in
// which nobody passed, is opened anew: with the nodes that are still waiting,
// the failed ones if they shall try again, and others up to the target.
func stageOf(m *projections.Mesh, r *projections.Rollout) stage {
	return stageWith(r, func() ([]string, bool) { return reopened(m, r) })
}

// stageWith is [stageOf] with what is opened again after a halt was resumed.
func stageWith(r *projections.Rollout, reopened func() (again []string, retry bool)) stage {
	declared, free := 0, 0
	stageNumber, passedIn := map[int]int{}, map[int]int{}
	for _, b := range r.Batches {
		stageNumber[b.Number] = b.Stage
	}
	for _, member := range r.Members {
		switch {
		case member.Free():
			free++
		case member.Batch > 0:
			declared++
			if member.Outcome == projections.Passed {
				passedIn[stageNumber[member.Batch]]++
			}
		}
	}
	s := stage{number: 1, free: free}
	resumed, anew := false, false
	for _, b := range r.Batches {
		if b.Tail {
			continue
		}
		resumed = !b.Passed
		anew = resumed || passedIn[b.Stage] == 0
		s.number = b.Stage
		if !anew {
			s.number++
		}
	}
	passed := passedIn[s.number]
	if resumed {
		s.again, s.retry = reopened()
	}
	targets := r.Plan.Targets
	if s.free == 0 && len(s.again) == 0 {
		return stage{}
	}
	for s.number <= len(targets) {
		s.fresh = targets[s.number-1] - declared
		size := targets[s.number-1]
		if s.number > 1 {
			size -= targets[s.number-2]
		}
		if anew && passed == 0 && len(s.again) == 0 {
			// Nothing of the stage is left to be believed: others take its place.
			s.fresh = max(s.fresh, size)
		}
		if s.fresh = max(s.fresh, 0); s.fresh > 0 || len(s.again) > 0 {
			return s
		}
		s.number, anew = s.number+1, false
	}
	return stage{}
}

// reopened are the nodes of a batch whose halt was resumed that are to be
// judged again: those that are declared and not judged, wherever they are, and
// the failed ones that are there if they shall try again.
func reopened(m *projections.Mesh, r *projections.Rollout) (again []string, retry bool) {
	failed := map[string]bool{}
	if r.Halt != nil && r.Resume != nil && r.Resume.Mode == events.ResumeRetry {
		for _, f := range r.Halt.Failures {
			failed[f.Node] = true
		}
	}
	for _, id := range r.Plan.Cohort {
		member := r.Members[id]
		if member.Batch == 0 || member.Batch > r.Accepted {
			continue
		}
		switch inBatch := member.Batch == r.Accepted; {
		case inBatch && member.Outcome == projections.Waiting:
			again = append(again, id)
		case member.Outcome.Failed() && present(m, m.Nodes[id], r.Plan.Policy) && (failed[id] || inBatch && r.Resume.Mode == events.ResumeRetry):
			again = append(again, id)
			retry = true
		}
	}
	return again, retry
}

func complete(m *projections.Mesh, r *projections.Rollout) *events.RolloutCompleted {
	out := &events.RolloutCompleted{AsOf: asOf(m)}
	for _, id := range r.Plan.Cohort {
		switch member := r.Members[id]; {
		case member.Outcome == projections.Passed:
			out.Passed++
		case member.Outcome.Failed():
			out.Failed++
		case member.Free():
			out.Tail = append(out.Tail, id)
		}
	}
	return out
}
