package projections

import (
	"sort"
	"time"

	"noxmesh/events"
)

// State of a rollout.
type State string

const (
	Running   State = "running"
	Halted    State = "halted"
	Aborted   State = "aborted"
	Completed State = "completed"
)

// Open says whether the rollout still holds its nodes: no other rollout may
// start over them.
func (s State) Open() bool { return s == Running || s == Halted }

// Rollout is one rollout as its events tell it.
type Rollout struct {
	ID       string
	State    State
	Plan     events.RolloutStarted
	Started  time.Time
	StartSeq uint64 // sequence of the started event: earlier rollouts go first
	Actor    string
	Batches  []Batch
	Halt     *events.RolloutHalted
	Abort    *events.RolloutAborted
	Complete *events.RolloutCompleted
	Ended    time.Time // when it halted, was aborted or completed
	Seq      uint64    // last event on the rollout's subject
	EventID  string    // id of that event: the cause of what follows
	// Recalled are the nodes that got their previous declaration back.
	Recalled map[string]bool
}

// Batch is one opened batch.
type Batch struct {
	Number   int
	Nodes    []string
	Opened   time.Time
	Seq      uint64 // of the event that opened it
	EventID  string
	Passed   *events.BatchPassed
	PassedAt time.Time
	// Declared is, for each node declared so far, the revision it got.
	Declared map[string]uint64
}

// OpenBatch is the batch that waits for its judgement, or nil.
func (r *Rollout) OpenBatch() *Batch {
	if k := len(r.Batches); k > 0 && r.Batches[k-1].Passed == nil {
		return &r.Batches[k-1]
	}
	return nil
}

// Exposed are the nodes of all batches opened so far.
func (r *Rollout) Exposed() map[string]bool {
	out := map[string]bool{}
	for _, b := range r.Batches {
		for _, n := range b.Nodes {
			out[n] = true
		}
	}
	return out
}

// RecallIntended are the nodes that the rollout's end wants to recall.
func (r *Rollout) RecallIntended() []string {
	switch {
	case r.Abort != nil && len(r.Abort.Recall) > 0:
		return r.Abort.Recall
	case r.Halt != nil:
		return r.Halt.Recall
	}
	return nil
}

func (r *Rollout) apply(rec events.Record, fact events.Fact) {
	r.Seq, r.EventID = rec.Seq, rec.Event.ID
	at := rec.Event.Time
	switch f := fact.(type) {
	case *events.RolloutStarted:
		r.State, r.Plan, r.Started, r.StartSeq, r.Actor = Running, *f, at, rec.Seq, rec.Event.Actor
	case *events.BatchOpened:
		r.Batches = append(r.Batches, Batch{
			Number: f.Batch, Nodes: f.Nodes, Opened: at, Seq: rec.Seq, EventID: rec.Event.ID, Declared: map[string]uint64{},
		})
	case *events.BatchPassed:
		if b := r.batch(f.Batch); b != nil {
			b.Passed, b.PassedAt = f, at
		}
	case *events.RolloutHalted:
		r.State, r.Halt, r.Ended = Halted, f, at
	case *events.RolloutAborted:
		r.State, r.Abort, r.Ended = Aborted, f, at
	case *events.RolloutCompleted:
		r.State, r.Complete, r.Ended = Completed, f, at
	}
}

// declared folds a declaration that this rollout caused.
func (r *Rollout) declared(d events.Declared) {
	switch d.Because.Kind {
	case events.CauseBatch:
		if b := r.batch(d.Because.Batch); b != nil {
			b.Declared[d.Node] = d.Revision
		}
	case events.CauseRecall:
		if r.Recalled == nil {
			r.Recalled = map[string]bool{}
		}
		r.Recalled[d.Node] = true
	}
}

func (r *Rollout) batch(number int) *Batch {
	for i := range r.Batches {
		if r.Batches[i].Number == number {
			return &r.Batches[i]
		}
	}
	return nil
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
	wanted := map[string]bool{}
	for _, n := range nodes {
		wanted[n] = true
	}
	for _, r := range m.InOrder() {
		if r.StartSeq >= before || !r.State.Open() {
			continue
		}
		for _, n := range r.Plan.Cohort {
			if wanted[n] {
				return r
			}
		}
	}
	return nil
}
