package rollout

import (
	"sort"
	"time"

	"noxmesh/events"
	"noxmesh/projections"
)

// Outcome is what became of one node of the cohort so far.
type Outcome string

const (
	Undeclared Outcome = "undeclared" // never heard of the release
	Waiting    Outcome = "waiting"    // declared, not judged yet
	Passed     Outcome = "passed"
	Recalled   Outcome = "recalled" // got its previous declaration back
)

// NodeStatus is one node's line in a rollout's status. A failed node's outcome
// is its [events.FailureKind].
type NodeStatus struct {
	Node     string          `json:"node"`
	Batch    int             `json:"batch,omitempty"`
	Outcome  Outcome         `json:"outcome"`
	Detail   string          `json:"detail,omitempty"`
	Evidence events.Evidence `json:"evidence,omitzero"`
}

// Status is a rollout as a person or a tool sees it. Its counts add up to the
// cohort.
type Status struct {
	ID        string            `json:"id"`
	Version   string            `json:"version"`
	State     projections.State `json:"state"`
	Started   time.Time         `json:"started"`
	Actor     string            `json:"actor"`
	Ended     *time.Time        `json:"ended,omitempty"`
	Reason    string            `json:"reason,omitempty"`
	Diagnosis events.Diagnosis  `json:"diagnosis,omitempty"`
	Cohort    int               `json:"cohort"`
	Batch     int               `json:"batch"`   // opened so far
	Batches   int               `json:"batches"` // planned
	Declared  int               `json:"declared"`
	Counts    map[Outcome]int   `json:"counts"`
	Waiting   []string          `json:"waiting,omitempty"`
	Nodes     []NodeStatus      `json:"nodes"`
	Policy    events.Policy     `json:"policy"`
	Selector  string            `json:"selector,omitempty"`
	Listened  events.Duration   `json:"listened"` // since the open batch opened
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
	s := &Status{
		ID: r.ID, Version: r.Plan.Version, State: r.State, Started: r.Started, Actor: r.Actor,
		Cohort: len(r.Plan.Cohort), Batch: len(r.Batches), Batches: len(r.Plan.Targets),
		Counts: map[Outcome]int{}, Policy: r.Plan.Policy, Selector: r.Plan.Selector,
		EventSeq: m.EventSeq, HeartbeatSeq: m.HeartbeatSeq,
	}
	if !r.Ended.IsZero() {
		s.Ended = &r.Ended
	}
	switch {
	case r.Abort != nil && r.Abort.Reason != "":
		s.Reason = r.Abort.Reason
	case r.Halt != nil:
		s.Reason = r.Halt.Reason
	}
	if r.Halt != nil {
		s.Diagnosis = r.Halt.Diagnosis
	}
	if b := r.OpenBatch(); b != nil {
		s.Listened = events.Duration(m.Listening.Since(b.Opened))
	}
	if d := Decide(m, id, now); r.State == projections.Running {
		s.Waiting = d.Waiting
	}
	seen := map[string]bool{}
	for i := range r.Batches {
		b := &r.Batches[i]
		s.Declared += len(b.Declared)
		for _, ns := range batchStatus(m, r, b, now) {
			seen[ns.Node] = true
			s.Nodes = append(s.Nodes, ns)
		}
	}
	for _, id := range r.Plan.Cohort {
		if !seen[id] {
			s.Nodes = append(s.Nodes, NodeStatus{Node: id, Outcome: Undeclared})
		}
	}
	for _, ns := range s.Nodes {
		s.Counts[ns.Outcome]++
	}
	return s
}

// batchStatus says what became of each node of one batch. What the log has
// judged stands; what was still open is judged by what is known now.
func batchStatus(m *projections.Mesh, r *projections.Rollout, b *projections.Batch, now time.Time) []NodeStatus {
	judged := map[string]NodeStatus{}
	failures := func(list []events.Failure) {
		for _, f := range list {
			judged[f.Node] = NodeStatus{Node: f.Node, Outcome: Outcome(f.Kind), Detail: f.Detail, Evidence: f.Evidence}
		}
	}
	if b.Passed != nil {
		for _, p := range b.Passed.Passed {
			judged[p.Node] = NodeStatus{Node: p.Node, Outcome: Passed, Evidence: p.Evidence}
		}
		failures(b.Passed.Failures)
	} else if r.Halt != nil {
		failures(r.Halt.Failures)
	}
	var out []NodeStatus
	for _, node := range b.Nodes {
		ns, ok := judged[node]
		if !ok {
			ns = openStatus(m, r, b, node, now)
		}
		ns.Batch = b.Number
		out = append(out, ns)
	}
	sort.SliceStable(out, func(i, j int) bool { return out[i].Node < out[j].Node })
	return out
}

func openStatus(m *projections.Mesh, r *projections.Rollout, b *projections.Batch, node string, now time.Time) NodeStatus {
	v := Judge(m, r, b, node, now)
	switch {
	case v.Failure != nil && (r.State == projections.Running || v.Failure.Kind == events.RolledBack):
		return NodeStatus{Node: node, Outcome: Outcome(v.Failure.Kind), Detail: v.Failure.Detail, Evidence: v.Failure.Evidence}
	case r.Recalled[node]:
		return NodeStatus{Node: node, Outcome: Recalled, Detail: "got its previous declaration back"}
	case v.Passed != nil:
		return NodeStatus{Node: node, Outcome: Passed, Evidence: v.Passed.Evidence}
	case v.Failure != nil:
		return NodeStatus{Node: node, Outcome: Outcome(v.Failure.Kind), Detail: v.Failure.Detail, Evidence: v.Failure.Evidence}
	}
	return NodeStatus{Node: node, Outcome: Waiting, Detail: v.Waiting}
}
