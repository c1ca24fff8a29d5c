package rollout

import (
	"fmt"
	"time"

	"noxmesh/events"
	"noxmesh/projections"
)

// commandSlack is how long after a user was shut out a command of theirs may
// still be carried out that was given before.
const commandSlack = 2 * time.Minute

// checkCommand looks at what an operator did: it is theirs to decide, if they are
// one.
func (a *Audit) checkCommand(d *decision, m *projections.Mesh) {
	actor := d.rec.Event.Actor
	if len(m.Users) > 0 { // there were none in 0.1
		switch u := m.Users[actor]; {
		case u == nil:
			d.finding("commanded by "+actor, "nobody of that name was given a credential")
		case u.Role != roleOperator && d.Time.Sub(u.At) > commandSlack:
			d.finding("commanded by "+actor, "%s is %s: only operators command that", actor, u.Role)
		case u.Revoked && d.Time.Sub(u.At) > commandSlack:
			d.finding("commanded by "+actor, "%s was shut out by event %d", actor, u.LastSeq)
		}
	}
	if f, ok := d.fact.(*events.RolloutStarted); ok {
		if r := m.Rollouts[d.Rollout]; r != nil && r.StartSeq != 0 {
			d.finding(fmt.Sprintf("started %s over %d nodes", f.Version, len(f.Cohort)), "it was started by event %d already", r.StartSeq)
		}
		return
	}
	r := m.Rollouts[d.Rollout]
	if r == nil || r.StartSeq == 0 {
		d.finding(brief(d.fact), "there is no rollout %s that was started", d.Rollout)
		return
	}
	switch f := d.fact.(type) {
	case *events.RolloutPaused:
		if r.State == projections.Paused && r.Pause.Because != events.ByLink {
			d.finding(brief(f), "it was paused already")
		} else {
			d.checkState(r, projections.Running, projections.Paused)
		}
	case *events.RolloutResumed:
		if d.checkState(r, projections.Paused, projections.Halted) && (r.State == projections.Halted) != (f.Mode != "") {
			d.finding(fmt.Sprintf("resumed, mode %q", f.Mode), "the rollout is %s", r.State)
		}
	case *events.RolloutAborted:
		d.checkState(r, projections.Running, projections.Paused, projections.Halted)
		d.checkRecall(m, r, f.Recall)
	case *events.RolloutReverted:
		d.checkState(r, projections.Running, projections.Paused, projections.Halted)
		for _, id := range f.Nodes {
			if member := r.Members[id]; member == nil || member.Batch == 0 {
				d.finding(id+" gets back what it had", "it was never told of %s", r.Plan.Version)
			}
		}
	}
}

// roleOperator is the role of who may command a rollout.
const roleOperator = "operator"
