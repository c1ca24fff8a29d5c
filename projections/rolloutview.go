package projections

import (
	"time"

	"noxmesh/events"
)

// RolloutView is one rollout as a person or a tool sees it, without its nodes.
// It follows from the log alone: it does not change with the clock. Its counts
// add up to the cohort.
type RolloutView struct {
	ID        string           `json:"id"`
	Version   string           `json:"version"`
	State     State            `json:"state"`
	Started   time.Time        `json:"started"`
	Actor     string           `json:"actor"`
	Ended     *time.Time       `json:"ended,omitempty"`
	Reason    string           `json:"reason,omitempty"`
	Diagnosis events.Diagnosis `json:"diagnosis,omitempty"`
	// Paused says by whom or what a paused rollout is paused.
	Paused *events.RolloutPaused `json:"paused,omitempty"`
	// Held says why the release is held, empty if it is not.
	Held     string          `json:"held,omitempty"`
	Cohort   int             `json:"cohort"`
	Batch    int             `json:"batch"`   // opened so far, without the tail's
	Batches  int             `json:"batches"` // planned
	Stage    int             `json:"stage"`   // which of the planned batches is at work or was last
	Declared int             `json:"declared"`
	Counts   map[Outcome]int `json:"counts"`
	// Spared are the nodes that never heard of the release, or were taken back
	// before they applied it.
	Spared int `json:"spared"`
	// Common is what the failed have in common, Control what became of the
	// nodes that were told nothing.
	Common   []events.Trait `json:"common,omitempty"`
	Control  events.Control `json:"control,omitzero"`
	Policy   events.Policy  `json:"policy"`
	Seed     uint64         `json:"seed"`
	Selector string         `json:"selector,omitempty"`
}

// RolloutView makes the view of a rollout.
func (m *Mesh) RolloutView(r *Rollout) RolloutView {
	v := RolloutView{
		ID: r.ID, Version: r.Plan.Version, State: r.State, Started: r.Started, Actor: r.Actor, Reason: r.Reason(),
		Cohort: len(r.Plan.Cohort), Batches: len(r.Plan.Targets), Paused: r.Pause, Counts: r.Counts(),
		Spared: r.Spared(), Policy: r.Plan.Policy, Seed: r.Plan.Seed, Selector: r.Plan.Selector,
	}
	if !r.Ended.IsZero() {
		ended := r.Ended
		v.Ended = &ended
	}
	if held := m.HeldOf(r.Plan.Releases); held != nil {
		v.Held = held.Held.Fact.Reason
	}
	if r.Halt != nil && r.Resume == nil {
		v.Diagnosis, v.Control, v.Common = r.Halt.Diagnosis, r.Halt.Control, r.Halt.Common
	}
	for _, b := range r.Batches {
		if !b.Tail {
			v.Batch++
			v.Stage = b.Stage
		}
	}
	for _, member := range r.Members {
		if member.Revision > 0 {
			v.Declared++
		}
	}
	return v
}

// Spared counts the members that never heard of the release, or were taken back
// before they applied it.
func (r *Rollout) Spared() int {
	n := 0
	for _, m := range r.Members {
		if m.Free() {
			n++
		}
	}
	return n
}

// Reason is why the rollout stands still or ended, in the words of whoever
// stopped it.
func (r *Rollout) Reason() string {
	switch {
	case r.Revert != nil && r.Revert.Reason != "":
		return r.Revert.Reason
	case r.Abort != nil && r.Abort.Reason != "":
		return r.Abort.Reason
	case r.Pause != nil:
		return r.Pause.Reason
	case r.Halt != nil && r.Resume == nil:
		return r.Halt.Reason
	}
	return ""
}
