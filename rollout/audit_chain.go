package rollout

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"noxmesh/events"
	"noxmesh/projections"
)

// maxChains bounds how many states are folded beside each other.
const maxChains = 4

// chain is a fold of both streams that passes through the positions of some
// decisions. One server's positions only rise; several servers, of which one
// reads late, need a fold each.
type chain struct {
	follower
	todo  []*decision // in order of both positions
	wants wanted
}

// wanted is what the stager wants at one position in one rollout, by what it is
// about. A batch is declared to thousands of nodes at one position.
type wanted struct {
	rollout  string
	asOf     events.Position
	decision Decision
	facts    map[string]events.Fact
}

// at is what is wanted at a position, decided once.
func (w *wanted) at(rollout string, asOf events.Position, decide func() Decision) *wanted {
	if w.facts == nil || w.rollout != rollout || w.asOf != asOf {
		*w = wanted{rollout: rollout, asOf: asOf, decision: decide(), facts: map[string]events.Fact{}}
		for _, p := range w.decision.Events {
			w.facts[p.Fact.EventType()+" "+p.Subject] = p.Fact
		}
	}
	return w
}

// fact is what is wanted in the place of a decision, nil if nothing is.
func (w *wanted) fact(d *decision) events.Fact {
	return w.facts[d.fact.EventType()+" "+d.rec.Event.Subject]
}

// chainsOf divides the decisions that can be decided again among few folds.
func chainsOf(records []events.Record, decisions []*decision) []*chain {
	var again []*decision
	for _, d := range decisions {
		if !d.Command && d.AsOf != (events.Position{}) && d.at == d.AsOf.Event {
			again = append(again, d)
		}
	}
	slices.SortStableFunc(again, func(x, y *decision) int {
		return cmp.Or(cmp.Compare(x.AsOf.Heartbeat, y.AsOf.Heartbeat), cmp.Compare(x.at, y.at))
	})
	var chains []*chain
	for _, d := range again {
		var best *chain // whose last position is the closest that is not beyond
		for _, c := range chains {
			if at := c.todo[len(c.todo)-1].at; at <= d.at && (best == nil || at > best.todo[len(best.todo)-1].at) {
				best = c
			}
		}
		switch {
		case best != nil:
			best.todo = append(best.todo, d)
		case len(chains) < maxChains:
			chains = append(chains, &chain{follower: follower{records, projections.NewMesh()}, todo: []*decision{d}})
		default:
			d.notSeen("the state it saw: more than %d servers read apart from each other", maxChains)
		}
	}
	return chains
}

// before decides again what was decided before a heartbeat was read.
func (c *chain) before(a *Audit, beat uint64) error {
	for len(c.todo) > 0 && c.todo[0].AsOf.Heartbeat < beat {
		d := c.todo[0]
		c.todo = c.todo[1:]
		if a.beats == 0 {
			d.notSeen("the heartbeats of then: none is there")
			continue
		}
		if err := c.to(d.at); err != nil {
			return err
		}
		a.again(d, c)
	}
	return nil
}

// Heartbeat gives the next message of HEARTBEATS, after the last event.
func (a *Audit) Heartbeat(msg events.Message) error {
	if err := a.prepare(); err != nil {
		return err
	}
	if msg.Seq <= a.beats {
		return nil
	}
	for _, c := range a.chains {
		if err := c.before(a, msg.Seq); err != nil {
			return err
		}
	}
	a.beats, a.stored = msg.Seq, msg.Stored
	if a.kept++; a.first == 0 {
		a.first = msg.Seq
	}
	for _, c := range a.chains {
		if len(c.todo) > 0 {
			c.mesh.ApplyHeartbeat(msg)
		}
	}
	for _, q := range a.cited[msg.Seq] {
		q.look(msg)
	}
	delete(a.cited, msg.Seq)
	return nil
}

// again makes one decision again, in the state that it was made in as far as
// that is still there.
func (a *Audit) again(d *decision, c *chain) {
	missing := d.AsOf.Heartbeat - a.kept
	lost := a.stored.After(d.Time.Add(clockSlack)) // the broker lost what was there then
	difference := c.differs(d)
	switch {
	case difference == nil:
		d.How = Recomputed
	case missing > 0:
		d.notSeen("%d of the %d heartbeats of then", missing, d.AsOf.Heartbeat)
	case lost:
		d.notSeen("the heartbeats of then: the broker has newer ones in their place")
	default:
		d.findings = append(d.findings, *difference)
	}
}

// clockSlack is how much the clocks of broker and server may differ.
const clockSlack = time.Second

// differs decides again and gives what is different, nil if nothing is.
func (c *chain) differs(d *decision) *Finding {
	w := c.wants.at(d.Rollout, d.AsOf, func() Decision { return Decide(c.mesh, d.Rollout, d.Time) })
	f := &Finding{Event: d.Event, Time: d.Time, Type: d.Type, Rollout: d.Rollout, Node: d.Node, Recorded: brief(d.fact)}
	if want := w.fact(d); want != nil {
		recorded, policy := differences(d.fact, want)
		if recorded == "" && policy == "" {
			return nil
		}
		f.Recorded, f.Policy = recorded, policy
		return f
	}
	if len(w.decision.Events) > 0 {
		f.Policy = brief(w.decision.Events[0].Fact)
	} else if waiting := Explain(c.mesh, d.Rollout, d.Time).Waiting; len(waiting) > 0 {
		f.Policy = "to wait: " + waiting[0]
	} else {
		f.Policy = "there was nothing to do"
	}
	return f
}

// cite is a heartbeat that a decision rests on.
type cite struct {
	d    *decision
	node string
	what string // in words: "shows it present"
	// holds says whether a heartbeat of the node shows what it is cited for.
	holds func(events.Heartbeat) bool
}

// cites notes a heartbeat to look at when it goes by.
func (a *Audit) cites(d *decision, seq uint64, node, what string, holds func(events.Heartbeat) bool) {
	d.cites++
	if d.AsOf.Heartbeat > 0 && seq > d.AsOf.Heartbeat {
		d.finding(fmt.Sprintf("heartbeat %d %s of %s", seq, what, node), "only heartbeats up to %d had been read", d.AsOf.Heartbeat)
		return
	}
	a.cited[seq] = append(a.cited[seq], cite{d, node, what, holds})
}

func (q cite) look(msg events.Message) {
	if msg.Stored.After(q.d.Time.Add(clockSlack)) {
		return // another message has that sequence now: the broker lost what it was
	}
	q.d.seen++
	recorded := fmt.Sprintf("heartbeat %d %s of %s", msg.Seq, q.what, q.node)
	if id, _, err := events.SubjectNode(msg.Subject); err != nil || id != q.node {
		q.d.finding(recorded, "heartbeat %d is on %s", msg.Seq, msg.Subject)
		return
	}
	hb, err := events.DecodeHeartbeat(msg.Data)
	if err != nil {
		q.d.finding(recorded, "heartbeat %d does not read", msg.Seq)
		return
	}
	if q.holds != nil && !q.holds(hb) {
		q.d.finding(recorded, "heartbeat %d says %s, known good %s, revision %d, start %s", msg.Seq, hb.Version, orElse(hb.KnownGood, "none"), hb.Revision, hb.StartID)
	}
}
