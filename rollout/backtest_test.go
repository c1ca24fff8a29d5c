package rollout_test

import (
	"testing"
	"time"

	"noxmesh/events"
	"noxmesh/projections"
	"noxmesh/rollout"
	"noxmesh/rollout/simulate"
)

// recorded plays a rollout over forty nodes of which some crash in the last
// batch, under a policy that tolerates them, and gives what is on record.
func recorded(t *testing.T, crashing ...string) *simulate.World {
	t.Helper()
	w := simulate.NewWorld(simulate.Story())
	for i := range 40 {
		w.AddNode("n"+string(rune('a'+i/10))+string(rune('0'+i%10)), "1.0.0", nil)
	}
	w.AddRelease("1.1.0", "amd64")
	w.Advance(20 * time.Second)
	policy := rollout.DefaultPolicy()
	policy.Batches, policy.Tolerate, policy.MaxFailed = []string{"2", "50%", "100%"}, "", 10
	policy.Window = events.Duration(2 * time.Minute)
	if _, err := w.Start(rollout.Request{Version: "1.1.0", Policy: policy, Seed: 5}); err != nil {
		t.Fatal(err)
	}
	w.Advance(time.Minute) // the canaries are on the new version by then
	for _, id := range crashing {
		w.Node(id).SetBehaviour(simulate.Crash)
	}
	w.Advance(15 * time.Minute)
	return w
}

// backtest replays what is on record under a changed policy.
func backtest(t *testing.T, w *simulate.World, change func(events.Policy) events.Policy) *rollout.BacktestResult {
	t.Helper()
	bt := rollout.NewBacktest("r1", change, w.Mesh().Listening.Spans)
	beats := w.Messages()
	done := false
	for _, rec := range w.Records {
		for len(beats) > 0 && beats[0].Stored.Before(rec.Event.Time) && !done {
			done = bt.Beat(beats[0])
			beats = beats[1:]
		}
		var err error
		if done, err = bt.Event(rec); err != nil {
			t.Fatal(err)
		}
	}
	res, err := bt.Result(w.Mesh().Rollouts["r1"])
	if err != nil {
		t.Fatal(err)
	}
	return res
}

// TestBacktest: the policy that was followed gives the recorded end; a stricter
// one stops where it should and says how many nodes it would have spared.
func TestBacktest(t *testing.T) {
	w := recorded(t, "na0", "na1", "na2", "na3", "nb0", "nb1")
	if s := w.Mesh().Rollouts["r1"].State; s != projections.Completed {
		t.Fatalf("the recorded rollout is %s", s)
	}
	same := backtest(t, w, func(p events.Policy) events.Policy { return p })
	if same.Tried.State != projections.Completed || same.Spared != 0 || same.Tried.Declared != 40 {
		t.Errorf("the same policy gives %+v", same)
	}
	auto := backtest(t, w, func(p events.Policy) events.Policy { p.Tolerate = events.TolerateAuto; return p })
	if auto.Tried.State != projections.Halted || auto.Tried.Batch != 2 || auto.Tried.Declared != 20 || auto.Spared != 20 {
		t.Errorf("auto gives %+v", auto)
	}
	if auto.Tried.Diagnosis != events.DiagnosisRelease || auto.Recorded.Declared != 40 {
		t.Errorf("auto gives %+v", auto)
	}
	loose := backtest(t, w, func(p events.Policy) events.Policy { p.Tolerate = "50%"; return p })
	if loose.Tried.State != projections.Completed {
		t.Errorf("half a batch gives %+v", loose)
	}
}

// TestBacktestBeyondTheRecord: a policy that would have gone on where the
// recorded rollout halted says that nobody knows what came next.
func TestBacktestBeyondTheRecord(t *testing.T) {
	var all []string
	for i := range 40 {
		all = append(all, "n"+string(rune('a'+i/10))+string(rune('0'+i%10)))
	}
	w := recorded(t, all...)
	if s := w.Mesh().Rollouts["r1"].State; s != projections.Halted {
		t.Fatalf("the recorded rollout is %s", s)
	}
	res := backtest(t, w, func(p events.Policy) events.Policy { p.MaxFailed = 40; return p })
	if res.Spared != -1 || len(res.Notes) == 0 || res.Tried.State != projections.Running {
		t.Errorf("tolerating everything gives %+v", res)
	}
}
