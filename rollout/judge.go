package rollout

import (
	"fmt"
	"time"

	"noxmesh/events"
	"noxmesh/projections"
)

// Verdict is what is known of one node of a batch at some moment. At most one
// of Passed and Failure is set, once the node is judged.
type Verdict struct {
	Passed  *events.NodePassed
	Failure *events.Failure
	// Waiting says in a person's words what the stager waits for; it is only
	// made when asked for.
	Waiting string
	// Spoken: the failure is the node's own word and does not rest on time.
	Spoken bool
}

// unstableStarts is how many process starts on the new version are too many:
// the upgrade itself is one, one more is a machine's reboot.
const unstableStarts = 3

// maxGrace bounds how long the return of a node can put off its verdict, in
// windows.
const maxGrace = 2

// judge judges the nodes of one batch. Windows are counted in listening time;
// now tells only how long ago a node was heard.
type judge struct {
	m        *projections.Mesh
	r        *projections.Rollout
	b        *projections.Batch
	now      time.Time
	explain  bool          // whether to word what is waited for
	listened time.Duration // since the batch opened
}

func newJudge(m *projections.Mesh, r *projections.Rollout, b *projections.Batch, now time.Time, explain bool) *judge {
	return &judge{m: m, r: r, b: b, now: now, explain: explain, listened: listened(m, r, b.Opened)}
}

func (j *judge) fail(node string, kind events.FailureKind, ev events.Evidence, format string, args ...any) Verdict {
	return Verdict{Failure: &events.Failure{Node: node, Kind: kind, Detail: fmt.Sprintf(format, args...), Evidence: ev}}
}

func (j *judge) wait(format string, args ...any) Verdict {
	if !j.explain {
		return Verdict{}
	}
	return Verdict{Waiting: fmt.Sprintf(format, args...)}
}

// node judges one node.
func (j *judge) node(id string) Verdict {
	n, member := j.m.Nodes[id], j.r.Members[id]
	policy, version := j.r.Plan.Policy, j.r.Plan.Version
	window, soak := time.Duration(policy.Window), time.Duration(policy.Soak)

	if n == nil || member == nil || member.Revision == 0 {
		if j.listened < window {
			return j.wait("its declaration is being written")
		}
		return j.fail(id, events.NotApplied, events.Evidence{}, "could not be declared: no package of %s for its architecture", version)
	}
	if v, said := j.spoken(n, member); said {
		return v
	}
	run := runOn(n, version)
	if run != nil {
		if mark, ok := run.AppliedSince(member.Revision); ok && run.Last.Sub(mark.At) >= soak {
			return Verdict{Passed: &events.NodePassed{
				Node: id, StartID: run.StartID,
				Evidence: events.Evidence{Heartbeats: []uint64{mark.Seq, run.LastSeq}},
				From:     mark.At, To: run.Last,
			}}
		}
	}
	v := j.byTime(n, member, run)
	if v.Failure != nil {
		v.Failure.Listened, v.Failure.LastHeard = events.Duration(j.listened), n.LastHeard()
	}
	return v
}

// runOn is the process start heard last, if it is on a version.
func runOn(n *projections.Node, version string) *projections.Run {
	if k := len(n.Runs); k > 0 && n.Runs[k-1].Version == version {
		return &n.Runs[k-1]
	}
	return nil
}

// spoken is the verdict by what the node says outright. It counts at once.
func (j *judge) spoken(n *projections.Node, member *projections.Member) (Verdict, bool) {
	version := j.r.Plan.Version
	if f := rolledBackFrom(n, j.r, j.b, member); f != nil {
		reason := f.Fact.Reason
		if reason == "" {
			reason = "it would not start"
		}
		v := j.fail(n.ID, events.RolledBack, events.Evidence{Events: []uint64{f.Seq}},
			"rolled back from %s to %s: %s", f.Fact.From, f.Fact.To, reason)
		v.Spoken = true
		return v, true
	}
	if f := n.Refused; f != nil && f.Seq > j.b.Seq && f.Fact.Revision == member.Revision {
		v := j.fail(n.ID, events.NotApplied, events.Evidence{Events: []uint64{f.Seq}}, "refused %s: %s", version, f.Fact.Reason)
		v.Spoken = true
		return v, true
	}
	starts := 0
	for i := range n.Runs {
		if startedOn(&n.Runs[i], version, j.b.Opened) {
			starts++
		}
	}
	if starts < unstableStarts {
		return Verdict{}, false
	}
	var seqs []uint64
	for i := range n.Runs {
		if startedOn(&n.Runs[i], version, j.b.Opened) {
			seqs = append(seqs, n.Runs[i].FirstSeq)
		}
	}
	v := j.fail(n.ID, events.Unstable, events.Evidence{Heartbeats: seqs},
		"%d process starts heard on %s since it was declared", starts, version)
	v.Spoken = true
	return v, true
}

func startedOn(run *projections.Run, version string, after time.Time) bool {
	return run.Version == version && run.First.After(after)
}

// byTime is the verdict by what was not heard in time.
func (j *judge) byTime(n *projections.Node, member *projections.Member, run *projections.Run) Verdict {
	policy, version := j.r.Plan.Policy, j.r.Plan.Version
	window, soak, presence := time.Duration(policy.Window), time.Duration(policy.Soak), time.Duration(policy.Presence)
	var last events.Evidence
	if n.Heard != nil {
		last.Heartbeats = []uint64{n.Heard.Seq}
	}
	// A node that made it onto the new version gets its soak in full.
	if run != nil && run.Last.After(j.b.Opened) {
		if j.listened < window+soak+presence {
			return j.wait("on %s, must keep beating for %s", version, policy.Soak)
		}
		return j.fail(n.ID, events.Silent, last, "heard on %s, but it did not keep beating for %s", version, policy.Soak)
	}
	lately := n.LastHeard().After(j.b.Opened) && j.m.Listening.Since(n.LastHeard()) <= presence
	switch {
	case j.listened < window && lately:
		return j.wait("heard on %s, not on %s yet", n.Version(), version)
	case j.listened < window:
		return j.wait("last heard %s ago, %s of the window %s are over", quiet(n, j.b, j.now), round(j.listened), policy.Window)
	case lately:
		// One that was away has had less time than the window to apply it.
		if since := n.HeardSince(); since.After(j.b.Opened) && j.listened < maxGrace*window && listened(j.m, j.r, since) < window {
			return j.wait("back for %s, not on %s yet", round(j.m.Listening.Since(since)), version)
		}
		detail := fmt.Sprintf("heard on %s after %s of listening", n.Version(), round(j.listened))
		if f := n.FailedToApply; f != nil && f.Fact.Revision == member.Revision {
			detail += fmt.Sprintf("; %s: %s", f.Fact.Resource, f.Fact.Error)
			last.Events = append(last.Events, f.Seq)
		}
		return j.fail(n.ID, events.NotApplied, last, "%s", detail)
	default:
		return j.fail(n.ID, events.Silent, last, "not heard for %s, %s of it listening since it was declared", quiet(n, j.b, j.now), round(j.listened))
	}
}

// rolledBackFrom is the node's report that it gave the batch's version up. One
// about an earlier declaration of the same version does not count.
func rolledBackFrom(n *projections.Node, r *projections.Rollout, b *projections.Batch, member *projections.Member) *projections.FactOf[events.NodeRolledBack] {
	f := n.RolledBack
	if f == nil || f.Seq < b.Seq || f.Fact.From != r.Plan.Version {
		return nil
	}
	if f.Fact.Revision != 0 && f.Fact.Revision < member.Revision {
		return nil
	}
	return f
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
