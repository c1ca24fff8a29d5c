package rollout_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"noxmesh/events"
	"noxmesh/projections"
	"noxmesh/rollout"
	"noxmesh/rollout/simulate"
)

// TestLaws runs rollouts over nodes that behave at random, with a second server
// that lags, servers that stop and start, links that go, and an operator who
// does what comes to mind. [simulate.Laws] says what must hold. What rapid
// finds it also shortens; package simulate plays larger worlds.
func TestLaws(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := simulate.Story()
		cfg.Seed = rapid.Uint64().Draw(t, "world")
		cfg.Stop = rapid.SampledFrom([]float64{0, 0, 0.03, 0.2}).Draw(t, "stop")
		cfg.Lose = rapid.SampledFrom([]float64{0, 0, 0.3}).Draw(t, "lose")
		cfg.Repeat = cfg.Lose
		w := simulate.NewWorld(cfg)
		w.OnEvent = func(rec events.Record, fact events.Fact) { t.Log(simulate.TraceLine(rec, fact)) }
		if lag := rapid.IntRange(0, 40).Draw(t, "lag"); lag > 0 {
			w.AddServer(time.Duration(lag) * time.Second)
		}
		nodes := rapid.IntRange(1, 9).Draw(t, "nodes")
		behaviours := rapid.SampledFrom([]simulate.Behaviour{simulate.Upgrade, simulate.Upgrade, simulate.Upgrade,
			simulate.Crash, simulate.Stuck, simulate.Loop, simulate.Perish, simulate.Refuse})
		allCrash := rapid.Bool().Draw(t, "all crash")
		for i := range nodes {
			n := w.AddNode(fmt.Sprintf("n%d", i), "1.0.0", nil)
			n.SetBehaviour(behaviours.Draw(t, n.ID))
			if allCrash {
				n.SetBehaviour(simulate.Crash)
			}
		}
		w.AddRelease("1.1.0", "amd64")
		w.Advance(20 * time.Second)
		policy := rollout.DefaultPolicy()
		policy.Batches = rapid.SampledFrom([][]string{{"2", "25%", "100%"}, {"1", "100%"}, {"100%"}, {"50%", "100%"}}).Draw(t, "batches")
		policy.Window = events.Duration(2 * time.Minute)
		policy.Tolerate = rapid.SampledFrom([]string{"", "", events.TolerateAuto, "40%"}).Draw(t, "tolerate")
		policy.MaxFailed = rapid.IntRange(0, 2).Draw(t, "max failed")
		id, err := w.Start(rollout.Request{Version: "1.1.0", Policy: policy, Seed: rapid.Uint64().Draw(t, "seed")})
		if err != nil {
			t.Fatal(err)
		}
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			name := rapid.SampledFrom(w.Nodes()).Draw(t, "node")
			switch rapid.IntRange(0, 12).Draw(t, "what") {
			case 0: // the mesh is down for a while
				w.SetDeaf(true)
				w.Advance(time.Duration(rapid.IntRange(1, 600).Draw(t, "down")) * time.Second)
				w.SetDeaf(false)
			case 1: // this server starts again: its state is a fold of the log
				if err := w.Refold(); err != nil {
					t.Fatal(err)
				}
			case 2:
				w.Node(name).SetAway(!w.Node(name).Away())
			case 3:
				w.Node(name).RollBack()
			case 4:
				if rapid.IntRange(0, 3).Draw(t, "scrap") == 0 {
					w.Decommission(name)
				}
			case 5:
				w.Hold("1.1.0", "by hand")
			case 6:
				w.Lift("1.1.0", "")
			case 7:
				command(t, w, id)
			}
			w.Advance(time.Duration(rapid.IntRange(1, 60).Draw(t, "span")) * time.Second)
			if err := w.Err(); err != nil {
				t.Fatal(err)
			}
		}
		w.Advance(4 * time.Minute) // every server is back by then
		if err := errors.Join(w.Err(), w.Settled(), notClean(w.Records, w.Messages()), notClean(w.Records, nil)); err != nil {
			t.Fatal(err)
		}
		s := rollout.StatusOf(w.Mesh(), id, w.Now())
		if len(s.Nodes) != nodes {
			t.Fatalf("the status has %d nodes, want %d", len(s.Nodes), nodes)
		}
	})
}

// command is an operator's, if it makes sense.
func command(t *rapid.T, w *simulate.World, id string) {
	m := w.Mesh()
	r := m.Rollouts[id]
	var fact events.Fact
	var err error
	switch rapid.IntRange(0, 9).Draw(t, "command") {
	case 0, 1, 2:
		fact, err = rollout.Pause(r, "")
	case 3:
		fact, err = rollout.Abort(m, r, "")
	case 4:
		fact, err = rollout.Revert(m, r, "")
	default:
		mode := events.ResumeMode("")
		if r.State == projections.Halted {
			mode = rapid.SampledFrom([]events.ResumeMode{events.ResumeRetry, events.ResumeLeaveOut}).Draw(t, "mode")
		}
		fact, err = rollout.Resume(m, r, mode, "")
	}
	if errors.Is(err, rollout.ErrRefused) {
		return
	}
	if err := w.Do(id, fact); err != nil && !errors.Is(err, simulate.ErrConflict) {
		t.Fatal(err)
	}
}
