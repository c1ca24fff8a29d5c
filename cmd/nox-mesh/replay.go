package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"noxmesh/events"
	"noxmesh/projections"
	"noxmesh/rollout"
)

// maxPause bounds one wait of a replay; what is longer is skipped, and said.
const maxPause = 5 * time.Second

// replay folds the log as the mesh does and tells what each event changed. It
// reads no clock: sleep is how it waits.
type replay struct {
	out   io.Writer
	sleep func(ctx context.Context, d time.Duration) error

	// What is told: from a sequence and a moment on, about a rollout if one is
	// named. All that comes before is folded in silence.
	fromSeq  uint64
	fromTime time.Time
	rollout  string
	// Where it ends: after a sequence, or before the first event that is later
	// than a moment.
	lastSeq uint64
	to      time.Time
	speed   float64 // 0: as fast as it can

	mesh   *projections.Mesh
	last   time.Time // of the event folded last
	toldAt time.Time // of the event told last
	told   int
	said   map[string]string // of each rollout
}

func newReplay(out io.Writer, sleep func(context.Context, time.Duration) error) *replay {
	return &replay{out: out, sleep: sleep, mesh: projections.NewMesh(), said: map[string]string{}}
}

// errReplayed ends the reading of the log: the replay is where it was to end.
var errReplayed = errors.New("replayed")

// event replays one event.
func (r *replay) event(ctx context.Context, rec events.Record) error {
	if r.lastSeq != 0 && rec.Seq > r.lastSeq || !r.to.IsZero() && rec.Event.Time.After(r.to) {
		return errReplayed
	}
	if rec.Seq < r.fromSeq || rec.Event.Time.Before(r.fromTime) || !r.about(rec) {
		r.last = rec.Event.Time
		return r.mesh.ApplyEvent(rec)
	}
	if err := r.pause(ctx, rec.Event.Time); err != nil {
		return err
	}
	fact, err := rec.Event.Fact()
	if err != nil && !errors.Is(err, events.ErrUnknownType) {
		return err
	}
	node := nodeOf(rec.Event)
	before := r.view(node)
	if err := r.mesh.ApplyEvent(rec); err != nil {
		return err
	}
	r.last = rec.Event.Time
	changed := append(nodeChanges(before, r.view(node)), r.rolloutChanges(rec, fact)...)
	r.told++
	r.toldAt = rec.Event.Time
	line := fmt.Sprintf("%6d  %s  %s %s", rec.Seq, rec.Event.Time.Local().Format(time.DateTime), projections.ShortType(rec.Event.Type), rec.Event.Subject)
	if text := describe(fact); text != "" {
		line += ": " + cut(text, 70)
	}
	if len(changed) > 0 {
		line += "  =>  " + strings.Join(changed, "; ")
	}
	_, err = fmt.Fprintln(r.out, line)
	return err
}

// pause waits as long as the record did, at the speed that is wanted.
func (r *replay) pause(ctx context.Context, at time.Time) error {
	if r.speed == 0 || r.told == 0 || !at.After(r.toldAt) {
		return ctx.Err()
	}
	recorded := at.Sub(r.toldAt)
	wait := time.Duration(float64(recorded) / r.speed)
	if wait > maxPause {
		fmt.Fprintf(r.out, "        %s later\n", recorded.Round(time.Second))
		wait = maxPause
	}
	return r.sleep(ctx, wait)
}

// about says whether an event is about the rollout that is asked for, if one is.
func (r *replay) about(rec events.Record) bool {
	if r.rollout == "" || rec.Event.Subject == r.rollout {
		return true
	}
	if fact, err := rec.Event.Fact(); err == nil {
		if d, ok := fact.(*events.Declared); ok {
			return d.Because.Rollout == r.rollout
		}
	}
	o := r.mesh.Rollouts[r.rollout]
	return o != nil && o.Members[nodeOf(rec.Event)] != nil
}

// nodeOf is the node that an event is about, or "".
func nodeOf(e events.Event) string {
	if strings.HasPrefix(e.Type, "mesh.node.") || strings.HasPrefix(e.Type, "mesh.declaration.") {
		return e.Subject
	}
	return ""
}

func (r *replay) view(node string) projections.NodeView {
	if n := r.mesh.Nodes[node]; n != nil {
		return n.View()
	}
	return projections.NodeView{}
}

// nodeChanges words what an event changed about a node.
func nodeChanges(before, after projections.NodeView) (out []string) {
	say := func(what, from, to string) {
		if from == to {
			return
		}
		text := fmt.Sprintf("%s: %s %s", after.Node, what, cmp.Or(to, "no version"))
		if from != "" {
			text += ", was " + from
		}
		out = append(out, text)
	}
	say("declared", before.Declared, after.Declared)
	say("runs", before.Running, after.Running)
	if after.Refused != "" && before.Refused != after.Refused {
		out = append(out, fmt.Sprintf("%s: will not install %s", after.Node, after.Refused))
	}
	if after.Revoked != before.Revoked {
		out = append(out, after.Node+": "+map[bool]string{true: "not let in any more", false: "let in"}[after.Revoked])
	}
	return out
}

// rolloutChanges words how the rollouts stand that an event may have moved.
func (r *replay) rolloutChanges(rec events.Record, fact events.Fact) (out []string) {
	var moved []*projections.Rollout
	switch f := fact.(type) {
	case *events.Declared:
		moved = append(moved, r.mesh.Rollouts[f.Because.Rollout])
	case *events.NodeDecommissioned:
		moved = r.mesh.InOrder()
	default:
		moved = append(moved, r.mesh.Rollouts[rec.Event.Subject])
	}
	for _, o := range moved {
		if o == nil {
			continue
		}
		if now := standing(o); now != r.said[o.ID] {
			r.said[o.ID] = now
			out = append(out, o.ID+": "+now)
		}
	}
	return out
}

// standing words how a rollout stands.
func standing(o *projections.Rollout) string {
	text := ""
	if o.State != projections.Running {
		text = string(o.State) + ", "
	}
	k := len(o.Batches)
	if k == 0 {
		return text + countText(o.Counts(), nil)
	}
	in := map[projections.Outcome]int{}
	for _, node := range o.Batches[k-1].Nodes {
		if m := o.Members[node]; m != nil {
			in[m.Outcome]++
		}
	}
	return fmt.Sprintf("%sbatch %d: %s", text, o.Batches[k-1].Number, countText(in, nil))
}

// end prints the fleet and the rollouts as they were after the last event.
func (r *replay) end() {
	m := r.mesh
	if m.EventSeq == 0 {
		fmt.Fprintln(r.out, "there was no event yet")
		return
	}
	fmt.Fprintf(r.out, "\nas of event %d, %s; heartbeats are not in the log, so RUNNING is what a\nnode reported last: that it confirmed a version, or went back to one\n\n",
		m.EventSeq, r.last.Local().Format(time.DateTime))
	views, _ := m.Fleet("", len(m.Nodes))
	if len(views) == 0 {
		fmt.Fprintln(r.out, "no node was enrolled")
	} else {
		t := newTable(r.out, "NODE", "LABELS", "DECLARED", "RUNNING", "NOTE")
		for _, v := range views {
			t.row(v.Node, labelText(v.Labels), dash(v.Declared), dash(v.Running), note(v))
		}
		t.end()
	}
	fmt.Fprintln(r.out)
	list := m.InOrder()
	if len(list) == 0 {
		fmt.Fprintln(r.out, "there was no rollout")
		return
	}
	slices.Reverse(list)
	t := newTable(r.out, "ID", "VERSION", "STATE", "STARTED", "BY", "NODES", "NOTE")
	for _, o := range list {
		s := rollout.StatusOf(m, o.ID, r.last)
		text := s.Reason
		if s.Paused != nil {
			text = pauseText(s.Paused)
		}
		t.row(s.ID, s.Version, s.State, s.Started.Local().Format(time.DateTime), s.Actor, fmt.Sprintf("%d of %d", s.Counts[projections.Passed], s.Cohort), dash(cut(text, 50)))
	}
	t.end()
}
