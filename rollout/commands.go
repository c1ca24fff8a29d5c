package rollout

import (
	"noxmesh/events"
	"noxmesh/projections"
)

// What an operator may do with a rollout. Each gives the event to append on the
// rollout's subject, or refuses with the reason and what to do instead.

// Pause stops a running rollout from opening batches. A batch that is open is
// watched on.
func Pause(r *projections.Rollout, reason string) (*events.RolloutPaused, error) {
	switch {
	case r.State == projections.Running:
	case r.State == projections.Paused && r.Pause.Because == events.ByLink:
	case r.State == projections.Paused:
		return nil, refuse("rollout %s is paused already: go on with nox-mesh rollout resume %s", r.ID, r.ID)
	default:
		return nil, refuse("rollout %s is %s: there is nothing to pause", r.ID, r.State)
	}
	return &events.RolloutPaused{Because: events.ByOperator, Reason: reason}, nil
}

// Resume lets a paused or halted rollout go on. After a halt it must be said
// what becomes of the nodes that failed.
func Resume(m *projections.Mesh, r *projections.Rollout, mode events.ResumeMode, reason string) (*events.RolloutResumed, error) {
	switch r.State {
	case projections.Paused:
		if mode != "" {
			return nil, refuse("rollout %s is paused, not halted: nothing is to be tried again or left out. Resume it with nox-mesh rollout resume %s", r.ID, r.ID)
		}
	case projections.Halted:
		if mode != events.ResumeRetry && mode != events.ResumeLeaveOut {
			return nil, refuse("rollout %s is halted: say what becomes of the failed nodes, nox-mesh rollout resume %s --retry or --leave-out", r.ID, r.ID)
		}
		if held := m.HeldOf(r.Plan.Releases); held != nil {
			return nil, refuse("%s is held: %s. Lift the hold first with nox-mesh release lift %s", held.Version, held.Held.Fact.Reason, held.Version)
		}
	case projections.Running:
		return nil, refuse("rollout %s is running: there is nothing to resume", r.ID)
	default:
		return nil, refuse("rollout %s is %s: start another one with nox-mesh rollout start %s", r.ID, r.State, r.Plan.Version)
	}
	return &events.RolloutResumed{Because: events.ByOperator, Mode: mode, Reason: reason}, nil
}

// Abort ends an open rollout. Nodes keep what they run; what was not applied
// yet is taken back.
func Abort(m *projections.Mesh, r *projections.Rollout, reason string) (*events.RolloutAborted, error) {
	if !r.State.Open() {
		return nil, refuse("rollout %s is %s already: there is nothing to abort", r.ID, r.State)
	}
	return &events.RolloutAborted{Reason: reason, Recall: Recallable(m, r)}, nil
}

// Revert ends an open rollout and gives every node that was declared the
// version what it had before.
func Revert(m *projections.Mesh, r *projections.Rollout, reason string) (*events.RolloutReverted, error) {
	if !r.State.Open() {
		return nil, refuse("rollout %s is %s: to go back, start a rollout of the former version, nox-mesh rollout start VERSION", r.ID, r.State)
	}
	out := &events.RolloutReverted{Reason: reason, Nodes: []string{}}
	for _, id := range r.Plan.Cohort {
		member := r.Members[id]
		if member.Batch == 0 || member.Outcome == projections.Decommissioned || !declaredBy(m.Nodes[id], r) {
			continue
		}
		if _, err := revertSpec(m, r, id); err != nil {
			return nil, refuse("node %s cannot be given back what it had: %v", id, err)
		}
		out.Nodes = append(out.Nodes, id)
	}
	if len(out.Nodes) == 0 {
		return nil, refuse("no node stands as rollout %s declared it: end it with nox-mesh rollout abort %s", r.ID, r.ID)
	}
	return out, nil
}
