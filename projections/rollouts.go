package projections

import (
	"slices"
	"sort"
	"time"

	"noxmesh/events"
)

// State of a rollout.
type State string

const (
	Running   State = "running"
	Paused    State = "paused"
	Halted    State = "halted"
	Aborted   State = "aborted"
	Reverted  State = "reverted"
	Completed State = "completed"
)

// Open says whether the rollout still holds its nodes: no other rollout may
// start over them.
func (s State) Open() bool { return s == Running || s == Paused || s == Halted }

// Outcome is what became of one node of a cohort so far. A node that failed has
// its [events.FailureKind] as outcome.
type Outcome string

const (
	Undeclared     Outcome = "undeclared" // never heard of the release
	Waiting        Outcome = "waiting"    // declared, not judged yet
	Passed         Outcome = "passed"
	Recalled       Outcome = "recalled"       // got its previous declaration back before it applied or failed
	GivenBack      Outcome = "given-back"     // got what it had before, by a revert
	Decommissioned Outcome = "decommissioned" // left the fleet before it was judged
)

// Failed says whether the outcome is one of the four kinds of failure.
func (o Outcome) Failed() bool {
	switch events.FailureKind(o) {
	case events.RolledBack, events.Silent, events.NotApplied, events.Unstable:
		return true
	}
	return false
}

// Rollout is one rollout as its events tell it.
type Rollout struct {
	ID       string
	State    State
	Plan     events.RolloutStarted
	Started  time.Time
	StartSeq uint64 // sequence of the started event: earlier rollouts go first
	Actor    string
	Batches  []Batch
	// Members are the nodes of the cohort. Each has exactly one outcome, so
	// counts add up to the cohort at every sequence.
	Members map[string]*Member

	Pause    *events.RolloutPaused // set while paused
	PausedAt time.Time             // when it was paused last
	// LinkAway are the times in which the link was found to be away; the last
	// one has no end while it is. Windows stand still in them.
	LinkAway []Span
	// LinkIgnored: an operator resumed the rollout though the link was away.
	// The open batch is judged without looking at it.
	LinkIgnored bool
	Halt        *events.RolloutHalted // the last halt
	// Resume is how the last halt was resumed, nil if it was not.
	Resume *events.RolloutResumed
	// Accepted is the number of the last batch whose failures an operator
	// accepted when resuming: they no longer count against the rollout.
	Accepted  int
	ResumeSeq uint64 // of the event that accepted them
	Abort     *events.RolloutAborted
	Revert    *events.RolloutReverted
	Complete  *events.RolloutCompleted
	// CompletedSeq is the sequence of the event that completed it.
	CompletedSeq uint64

	Ended   time.Time // when it halted or ended, zero otherwise
	Seq     uint64    // last event on the rollout's subject
	EventID string    // id of that event: the cause of what follows
	// Claims counts the nodes whose newest rollout this is. Without any, an
	// ended rollout is history and nothing more is decided in it.
	Claims int
}

// Member is one node of a cohort.
type Member struct {
	Node     string
	Batch    int // newest batch it is in, 0 if none
	Outcome  Outcome
	Detail   string
	Evidence events.Evidence
	Since    uint64 // sequence of the event that led to the outcome
	// Revision is the declaration that its newest batch led to, 0 before that.
	Revision uint64
	// BeforeSeq is the sequence of what it was declared before this rollout
	// declared anything, 0 if that was nothing. See [Member.Before].
	BeforeSeq uint64
	// Recalled: it got its previous declaration back. A node that failed keeps
	// its failure as outcome.
	Recalled bool
	// Declared: this rollout has declared it something.
	Declared bool
	before   *Declaration
}

// Before is what the node was declared before this rollout declared anything,
// nil if that was nothing or the rollout is history: it has ended, and each of
// its nodes has a newer one.
func (m *Member) Before() *Declaration { return m.before }

// Batch is one opened batch.
type Batch struct {
	Number  int
	Stage   int // which of the plan's targets it works towards, from 1
	Nodes   []string
	Opened  time.Time
	Seq     uint64 // of the event that opened it
	EventID string
	Retry   bool
	Tail    bool
	// Closed: it passed, or a halt in it was resumed.
	Closed bool
	Passed bool
	Ended  time.Time // when it was closed
}

// OpenBatch is the batch that waits for its judgement, or nil. Batches of the
// tail are never open: each of their nodes is judged by itself.
func (r *Rollout) OpenBatch() *Batch {
	if k := len(r.Batches); k > 0 && !r.Batches[k-1].Closed && !r.Batches[k-1].Tail {
		return &r.Batches[k-1]
	}
	return nil
}

// Exposed counts the members that were ever declared the version.
func (r *Rollout) Exposed() int {
	n := 0
	for _, m := range r.Members {
		if m.Batch > 0 {
			n++
		}
	}
	return n
}

// Free says whether the node may be chosen for a batch: it was never declared
// the version, or was recalled before it applied it.
func (m *Member) Free() bool { return m.Outcome == Undeclared || m.Outcome == Recalled }

// Counts gives how many members have each outcome.
func (r *Rollout) Counts() map[Outcome]int {
	out := map[Outcome]int{}
	for _, m := range r.Members {
		out[m.Outcome]++
	}
	return out
}

// RecallIntended are the nodes that the rollout's end wants to recall.
func (r *Rollout) RecallIntended() []string {
	switch {
	case r.Abort != nil && len(r.Abort.Recall) > 0:
		return r.Abort.Recall
	case r.Halt != nil && r.Resume == nil:
		return r.Halt.Recall
	}
	return nil
}

// NewRollout is a rollout that has done nothing yet.
func NewRollout(id string, plan events.RolloutStarted) *Rollout {
	r := &Rollout{ID: id, State: Running, Plan: plan, Members: make(map[string]*Member, len(plan.Cohort))}
	for _, n := range plan.Cohort {
		r.Members[n] = &Member{Node: n, Outcome: Undeclared}
	}
	return r
}

func (r *Rollout) apply(rec events.Record, fact events.Fact) {
	r.Seq, r.EventID = rec.Seq, rec.Event.ID
	at := rec.Event.Time
	switch f := fact.(type) {
	case *events.RolloutStarted:
		*r = *NewRollout(r.ID, *f)
		r.Seq, r.EventID, r.Started, r.StartSeq, r.Actor = rec.Seq, rec.Event.ID, at, rec.Seq, rec.Event.Actor
	case *events.BatchOpened:
		r.Batches = append(r.Batches, Batch{
			Number: f.Batch, Stage: f.Stage, Nodes: r.members(f.Nodes), Opened: at, Seq: rec.Seq, EventID: rec.Event.ID,
			Retry: f.Retry, Tail: f.Tail,
		})
		r.LinkIgnored = false
		for _, n := range f.Nodes {
			if m := r.Members[n]; m != nil && m.Outcome != Decommissioned {
				m.Batch, m.Revision = f.Batch, 0
				m.settle(Waiting, "", events.Evidence{}, rec.Seq)
			}
		}
	case *events.BatchPassed:
		r.passed(f.Passed, rec.Seq)
		r.failed(f.Failures, rec.Seq)
		r.closeBatch(f.Batch, at, true)
	case *events.RolloutPaused:
		r.linkBack(at)
		if f.Because == events.ByLink {
			r.LinkAway = append(r.LinkAway, Span{From: f.Control.Since})
		}
		r.State, r.Pause, r.PausedAt = Paused, f, at
	case *events.RolloutResumed:
		r.linkBack(at)
		r.LinkIgnored = f.Because == events.ByOperator && r.Pause != nil && r.Pause.Because == events.ByLink
		if r.State == Halted {
			r.Resume, r.ResumeSeq = f, rec.Seq
			if k := len(r.Batches); k > 0 {
				r.Accepted = r.Batches[k-1].Number
				r.closeBatch(r.Accepted, at, false)
			}
		}
		r.State, r.Pause, r.Ended = Running, nil, time.Time{}
	case *events.RolloutHalted:
		r.linkBack(at)
		r.passed(f.Passed, rec.Seq)
		r.failed(f.Failures, rec.Seq)
		r.State, r.Pause, r.Halt, r.Resume, r.Ended = Halted, nil, f, nil, at
	case *events.RolloutAborted:
		r.linkBack(at)
		r.State, r.Pause, r.Abort, r.Ended = Aborted, nil, f, at
	case *events.RolloutReverted:
		r.linkBack(at)
		r.State, r.Pause, r.Revert, r.Ended = Reverted, nil, f, at
	case *events.RolloutCompleted:
		r.State, r.Complete, r.CompletedSeq, r.Ended = Completed, f, rec.Seq, at
	case *events.RolloutAmended:
		r.passed(f.Passed, rec.Seq)
		r.failed(f.Failures, rec.Seq)
	}
}

// members leaves out who is not in the cohort: only somebody else than the mesh
// writes such a name into the log.
func (r *Rollout) members(nodes []string) []string {
	if !slices.ContainsFunc(nodes, func(id string) bool { return r.Members[id] == nil }) {
		return nodes
	}
	return slices.DeleteFunc(slices.Clone(nodes), func(id string) bool { return r.Members[id] == nil })
}

func (r *Rollout) linkBack(at time.Time) {
	if k := len(r.LinkAway); k > 0 && r.LinkAway[k-1].To.IsZero() {
		r.LinkAway[k-1].To = at
	}
}

func (r *Rollout) closeBatch(number int, at time.Time, passed bool) {
	for i := range r.Batches {
		if b := &r.Batches[i]; b.Number == number {
			b.Closed, b.Passed, b.Ended = true, passed, at
		}
	}
}

func (r *Rollout) passed(list []events.NodePassed, seq uint64) {
	for _, p := range list {
		if m := r.Members[p.Node]; m != nil {
			m.settle(Passed, "", p.Evidence, seq)
		}
	}
}

func (r *Rollout) failed(list []events.Failure, seq uint64) {
	for _, f := range list {
		if m := r.Members[f.Node]; m != nil {
			m.settle(Outcome(f.Kind), f.Detail, f.Evidence, seq)
		}
	}
}

func (m *Member) settle(o Outcome, detail string, ev events.Evidence, seq uint64) {
	m.Outcome, m.Detail, m.Evidence, m.Since = o, detail, ev, seq
}

// declared folds a declaration that this rollout caused. before is what the
// node was declared until then.
func (r *Rollout) declared(d events.Declared, before *Declaration, seq uint64) {
	m := r.Members[d.Node]
	if m == nil {
		return
	}
	switch d.Because.Kind {
	case events.CauseBatch:
		if m.Batch == d.Because.Batch {
			m.Revision, m.Recalled = d.Revision, false
		}
		if !m.Declared {
			m.Declared = true
			if before != nil {
				m.BeforeSeq, m.before = before.Seq, before
			}
		}
	case events.CauseRecall:
		m.Recalled = true
		if m.Outcome == Waiting {
			m.settle(Recalled, "got its previous declaration back", events.Evidence{}, seq)
		}
	case events.CauseRevert:
		if m.Outcome != Decommissioned {
			m.settle(GivenBack, "got what it had before", events.Evidence{}, seq)
		}
	}
}

// decommissioned takes a node out of what is still to be decided. What it did
// before stays a fact.
func (r *Rollout) decommissioned(node string, seq uint64) {
	m := r.Members[node]
	if m == nil {
		return
	}
	switch m.Outcome {
	case Undeclared, Waiting, Recalled:
		m.settle(Decommissioned, "left the fleet", events.Evidence{}, seq)
	}
}

// InOrder gives the rollouts in the order in which they started.
func (m *Mesh) InOrder() []*Rollout {
	var out []*Rollout
	for _, r := range m.Rollouts {
		out = append(out, r)
	}
	sort.Slice(out, func(i, j int) bool { return out[i].StartSeq < out[j].StartSeq })
	return out
}

// OpenOver gives the earliest open rollout over any of the nodes that started
// before the sequence given, or nil.
func (m *Mesh) OpenOver(nodes []string, before uint64) *Rollout {
	for _, r := range m.InOrder() {
		if r.StartSeq >= before || !r.State.Open() {
			continue
		}
		for _, n := range nodes {
			if r.Members[n] != nil {
				return r
			}
		}
	}
	return nil
}

// forget drops what is needed only while declarations may be given back.
func (r *Rollout) forget() {
	for _, m := range r.Members {
		m.before = nil
	}
}
