package rollout_test

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"noxmesh/events"
	"noxmesh/projections"
	"noxmesh/rollout"
)

// laws checks the invariants of the package's doc after each event, from the
// records alone.
type laws struct {
	t        *rapid.T
	rollouts map[string]*law
	declared map[string]bool // rollout/batch/node
}

type law struct {
	running  bool
	open     map[string]bool // nodes of the open batch
	exposed  map[string]bool
	passed   bool // the last batch passed, or there is none
	batches  int
	firstLen int
}

func (l *laws) check(rec events.Record) {
	fact, err := rec.Event.Fact()
	if err != nil {
		l.t.Fatal(err)
	}
	r := l.rollouts[rec.Event.Subject]
	switch f := fact.(type) {
	case *events.RolloutStarted:
		l.rollouts[rec.Event.Subject] = &law{running: true, passed: true, exposed: map[string]bool{}}
	case *events.BatchOpened:
		if !r.running || !r.passed {
			l.t.Fatalf("event %d opens batch %d though running=%v passed=%v", rec.Seq, f.Batch, r.running, r.passed)
		}
		r.passed, r.open, r.batches = false, map[string]bool{}, r.batches+1
		for _, n := range f.Nodes {
			if r.exposed[n] {
				l.t.Fatalf("event %d opens batch %d with %s, which was exposed before", rec.Seq, f.Batch, n)
			}
			r.open[n], r.exposed[n] = true, true
		}
		if r.batches == 1 {
			r.firstLen = len(f.Nodes)
		}
	case *events.BatchPassed:
		if !r.running || r.passed || len(f.Passed)+len(f.Failures) != len(r.open) {
			l.t.Fatalf("event %d passes batch %d of %d nodes with %d judged", rec.Seq, f.Batch, len(r.open), len(f.Passed)+len(f.Failures))
		}
		r.passed = true
	case *events.RolloutHalted:
		if !r.running {
			l.t.Fatalf("event %d halts a rollout that does not run", rec.Seq)
		}
		r.running = false
	case *events.RolloutCompleted:
		if !r.running || !r.passed {
			l.t.Fatalf("event %d completes a rollout with an open batch", rec.Seq)
		}
		r.running = false
	case *events.Declared:
		if f.Because.Kind != events.CauseBatch {
			return
		}
		r := l.rollouts[f.Because.Rollout]
		key := fmt.Sprint(f.Because, f.Node)
		switch {
		case l.declared[key]:
			l.t.Fatalf("event %d declares %s twice", rec.Seq, key)
		case !r.running:
			l.t.Fatalf("event %d declares %s after the rollout ended", rec.Seq, f.Node)
		case r.passed || !r.open[f.Node]:
			l.t.Fatalf("event %d declares %s, which is not in the open batch", rec.Seq, f.Node)
		}
		l.declared[key] = true
	}
}

// second is another server: it reads the same streams late, and decides.
type second struct {
	mesh  *projections.Mesh
	queue []func(*projections.Mesh)
	due   []time.Time
}

func (s *second) catchUp(now time.Time) {
	for len(s.queue) > 0 && !s.due[0].After(now) {
		s.queue[0](s.mesh)
		s.queue, s.due = s.queue[1:], s.due[1:]
	}
}

// TestLaws runs rollouts over nodes that behave at random, with a second server
// that lags, servers that stop and start, and links that go.
func TestLaws(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld()
		w.quiet = true
		l := &laws{t: t, rollouts: map[string]*law{}, declared: map[string]bool{}}
		other := &second{mesh: projections.NewMesh()}
		lag := time.Duration(rapid.IntRange(0, 40).Draw(t, "lag")) * time.Second
		w.onEvent = func(rec events.Record) {
			l.check(rec)
			other.queue = append(other.queue, func(m *projections.Mesh) { _ = m.ApplyEvent(rec) })
			other.due = append(other.due, w.now.Add(lag))
		}
		w.onBeat = func(msg events.Message) {
			other.queue = append(other.queue, func(m *projections.Mesh) { m.ApplyHeartbeat(msg) })
			other.due = append(other.due, w.now.Add(lag))
		}
		nodes := rapid.IntRange(1, 9).Draw(t, "nodes")
		modes := rapid.SampledFrom([]string{"upgrade", "upgrade", "upgrade", "crash", "stuck", "loop", "die", "refuse"})
		allCrash := rapid.Bool().Draw(t, "all crash")
		for i := range nodes {
			id := fmt.Sprintf("n%d", i)
			w.enroll(id, "1.0.0", nil)
			w.nodes[id].mode = modes.Draw(t, id)
			if allCrash {
				w.nodes[id].mode = "crash"
			}
		}
		w.release("1.1.0")
		w.advance(20 * time.Second)
		policy := rollout.DefaultPolicy()
		policy.Batches = rapid.SampledFrom([][]string{{"2", "25%", "100%"}, {"1", "100%"}, {"100%"}, {"50%", "100%"}}).Draw(t, "batches")
		policy.Window = events.Duration(2 * time.Minute)
		policy.MaxFailed = rapid.IntRange(0, 2).Draw(t, "max failed")
		id, err := w.start(rollout.Request{Version: "1.1.0", Policy: policy, Seed: rapid.Uint64().Draw(t, "seed")})
		if err != nil {
			t.Fatal(err)
		}
		for step := 0; step < 40 && w.mesh.Rollouts[id].State == projections.Running; step++ {
			switch rapid.IntRange(0, 9).Draw(t, "what") {
			case 0: // the mesh is down for a while; the second server too
				w.deaf = true
				w.advance(time.Duration(rapid.IntRange(1, 600).Draw(t, "down")) * time.Second)
				w.deaf, w.since = false, w.now
			case 1: // this server starts again: its state is a fold of the log
				w.refold(t)
			case 2:
				n := w.nodes[rapid.SampledFrom(w.ids()).Draw(t, "node")]
				n.away = !n.away
			case 3: // the second server decides on what it knows
				other.catchUp(w.now)
				for _, p := range rollout.Decide(other.mesh, id, w.now).Events {
					_ = w.carryOut(p) // a conflict is what may happen
				}
			}
			w.advance(time.Duration(rapid.IntRange(1, 30).Draw(t, "span")) * time.Second)
			s := rollout.StatusOf(w.mesh, id, w.now)
			sum := 0
			for _, k := range s.Counts {
				sum += k
			}
			if sum != nodes || len(s.Nodes) != nodes {
				t.Fatalf("counts %v do not add up to %d", s.Counts, nodes)
			}
		}
		if r := l.rollouts[id]; allCrash && len(r.exposed) > r.firstLen {
			t.Fatalf("a release that never starts exposed %d nodes, %d were canaries", len(r.exposed), r.firstLen)
		}
	})
}

// refold replaces the state by a fold of what was stored, and checks that it is
// the same: nothing that matters lives outside of the log.
func (w *world) refold(t *rapid.T) {
	fresh := projections.NewMesh()
	for _, rec := range w.records {
		if err := fresh.ApplyEvent(rec); err != nil {
			t.Fatal(err)
		}
		if err := fresh.ApplyEvent(rec); err != nil { // twice is the same as once
			t.Fatal(err)
		}
	}
	for _, msg := range w.messages {
		fresh.ApplyHeartbeat(msg)
		fresh.ApplyHeartbeat(msg)
	}
	was, is := dump(t, w.mesh), dump(t, fresh)
	if was != is {
		t.Fatalf("a fold of the log is not the live state:\n%s\n%s", was, is)
	}
	w.mesh = fresh
}

func dump(t *rapid.T, m *projections.Mesh) string {
	raw, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}
