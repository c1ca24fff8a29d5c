package rollout

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"noxmesh/events"
	"noxmesh/projections"
)

// overtaken is for how long a server that reads late may go on declaring a batch
// that somebody has halted meanwhile. It is taken back when that is read.
const overtaken = 2 * time.Minute

func (a *Audit) checkDeclared(d *decision, m *projections.Mesh, r *projections.Rollout, f *events.Declared) {
	n, member := m.Nodes[f.Node], r.Members[f.Node]
	recorded := brief(f)
	switch {
	case f.Node != d.rec.Event.Subject:
		d.finding(recorded, "it is on the subject of %s", d.rec.Event.Subject)
		return
	case n == nil || member == nil:
		d.finding(recorded, "%s is not in the cohort of %s", f.Node, r.ID)
		return
	case f.Revision != n.Revision()+1:
		d.finding(fmt.Sprintf("revision %d", f.Revision), "revision %d is next", n.Revision()+1)
	}
	d.checkOvertaken(f, a.records)
	switch f.Because.Kind {
	case events.CauseBatch:
		d.checkDeclaredByBatch(m, r, n, member, f)
	case events.CauseRecall:
		if r.State.Open() && r.State != projections.Halted {
			d.finding(recorded, "the rollout is %s: nothing is taken back", r.State)
			return
		}
		a.among(d, func() Decision { return recalls(m, r) })
	case events.CauseRevert:
		switch {
		case r.Revert == nil:
			d.finding(recorded, "nobody reverted rollout %s", r.ID)
		case !slices.Contains(r.Revert.Nodes, f.Node) || !declaredBy(n, r) || member.Outcome == projections.GivenBack:
			d.finding(recorded, "the revert, event %d, does not ask for it", r.Seq)
		case f.Host() != nil && f.Host().Version == r.Plan.Version:
			d.finding(recorded, "what it had before that")
		}
	default:
		d.finding(recorded, "nothing of that kind leads to a declaration")
	}
}

// checkOvertaken notes a declaration of a batch that was written after an event
// that forbids it, by a server that had not read that.
func (d *decision) checkOvertaken(f *events.Declared, records []events.Record) {
	if f.Because.Kind != events.CauseBatch {
		return
	}
	for _, rec := range records[min(d.at, d.Event-1) : d.Event-1] {
		if rec.Event.Subject != d.Rollout {
			continue
		}
		fact, _ := rec.Event.Fact() // it has been read before
		switch fact.(type) {
		case *events.RolloutHalted, *events.RolloutAborted, *events.RolloutReverted:
		default:
			continue
		}
		if late := d.Time.Sub(rec.Event.Time); late > overtaken {
			d.finding(brief(f), "event %d ended that %s before", rec.Seq, round(late))
			return
		}
		d.notSeen("event %d, which ended that: the server that declared it had not read it", rec.Seq)
		return
	}
}

func (d *decision) checkDeclaredByBatch(m *projections.Mesh, r *projections.Rollout, n *projections.Node, member *projections.Member, f *events.Declared) {
	recorded := brief(f)
	b := batchOf(r, f.Because.Batch)
	switch {
	case b == nil || !slices.Contains(b.Nodes, f.Node):
		d.finding(recorded, "no batch %d of %s names it", f.Because.Batch, r.ID)
		return
	case b.Tail && r.State != projections.Completed, !b.Tail && r.State != projections.Running && r.State != projections.Paused:
		d.finding(recorded, "the rollout is %s since event %d: nothing is declared", r.State, r.Seq)
		return
	case !b.Tail && b.Closed:
		d.finding(recorded, "batch %d is closed", b.Number)
	case member.Batch != b.Number || member.Outcome != projections.Waiting:
		d.finding(recorded, "it is %s in batch %d", member.Outcome, member.Batch)
	case member.Revision != 0:
		d.finding(recorded, "batch %d declared revision %d to it already", b.Number, member.Revision)
	}
	if held := m.HeldOf(r.Plan.Releases); held != nil {
		d.finding(recorded, "%s is held since event %d: nobody is declared it", held.Version, held.Held.Seq)
	}
	if d.rec.Event.Cause != b.EventID {
		d.finding("caused by "+d.rec.Event.Cause, "caused by event %d, %s", b.Seq, b.EventID)
	}
	host := f.Host()
	if host == nil {
		d.finding(recorded, "version %s", r.Plan.Version)
		return
	}
	planned, ok := releaseFor(r.Plan.Releases, host.Architecture)
	if !ok || host.Version != planned.Version || host.SHA256 != planned.SHA256 || host.Size != planned.Size {
		d.finding(fmt.Sprintf("%s for %s, sha256 %s", host.Version, host.Architecture, host.SHA256), "what the plan has: %s", strings.Join(releasesSay(r.Plan.Releases), ", "))
	}
	if host.Retry != (r.Plan.Retry || b.Retry) {
		d.finding(fmt.Sprintf("retry %v", host.Retry), "retry %v", r.Plan.Retry || b.Retry)
	}
	// The rest of the declaration stays what it was.
	if have, want := resourcesSay(f.Resources), resourcesSay(withHost(n.Declaration, host)); !slices.Equal(have, want) {
		d.finding("resources "+some(without(have, want)), "%s", some(without(want, have)))
	}
}

func releasesSay(list []events.Release) (out []string) {
	for _, r := range list {
		out = append(out, fmt.Sprintf("%s for %s, sha256 %s", r.Version, r.Architecture, r.SHA256))
	}
	return out
}
