package rollout

import (
	"fmt"
	"strings"
	"time"

	"noxmesh/events"
	"noxmesh/projections"
)

// halt words the end of a rollout: what failed, what that says about the
// release, whom to recall.
func halt(m *projections.Mesh, r *projections.Rollout, b *projections.Batch, passed []events.NodePassed, failures []events.Failure) *events.RolloutHalted {
	diagnosis, why := diagnose(m, r, b, passed, failures)
	return &events.RolloutHalted{
		Batch:      b.Number,
		Reason:     fmt.Sprintf("%s of %d in batch %d: %s", countKinds(failures), len(b.Nodes), b.Number, why),
		Diagnosis:  diagnosis,
		Failures:   failures,
		Recall:     Recallable(m, r, b),
		Undeclared: len(r.Plan.Cohort) - len(r.Exposed()),
		Listened:   events.Duration(m.Listening.Since(b.Opened)),
	}
}

// diagnose tells apart what broke, as far as one batch and the nodes outside
// of it can tell.
func diagnose(m *projections.Mesh, r *projections.Rollout, b *projections.Batch, passed []events.NodePassed, failures []events.Failure) (events.Diagnosis, string) {
	said, silent := 0, 0 // failed by the node's own word; by silence
	for _, f := range failures {
		switch f.Kind {
		case events.RolledBack, events.Unstable:
			said++
		case events.Silent:
			silent++
		}
	}
	runs := len(passed)
	for _, earlier := range r.Batches {
		if earlier.Passed != nil {
			runs += len(earlier.Passed.Passed)
		}
	}
	heard, known := control(m, r)
	others := fmt.Sprintf("%d of %d nodes outside of the batches are heard", heard, known)
	switch {
	case said > 0 && runs == 0:
		return events.DiagnosisRelease, fmt.Sprintf("%s does not run where it was tried; %s", r.Plan.Version, others)
	case said > 0:
		return events.DiagnosisInconclusive, fmt.Sprintf("%s fails here and runs on %d nodes; %s", r.Plan.Version, runs, others)
	case silent > 0 && known > 0 && 2*heard < known:
		return events.DiagnosisLink, "nodes that were told nothing fell silent too; only " + others
	case silent == len(b.Nodes) && silent > 1 && heard > 0:
		return events.DiagnosisRelease, fmt.Sprintf("all that were told to run %s fell silent; %s", r.Plan.Version, others)
	default:
		return events.DiagnosisInconclusive, "too little to tell a bad machine from a bad release; " + others
	}
}

// control counts the cohort's unexposed nodes that have ever been heard, and
// those among them that are heard now.
func control(m *projections.Mesh, r *projections.Rollout) (heard, known int) {
	exposed := r.Exposed()
	for _, id := range r.Plan.Cohort {
		n := m.Nodes[id]
		if exposed[id] || n == nil || n.Heard == nil {
			continue
		}
		// Absent long before the batch says nothing about the link.
		if k := len(r.Batches); k > 0 && r.Batches[k-1].Opened.Sub(n.Heard.At) > time.Duration(r.Plan.Policy.Presence) {
			continue
		}
		known++
		if present(m, n, r.Plan.Policy) {
			heard++
		}
	}
	return heard, known
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
