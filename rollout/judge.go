package rollout

import (
	"fmt"
	"time"

	"noxmesh/events"
	"noxmesh/projections"
)

// Verdict is what is known of one node of a batch at some moment. Exactly one
// of Passed and Failure is set once the node is judged; until then Waiting
// says in a person's words what the stager waits for.
type Verdict struct {
	Passed  *events.NodePassed
	Failure *events.Failure
	Waiting string
}

// Judged says whether the verdict is final for the batch.
func (v Verdict) Judged() bool { return v.Passed != nil || v.Failure != nil }

// unstableStarts is how many process starts on the new version are too many:
// the upgrade itself is one, one more is a machine's reboot.
const unstableStarts = 3

// Judge judges one node of an opened batch. Windows are counted in listening
// time; now tells only how long ago the node was heard.
func Judge(m *projections.Mesh, r *projections.Rollout, b *projections.Batch, node string, now time.Time) Verdict {
	n := m.Nodes[node]
	revision, declared := b.Declared[node]
	policy, version := r.Plan.Policy, r.Plan.Version
	window, soak := time.Duration(policy.Window), time.Duration(policy.Soak)
	listened := m.Listening.Since(b.Opened)
	fail := func(kind events.FailureKind, ev events.Evidence, format string, args ...any) Verdict {
		return Verdict{Failure: &events.Failure{Node: node, Kind: kind, Detail: fmt.Sprintf(format, args...), Evidence: ev}}
	}

	if n == nil || !declared {
		if listened < window {
			return Verdict{Waiting: "its declaration is being written"}
		}
		return fail(events.NotApplied, events.Evidence{}, "could not be declared: no package of %s for its architecture", version)
	}

	// What the node says outright counts at once.
	if f := rolledBackFrom(n, r, b); f != nil {
		reason := f.Fact.Reason
		if reason == "" {
			reason = "it would not start"
		}
		return fail(events.RolledBack, events.Evidence{Events: []uint64{f.Seq}},
			"rolled back from %s to %s: %s", f.Fact.From, f.Fact.To, reason)
	}
	if f := n.Refused; f != nil && f.Seq > b.Seq && f.Fact.Revision == revision {
		return fail(events.NotApplied, events.Evidence{Events: []uint64{f.Seq}}, "refused %s: %s", version, f.Fact.Reason)
	}
	if starts := startsOn(n, version, b.Opened); len(starts) >= unstableStarts {
		var seqs []uint64
		for _, s := range starts {
			seqs = append(seqs, s.FirstSeq)
		}
		return fail(events.Unstable, events.Evidence{Heartbeats: seqs},
			"%d process starts heard on %s since it was declared", len(starts), version)
	}

	var run *projections.Run // the process start heard last, if it is on the new version
	if k := len(n.Runs); k > 0 && n.Runs[k-1].Version == version {
		run = &n.Runs[k-1]
	}
	if run != nil {
		if mark, ok := run.AppliedSince(revision); ok && run.Last.Sub(mark.At) >= soak {
			return Verdict{Passed: &events.NodePassed{
				Node: node, StartID: run.StartID,
				Evidence: events.Evidence{Heartbeats: []uint64{mark.Seq, run.LastSeq}},
			}}
		}
	}

	var last events.Evidence
	if n.Heard != nil {
		last.Heartbeats = []uint64{n.Heard.Seq}
	}
	// A node that made it onto the new version gets its soak in full.
	if run != nil && run.Last.After(b.Opened) {
		if listened < window+soak+time.Duration(policy.Presence) {
			return Verdict{Waiting: fmt.Sprintf("on %s, must keep beating for %s", version, soak)}
		}
		return fail(events.Silent, last, "heard on %s, but it did not keep beating for %s", version, soak)
	}
	lately := n.LastHeard().After(b.Opened) && m.Listening.Since(n.LastHeard()) <= time.Duration(policy.Presence)
	switch {
	case listened < window && lately:
		return Verdict{Waiting: fmt.Sprintf("heard on %s, not on %s yet", n.Version(), version)}
	case listened < window:
		return Verdict{Waiting: fmt.Sprintf("last heard %s ago, %s of the window %s are over", quiet(n, b, now), round(listened), policy.Window)}
	case lately:
		detail := fmt.Sprintf("heard on %s after %s of listening", n.Version(), round(listened))
		if f := n.FailedToApply; f != nil && f.Fact.Revision == revision {
			detail += fmt.Sprintf("; %s: %s", f.Fact.Resource, f.Fact.Error)
			last.Events = append(last.Events, f.Seq)
		}
		return fail(events.NotApplied, last, "%s", detail)
	default:
		return fail(events.Silent, last, "not heard for %s, %s of it listening since it was declared", quiet(n, b, now), round(listened))
	}
}

// rolledBackFrom is the node's report that it gave the batch's version up. One
// about an earlier declaration of the same version does not count.
func rolledBackFrom(n *projections.Node, r *projections.Rollout, b *projections.Batch) *projections.FactOf[events.NodeRolledBack] {
	f := n.RolledBack
	if f == nil || f.Seq < b.Seq || f.Fact.From != r.Plan.Version {
		return nil
	}
	if f.Fact.Revision != 0 && f.Fact.Revision < b.Declared[n.ID] {
		return nil
	}
	return f
}

// startsOn are the process starts on a version first heard after t.
func startsOn(n *projections.Node, version string, t time.Time) []projections.Run {
	var out []projections.Run
	for _, run := range n.Runs {
		if run.Version == version && run.First.After(t) {
			out = append(out, run)
		}
	}
	return out
}

func quiet(n *projections.Node, b *projections.Batch, now time.Time) time.Duration {
	since := n.LastHeard()
	if since.IsZero() {
		since = b.Opened
	}
	return round(now.Sub(since))
}

func round(d time.Duration) time.Duration {
	if d >= time.Minute {
		return d.Round(time.Second)
	}
	return d.Round(100 * time.Millisecond)
}
