package rollout

import (
	"fmt"
	"strings"
	"time"

	"noxmesh/events"
	"noxmesh/projections"
)

// halt words the end of a rollout on evidence: what failed, what that says about
// the release, what the failed have in common, whom to recall. Without an open
// batch it rests on late evidence alone.
func halt(m *projections.Mesh, r *projections.Rollout, b *projections.Batch, passed []events.NodePassed, failures []events.Failure, c events.Control, why string) *events.RolloutHalted {
	out := &events.RolloutHalted{Passed: passed, Control: c, Recall: Recallable(m, r), AsOf: asOf(m)}
	where := ""
	if b != nil {
		where = fmt.Sprintf("%s of %d in batch %d", countKinds(failures), len(b.Nodes), b.Number)
	}
	earlier := unaccepted(r, b)
	if len(earlier) > 0 {
		where = strings.TrimPrefix(where+" and ", " and ") + countKinds(earlier) + " in batches before"
	}
	if b == nil {
		b = &r.Batches[len(r.Batches)-1]
	} else if len(failures) == 0 {
		where = fmt.Sprintf("%s, with batch %d open", countKinds(earlier)+" in batches before", b.Number)
	}
	out.Failures = append(failures, earlier...)
	out.Batch, out.Listened = b.Number, events.Duration(listened(m, r, b.Opened))
	diagnosis, because := diagnose(r, b, out.Failures, c, passedBefore(r)+len(passed))
	if because != why {
		because += "; " + why
	}
	out.Diagnosis = diagnosis
	out.Reason = where + ": " + because
	out.Common = Traits(m, r, out.Failures)
	out.Undeclared = r.Spared()
	return out
}

// unaccepted are the failures on record, outside of an open batch, that no
// operator accepted by resuming.
func unaccepted(r *projections.Rollout, open *projections.Batch) []events.Failure {
	var out []events.Failure
	for _, id := range r.Plan.Cohort {
		member := r.Members[id]
		if !member.Outcome.Failed() || member.Batch <= r.Accepted && member.Since <= r.ResumeSeq || open != nil && member.Batch == open.Number {
			continue
		}
		out = append(out, events.Failure{
			Node: id, Kind: events.FailureKind(member.Outcome), Detail: member.Detail, Evidence: member.Evidence})
	}
	return out
}

// haltLink ends the wait for a link that does not come back.
func haltLink(m *projections.Mesh, r *projections.Rollout, b *projections.Batch, passed []events.NodePassed, failures []events.Failure, c events.Control) *events.RolloutHalted {
	out := &events.RolloutHalted{
		Passed: passed, Failures: failures, Control: c, Recall: Recallable(m, r), AsOf: asOf(m),
		Diagnosis: events.DiagnosisLink, Undeclared: r.Spared(),
		Reason: fmt.Sprintf("the link is away for %s: %d of %d nodes that were told nothing are silent", round(linkWait(m, r)), c.Silent, c.Nodes),
	}
	if b != nil {
		out.Batch, out.Listened = b.Number, events.Duration(listened(m, r, b.Opened))
	}
	return out
}

// haltHeld stops a rollout of a release that somebody held.
func haltHeld(m *projections.Mesh, r *projections.Rollout, held *projections.Release) *events.RolloutHalted {
	out := &events.RolloutHalted{
		Recall: Recallable(m, r), AsOf: asOf(m), Diagnosis: events.DiagnosisRelease, Undeclared: r.Spared(),
		Reason:   fmt.Sprintf("%s is held: %s", held.Version, held.Held.Fact.Reason),
		Evidence: events.Evidence{Events: []uint64{held.Held.Seq}},
	}
	if b := r.OpenBatch(); b != nil {
		out.Batch, out.Listened = b.Number, events.Duration(listened(m, r, b.Opened))
	}
	return out
}

func passedBefore(r *projections.Rollout) int {
	n := 0
	for _, member := range r.Members {
		if member.Outcome == projections.Passed {
			n++
		}
	}
	return n
}

// manyPassed is how many nodes for each failed one must run the version well
// before a failure that is not beyond the ordinary is put down to its machine.
const manyPassed = 10

// diagnose tells a broken release from a broken machine and from a broken link,
// by the same tests that judge a batch, and gives the numbers behind it.
func diagnose(r *projections.Rollout, b *projections.Batch, failures []events.Failure, c events.Control, passed int) (events.Diagnosis, string) {
	silent := 0
	for _, f := range failures {
		if f.Kind == events.Silent {
			silent++
		}
	}
	heard := fmt.Sprintf("%d of %d that were told nothing are heard", c.Nodes-c.Silent, c.Nodes)
	if why, beyond := tallyOf(r, failures, 0).tooMany(); beyond {
		return events.DiagnosisRelease, why
	}
	if silent > 0 && (linkAway(c) || c.Silent > 0 && c.Silent == c.Nodes) {
		return events.DiagnosisLink, "only " + heard
	}
	// One silent node says nothing, whatever the others do: it may be switched off.
	if why, beyond := silentTooMany(b, failures, c); beyond && silent > 1 {
		return events.DiagnosisRelease, why
	}
	if silent == 0 && passed >= manyPassed*len(failures) {
		return events.DiagnosisMachine, fmt.Sprintf("it runs on %d others", passed)
	}
	return events.DiagnosisInconclusive, "too little to tell a bad machine from a bad release; " + heard
}

func countKinds(failures []events.Failure) string {
	counts := map[events.FailureKind]int{}
	for _, f := range failures {
		counts[f.Kind]++
	}
	var parts []string
	for _, k := range []events.FailureKind{events.RolledBack, events.Unstable, events.NotApplied, events.Silent} {
		if counts[k] > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", counts[k], strings.ReplaceAll(string(k), "-", " ")))
		}
	}
	return strings.Join(parts, ", ")
}

// patience is for how long a rollout waits for the link.
func patience(p events.Policy) time.Duration { return linkPatience * time.Duration(p.Window) }
