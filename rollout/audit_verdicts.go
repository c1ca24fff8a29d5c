package rollout

import (
	"fmt"
	"slices"
	"time"

	"noxmesh/events"
	"noxmesh/projections"
)

func (a *Audit) checkPassed(d *decision, m *projections.Mesh, r *projections.Rollout, f *events.BatchPassed) {
	if !d.checkState(r, projections.Running, projections.Paused) {
		return
	}
	d.checkFree(m, r)
	b := r.OpenBatch()
	if b == nil || b.Number != f.Batch {
		d.finding(brief(f), "batch %d is not open", f.Batch)
		return
	}
	sane := d.checkControl(m, f.Control)
	a.checkVerdicts(d, m, r, b, f.Passed, f.Failures)
	judged := map[string]bool{}
	for _, p := range f.Passed {
		judged[p.Node] = true
	}
	for _, x := range f.Failures {
		judged[x.Node] = true
	}
	for _, id := range b.Nodes {
		left := r.Members[id].Outcome == projections.Decommissioned
		switch gone := slices.Contains(f.Gone, id); {
		case gone && !left:
			d.finding(id+" left the fleet", "it is %s", r.Members[id].Outcome)
		case !gone && left:
			d.finding(brief(f), "%s left the fleet", id)
		case !gone && !judged[id]:
			d.finding(brief(f), "to wait: %s is not judged", id)
		}
	}
	for _, id := range f.Gone {
		if !slices.Contains(b.Nodes, id) {
			d.finding(id+" left the fleet", "it is not in batch %d", b.Number)
		}
	}
	for _, x := range f.Failures {
		if timed(x) {
			d.checkWindow(r, b, d.Time.Sub(b.Opened)+windowSlack, x)
		}
	}
	if !sane {
		return
	}
	if why, yes := tooMany(r, b, f.Failures, f.Control); yes {
		d.finding(brief(f), "to halt: %s", why)
	}
}

// windowSlack is how much a window may seem shorter in the log than it was: the
// clocks of servers differ, and events are stamped after they are decided.
const windowSlack = 10 * time.Second

// timed says whether a failure is one by what was not heard in time.
func timed(f events.Failure) bool {
	return f.Kind == events.Silent || f.Kind == events.NotApplied && len(f.Evidence.Events) == 0
}

func (d *decision) checkWindow(r *projections.Rollout, b *projections.Batch, listened time.Duration, f events.Failure) {
	if listened < time.Duration(r.Plan.Policy.Window) {
		d.finding(fmt.Sprintf("%s is %s after %s", f.Node, f.Kind, round(listened)), "to wait until the window of %s is over", r.Plan.Policy.Window)
	}
}

// checkVerdicts looks at the nodes that are judged in an open batch.
func (a *Audit) checkVerdicts(d *decision, m *projections.Mesh, r *projections.Rollout, b *projections.Batch, passed []events.NodePassed, failures []events.Failure) {
	seen := map[string]bool{}
	inBatch := func(id, what string) bool {
		switch {
		case seen[id]:
			d.finding(id+" "+what, "it is judged twice")
		case !slices.Contains(b.Nodes, id) || r.Members[id] == nil || r.Members[id].Batch != b.Number:
			d.finding(id+" "+what, "it is not in batch %d", b.Number)
		case r.Members[id].Outcome == projections.Decommissioned:
			d.finding(id+" "+what, "it left the fleet")
		default:
			seen[id] = true
			return true
		}
		return false
	}
	for _, p := range passed {
		if inBatch(p.Node, "passed") {
			a.checkNodePassed(d, m, r, b, p)
		}
	}
	for _, f := range failures {
		if inBatch(f.Node, string(f.Kind)) {
			a.checkFailure(d, m, r, b, f)
		}
	}
}

func (a *Audit) checkNodePassed(d *decision, m *projections.Mesh, r *projections.Rollout, b *projections.Batch, p events.NodePassed) {
	n, member := m.Nodes[p.Node], r.Members[p.Node]
	recorded := p.Node + " passed"
	if n == nil || member.Revision == 0 {
		d.finding(recorded, "it was never declared %s in batch %d", r.Plan.Version, b.Number)
		return
	}
	if f := rolledBackFrom(n, r, b, member); f != nil {
		d.finding(recorded, "it rolled %s back, event %d", f.Fact.From, f.Seq)
	} else if f := refusedSince(n, b, member); f != nil {
		d.finding(recorded, "it refused %s, event %d", f.Fact.Version, f.Seq)
	}
	// Looked at later, when the state has gone on: what it was now is kept.
	version, revision := r.Plan.Version, member.Revision
	last := func(hb events.Heartbeat) bool { return hb.StartID == p.StartID && hb.Version == version }
	first := func(hb events.Heartbeat) bool { return last(hb) && hb.Confirmed() && hb.Revision >= revision }
	switch beats := p.Evidence.Heartbeats; {
	case p.StartID == "" || len(beats) != 2 || beats[0] > beats[1] || beats[0] == 0:
		d.finding(fmt.Sprintf("%s by start %q, heartbeats %v", recorded, p.StartID, beats), "one start, and the first and the last heartbeat of its soak")
	case beats[0] == beats[1] && r.Plan.Policy.Soak > 0:
		d.finding(fmt.Sprintf("%s by heartbeat %d alone", recorded, beats[0]), "a soak of %s", r.Plan.Policy.Soak)
	case !p.To.IsZero() && p.To.Sub(p.From) < time.Duration(r.Plan.Policy.Soak):
		d.finding(fmt.Sprintf("%s by heartbeats from %s to %s", recorded, p.From.Format(time.RFC3339Nano), p.To.Format(time.RFC3339Nano)), "a soak of %s", r.Plan.Policy.Soak)
	default:
		a.cites(d, beats[0], p.Node, "is the first of the soak", first)
		a.cites(d, beats[1], p.Node, "is the last of the soak", last)
	}
}

// refusedSince is the node's word that it will not install what the batch
// declared.
func refusedSince(n *projections.Node, b *projections.Batch, member *projections.Member) *projections.FactOf[events.NodeRefused] {
	if f := n.Refused; f != nil && f.Seq > b.Seq && f.Fact.Revision == member.Revision {
		return f
	}
	return nil
}

func (a *Audit) checkFailure(d *decision, m *projections.Mesh, r *projections.Rollout, b *projections.Batch, f events.Failure) {
	n, member := m.Nodes[f.Node], r.Members[f.Node]
	recorded := failuresSay([]events.Failure{f})[0]
	if n == nil || member.Revision == 0 {
		if f.Kind != events.NotApplied || len(f.Evidence.Heartbeats)+len(f.Evidence.Events) > 0 {
			d.finding(recorded, "it was never declared %s in batch %d", r.Plan.Version, b.Number)
		}
		return
	}
	back, refused := rolledBackFrom(n, r, b, member), refusedSince(n, b, member)
	switch {
	case back != nil:
		if f.Kind != events.RolledBack || !slices.Equal(f.Evidence.Events, []uint64{back.Seq}) {
			d.finding(recorded, "%s rolled-back (event %d)", f.Node, back.Seq)
		}
		return
	case f.Kind == events.RolledBack:
		d.finding(recorded, "no report of it says that it rolled %s back since event %d", r.Plan.Version, b.Seq)
		return
	case refused != nil && f.Kind != events.NotApplied:
		d.finding(recorded, "%s not-applied (event %d)", f.Node, refused.Seq)
	case f.Kind == events.NotApplied && len(f.Evidence.Events) > 0:
		failed := n.FailedToApply
		if !(refused != nil && f.Evidence.Events[0] == refused.Seq) && !(failed != nil && f.Evidence.Events[0] == failed.Seq && failed.Fact.Revision == member.Revision) {
			d.finding(recorded, "no report of it about revision %d is event %d", member.Revision, f.Evidence.Events[0])
		}
	case f.Listened != 0 && time.Duration(f.Listened) < time.Duration(r.Plan.Policy.Window):
		d.finding(fmt.Sprintf("%s after %s of listening", recorded, f.Listened), "to have listened for the whole window of %s", r.Plan.Policy.Window)
	case f.Kind == events.Unstable && len(f.Evidence.Heartbeats) < unstableStarts:
		d.finding(recorded, "at least %d process starts", unstableStarts)
	case f.Kind != events.Silent && f.Kind != events.NotApplied && f.Kind != events.Unstable:
		d.finding(recorded, "there is no such failure")
	}
	what, version := "is the last", r.Plan.Version
	var holds func(events.Heartbeat) bool
	if f.Kind == events.Unstable {
		what, holds = "is a process start", func(hb events.Heartbeat) bool { return hb.Version == version }
	}
	for _, seq := range f.Evidence.Heartbeats {
		a.cites(d, seq, f.Node, what, holds)
	}
}

func (a *Audit) checkHalted(d *decision, m *projections.Mesh, r *projections.Rollout, f *events.RolloutHalted) {
	if !d.checkState(r, projections.Running, projections.Paused) {
		return
	}
	if other := m.OpenOver(r.Plan.Cohort, r.StartSeq); other != nil {
		d.finding(brief(f), "to wait: rollout %s started earlier over some of these nodes and is %s", other.ID, other.State)
	}
	d.checkRecall(m, r, f.Recall)
	if want := r.Spared(); f.Undeclared != want {
		d.finding(fmt.Sprintf("%d nodes never heard of it", f.Undeclared), "%d", want)
	}
	if held := m.HeldOf(r.Plan.Releases); held != nil {
		if len(f.Failures) > 0 || f.Diagnosis != events.DiagnosisRelease || !slices.Equal(f.Evidence.Events, []uint64{held.Held.Seq}) {
			d.finding(brief(f), "halted since %s is held (event %d)", held.Version, held.Held.Seq)
		}
		return
	}
	if len(f.Evidence.Events) > 0 {
		d.finding(brief(f), "the release is not held")
		return
	}
	b := r.OpenBatch()
	for _, p := range f.Passed {
		if slices.Contains(f.Recall, p.Node) {
			d.finding(p.Node+" passed, and is taken back", "one of them")
		}
	}
	own, earlier := []events.Failure{}, []events.Failure{}
	for _, x := range f.Failures {
		if b != nil && r.Members[x.Node] != nil && r.Members[x.Node].Batch == b.Number {
			own = append(own, x)
		} else {
			earlier = append(earlier, x)
		}
	}
	sane := d.checkControl(m, f.Control)
	if b == nil && len(f.Passed) > 0 {
		d.finding(fmt.Sprintf("%d nodes passed", len(f.Passed)), "no batch is open")
	}
	if b != nil {
		if f.Batch != b.Number {
			d.finding(fmt.Sprintf("batch %d", f.Batch), "batch %d is open", b.Number)
		}
		a.checkVerdicts(d, m, r, b, f.Passed, own)
		if wall := d.Time.Sub(b.Opened) + windowSlack; time.Duration(f.Listened) > wall {
			d.finding(fmt.Sprintf("listened for %s", f.Listened), "batch %d is open for %s", b.Number, round(wall-windowSlack))
		}
		d.checkSpoken(m, r, b, own)
		for _, x := range own {
			if timed(x) {
				d.checkWindow(r, b, time.Duration(f.Listened), x)
			}
		}
	}
	if !sane {
		return
	}
	if r.State == projections.Paused && r.Pause.Because == events.ByLink && f.Diagnosis == events.DiagnosisLink {
		if _, yes := tooMany(r, b, own, f.Control); !yes {
			// It waited for the link for too long.
			if linkBack(f.Control) {
				d.finding(brief(f), "the link is back: %s", controlSays(f.Control)[0])
			}
			return
		}
	}
	known := unaccepted(r, b)
	if is, want := failuresSay(earlier), failuresSay(known); !slices.Equal(is, want) {
		d.finding("failed before: "+some(without(is, want)), "%s", some(without(want, is)))
	}
	if _, yes := tooMany(r, b, own, f.Control); !yes {
		d.finding(brief(f), "to go on: %s is tolerated", orElse(countKinds(f.Failures), "no failure"))
		return
	}
	batch := b
	if batch == nil && len(r.Batches) > 0 {
		batch = &r.Batches[len(r.Batches)-1]
	}
	if batch == nil {
		d.finding(brief(f), "no batch was opened")
		return
	}
	if want, why := diagnose(r, batch, f.Failures, f.Control, passedBefore(r)+len(f.Passed)); f.Diagnosis != want {
		d.finding("diagnosis "+string(f.Diagnosis), "%s: %s", want, why)
	}
}

// checkSpoken looks for nodes that said that they failed and are not counted.
func (d *decision) checkSpoken(m *projections.Mesh, r *projections.Rollout, b *projections.Batch, failures []events.Failure) {
	for _, id := range b.Nodes {
		n, member := m.Nodes[id], r.Members[id]
		if n == nil || member.Batch != b.Number || member.Outcome != projections.Waiting || member.Revision == 0 ||
			slices.ContainsFunc(failures, func(f events.Failure) bool { return f.Node == id }) {
			continue
		}
		if f := rolledBackFrom(n, r, b, member); f != nil {
			d.finding("nothing of "+id, "it rolled %s back, event %d", f.Fact.From, f.Seq)
		} else if f := refusedSince(n, b, member); f != nil {
			d.finding("nothing of "+id, "it refused %s, event %d", f.Fact.Version, f.Seq)
		}
	}
}

// checkRecall looks at whom a rollout's end takes back, as far as the log knows:
// whether they have applied it is in the heartbeats.
func (d *decision) checkRecall(m *projections.Mesh, r *projections.Rollout, recall []string) {
	may := Recallable(m, r) // of a state without heartbeats: all that did not say otherwise
	for _, id := range recall {
		// What nodes said while the operator decided was not read yet, and how far
		// it was is not on record.
		if member := r.Members[id]; d.Command && member != nil && member.Batch > 0 && member.Outcome != projections.Passed {
			continue
		}
		if !slices.Contains(may, id) {
			d.finding(id+" is taken back", "it is not waiting for %s", r.Plan.Version)
		}
	}
}

func (a *Audit) checkAmended(d *decision, m *projections.Mesh, r *projections.Rollout, f *events.RolloutAmended) {
	open := 0
	if b := r.OpenBatch(); b != nil && r.State != projections.Halted && r.State.Open() {
		open = b.Number
	}
	batchFor := func(id, what string) *projections.Batch {
		member := r.Members[id]
		switch {
		case member == nil:
			d.finding(id+" "+what, "it is not in the cohort")
		case member.Batch == 0:
			d.finding(id+" "+what, "it was never told")
		case member.Batch == open:
			d.finding(id+" "+what, "batch %d is open and will say", open)
		default:
			return batchOf(r, member.Batch)
		}
		return nil
	}
	for _, p := range f.Passed {
		b := batchFor(p.Node, "passed")
		if b == nil {
			continue
		}
		switch o := r.Members[p.Node].Outcome; o {
		case projections.Waiting, projections.Outcome(events.Silent), projections.Outcome(events.NotApplied):
			a.checkNodePassed(d, m, r, b, p)
		default:
			d.finding(p.Node+" passed", "it is %s, event %d", o, r.Members[p.Node].Since)
		}
	}
	for _, x := range f.Failures {
		b := batchFor(x.Node, string(x.Kind))
		if b == nil {
			continue
		}
		o := r.Members[x.Node].Outcome
		switch {
		case o == projections.Decommissioned, o == projections.GivenBack, events.FailureKind(o) == x.Kind:
			d.finding(x.Node+" "+string(x.Kind), "it is %s, event %d", o, r.Members[x.Node].Since)
		case o != projections.Waiting && timed(x):
			d.finding(x.Node+" "+string(x.Kind), "it is %s, event %d, and only its own word changes that", o, r.Members[x.Node].Since)
		default:
			a.checkFailure(d, m, r, b, x)
		}
	}
	if len(f.Passed)+len(f.Failures) == 0 {
		d.finding("late evidence about nobody", "there was nothing to write")
	}
}
