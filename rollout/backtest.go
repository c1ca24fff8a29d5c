package rollout

import (
	"encoding/json"
	"fmt"
	"time"

	"noxmesh/events"
	"noxmesh/projections"
)

// Backtest replays a recorded rollout under another policy. It takes the log
// and the heartbeats in the order of time. The batches are opened as they were
// recorded; what is decided anew is whether, and when, the rollout would have
// halted. What nodes would have done that were never declared, nobody knows.
type Backtest struct {
	id     string
	change func(events.Policy) events.Policy
	heard  []projections.Span // when the mesh listened
	mesh   *projections.Mesh
	firsts time.Time // first heartbeat there is
	looked time.Time
	out    BacktestResult
	done   bool
}

// BacktestResult says what became of the rollout, and what would have.
type BacktestResult struct {
	Rollout  string        `json:"rollout"`
	Version  string        `json:"version"`
	Cohort   int           `json:"cohort"`
	Policy   events.Policy `json:"policy"` // the one tried
	Recorded BacktestEnd   `json:"recorded"`
	Tried    BacktestEnd   `json:"tried"`
	// Spared is how many nodes fewer would have been declared the version, -1
	// if the policy would have gone on where the record ends.
	Spared int `json:"spared"`
	// Notes say what the answer does not know.
	Notes []string `json:"notes,omitempty"`
}

// BacktestEnd is how a rollout ended, or where its record does.
type BacktestEnd struct {
	State     projections.State `json:"state"`
	Batch     int               `json:"batch"`
	At        time.Time         `json:"at"`
	After     events.Duration   `json:"after"` // since the rollout started
	Declared  int               `json:"declared"`
	Reason    string            `json:"reason,omitempty"`
	Diagnosis events.Diagnosis  `json:"diagnosis,omitempty"`
}

// NewBacktest prepares the replay of one rollout. change gives the policy to
// try, from the recorded one; listening is when the mesh listened, as far as
// its pulses are still there.
func NewBacktest(id string, change func(events.Policy) events.Policy, listening []projections.Span) *Backtest {
	return &Backtest{id: id, change: change, heard: listening, mesh: projections.NewMesh()}
}

// Event replays one event. done says that nothing more can change.
func (b *Backtest) Event(rec events.Record) (done bool, err error) {
	if b.done {
		return true, nil
	}
	own := rec.Event.Subject == b.id
	fact, err := rec.Event.Fact()
	if err == nil && own {
		switch f := fact.(type) {
		case *events.RolloutStarted:
			f.Policy = b.change(f.Policy)
			changed := rec.Event
			if changed.Data, err = json.Marshal(f); err != nil {
				return false, err
			}
			rec = events.Record{Seq: rec.Seq, Event: changed}
			b.out.Policy = f.Policy
		case *events.BatchPassed:
			// Batches close as recorded, but the tried policy has its say before:
			// it may not tolerate what the recorded one did.
			if b.look(rec.Event.Time) {
				return true, nil
			}
		case *events.RolloutHalted, *events.RolloutAborted, *events.RolloutReverted, *events.RolloutCompleted:
			return true, b.recordEnds(rec, fact)
		}
	}
	if err := b.mesh.ApplyEvent(rec); err != nil {
		return false, err
	}
	return b.look(rec.Event.Time), nil
}

// recordEnds is the recorded end of the rollout, which the tried policy has not
// come to before.
func (b *Backtest) recordEnds(rec events.Record, fact events.Fact) error {
	if b.look(rec.Event.Time) {
		return nil
	}
	r := b.mesh.Rollouts[b.id]
	if r == nil {
		return fmt.Errorf("rollout %s ends in the record before it starts", b.id)
	}
	end := b.end(r, rec.Event.Time)
	switch f := fact.(type) {
	case *events.RolloutHalted:
		end.State, end.Reason, end.Diagnosis = projections.Running, "would have gone on where the recorded one halted", ""
		b.out.Spared = -1
		b.note("the recorded rollout halted here (%s); which nodes would have come next is not on record", f.Reason)
	case *events.RolloutCompleted:
		end.State = projections.Completed
	case *events.RolloutAborted:
		end.State, end.Reason = projections.Aborted, f.Reason
	case *events.RolloutReverted:
		end.State, end.Reason = projections.Reverted, f.Reason
	}
	b.out.Tried = end
	b.done = true
	return nil
}

// Beat replays one message of HEARTBEATS.
func (b *Backtest) Beat(msg events.Message) (done bool) {
	if b.done {
		return true
	}
	if id, _, err := events.SubjectNode(msg.Subject); err != nil || id == events.PulseID {
		return false // listening time is known beforehand
	}
	if b.firsts.IsZero() {
		b.firsts = msg.Stored
	}
	b.listen(msg.Stored) // a gap in hearing is one of listening time
	b.mesh.ApplyHeartbeat(msg)
	if msg.Stored.Sub(b.looked) < lookEvery {
		return false
	}
	return b.look(msg.Stored)
}

// lookEvery is how often, in recorded time, heartbeats are looked at. The
// stager itself looks at each pulse, which is less often.
const lookEvery = time.Second

// listen brings the listening time up to a moment.
func (b *Backtest) listen(at time.Time) {
	for _, s := range b.heard {
		if s.From.After(at) {
			continue
		}
		if s.To.After(at) {
			s.To = at
		}
		b.mesh.Listening.Pulse(s.From, s.To)
	}
}

// look asks the tried policy.
func (b *Backtest) look(at time.Time) bool {
	b.looked = at
	b.listen(at)
	r := b.mesh.Rollouts[b.id]
	if r == nil || r.State != projections.Running && r.State != projections.Paused {
		return false
	}
	for _, p := range Decide(b.mesh, b.id, at).Events {
		if f, ok := p.Fact.(*events.RolloutHalted); ok {
			b.out.Tried = b.end(r, at)
			b.out.Tried.State, b.out.Tried.Reason, b.out.Tried.Diagnosis = projections.Halted, f.Reason, f.Diagnosis
			b.done = true
		}
	}
	return b.done
}

func (b *Backtest) end(r *projections.Rollout, at time.Time) BacktestEnd {
	e := BacktestEnd{State: r.State, At: at, After: events.Duration(at.Sub(r.Started)), Declared: r.Exposed()}
	if k := len(r.Batches); k > 0 {
		e.Batch = r.Batches[k-1].Number
	}
	return e
}

func (b *Backtest) note(format string, args ...any) {
	b.out.Notes = append(b.out.Notes, fmt.Sprintf(format, args...))
}

// Result compares the replay with the rollout as it is recorded.
func (b *Backtest) Result(recorded *projections.Rollout) (*BacktestResult, error) {
	r := b.mesh.Rollouts[b.id]
	if r == nil {
		return nil, refuse("rollout %s is not in the record", b.id)
	}
	b.out.Rollout, b.out.Version, b.out.Cohort = b.id, r.Plan.Version, len(r.Plan.Cohort)
	if !b.done {
		b.out.Tried = b.end(r, b.mesh.Listening.Last().To)
		b.note("rollout %s has not ended yet; this is as far as the record goes", b.id)
	}
	if b.firsts.IsZero() || b.firsts.After(r.Started) {
		b.note("heartbeats from before %s have aged out: until then only what nodes reported counts, and silence does not", b.firsts.Format(time.RFC3339))
	}
	at := recorded.Ended
	if at.IsZero() {
		at = b.out.Tried.At
	}
	b.out.Recorded = BacktestEnd{
		State: recorded.State, At: at, After: events.Duration(at.Sub(recorded.Started)), Declared: recorded.Exposed(), Reason: recorded.Reason(),
	}
	for _, batch := range recorded.Batches {
		if !batch.Tail {
			b.out.Recorded.Batch = batch.Number
		}
	}
	if recorded.Halt != nil && recorded.Resume == nil {
		b.out.Recorded.Diagnosis = recorded.Halt.Diagnosis
	}
	if b.out.Spared == 0 {
		b.out.Spared = max(0, b.out.Recorded.Declared-b.out.Tried.Declared)
	}
	return &b.out, nil
}
