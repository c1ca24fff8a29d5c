package rollout

import (
	"fmt"
	"sort"
	"time"

	"noxmesh/events"
	"noxmesh/projections"
)

// NodeStatus is one node's line in a rollout's status.
type NodeStatus struct {
	Node     string              `json:"node"`
	Batch    int                 `json:"batch,omitempty"`
	Outcome  projections.Outcome `json:"outcome"`
	Detail   string              `json:"detail,omitempty"`
	Evidence events.Evidence     `json:"evidence,omitzero"`
}

// Status is a rollout as a person or a tool sees it, with its nodes and what it
// waits for now.
type Status struct {
	projections.RolloutView
	Waiting []string `json:"waiting,omitempty"`
	// Next are the commands that make sense now.
	Next     []string        `json:"next,omitempty"`
	Nodes    []NodeStatus    `json:"nodes"`
	Listened events.Duration `json:"listened"` // since the open batch opened
	// EventSeq and HeartbeatSeq are what the status reflects.
	EventSeq     uint64 `json:"event_seq"`
	HeartbeatSeq uint64 `json:"heartbeat_seq"`
}

// StatusOf makes the status of a rollout, or nil if there is none.
func StatusOf(m *projections.Mesh, id string, now time.Time) *Status {
	r := m.Rollouts[id]
	if r == nil {
		return nil
	}
	s := &Status{RolloutView: m.RolloutView(r), EventSeq: m.EventSeq, HeartbeatSeq: m.HeartbeatSeq}
	if r.Halt != nil && r.Resume == nil {
		s.Common = Traits(m, r, r.Halt.Failures) // with what failed late
	}
	var j *judge
	b := r.OpenBatch()
	if b != nil {
		j = newJudge(m, r, b, now, true)
		s.Listened = events.Duration(j.listened)
	}
	if r.State == projections.Running || r.State == projections.Paused {
		s.Waiting = Explain(m, id, now).Waiting
	}
	for _, id := range r.Plan.Cohort {
		member := r.Members[id]
		ns := NodeStatus{Node: id, Batch: member.Batch, Outcome: member.Outcome, Detail: member.Detail, Evidence: member.Evidence}
		if b != nil && r.State.Open() && member.Batch == b.Number && member.Outcome == projections.Waiting {
			ns.Detail = progress(j.node(id))
		}
		if member.Recalled && member.Outcome.Failed() {
			ns.Detail += "; got its previous declaration back"
		}
		s.Nodes = append(s.Nodes, ns)
	}
	sort.SliceStable(s.Nodes, func(i, k int) bool { return place(s.Nodes[i]) < place(s.Nodes[k]) })
	s.Next = next(m, r)
	return s
}

// place sorts the nodes by batch, those without one last.
func place(n NodeStatus) int {
	if n.Batch == 0 {
		return int(^uint(0) >> 1)
	}
	return n.Batch
}

// progress is how a node of an open batch stands, before the log says so.
func progress(v Verdict) string {
	switch {
	case v.Passed != nil:
		return "passed; the others of the batch are waited for"
	case v.Failure != nil:
		return string(v.Failure.Kind) + ": " + v.Failure.Detail
	}
	return v.Waiting
}

// next are the commands that make sense in a state.
func next(m *projections.Mesh, r *projections.Rollout) []string {
	command := func(format string, args ...any) string { return "nox-mesh " + fmt.Sprintf(format, args...) }
	var out []string
	held := m.HeldOf(r.Plan.Releases) != nil
	switch r.State {
	case projections.Paused:
		out = append(out, command("rollout resume %s", r.ID), command("rollout abort %s", r.ID))
	case projections.Halted:
		out = append(out, command("log explain %s", r.ID))
		if held {
			out = append(out, command("release lift %s", r.Plan.Version))
		} else {
			out = append(out, command("rollout resume %s --retry", r.ID), command("rollout resume %s --leave-out", r.ID),
				command("release hold %s --reason TEXT", r.Plan.Version))
		}
		out = append(out, command("rollout abort %s", r.ID), command("rollout revert %s", r.ID))
	case projections.Completed:
		if held {
			out = append(out, command("release lift %s", r.Plan.Version))
		}
	}
	return out
}
