package simulate

import (
	"context"
	"errors"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"

	"noxmesh/events"
)

func TestMain(m *testing.M) {
	debug.SetGCPercent(400) // many short-lived states
	os.Exit(m.Run())
}

// TestWorlds plays every world with a smaller fleet, with few enough seeds for
// a test: every law holds, and the judgement is not far off.
func TestWorlds(t *testing.T) {
	seeds := 20
	if testing.Short() {
		seeds = 6
	}
	opts := Options{Cohort: 200, Policy: StatedPolicy()}
	for _, s := range Settings() {
		t.Run(s.Name, func(t *testing.T) {
			t.Parallel()
			rows, broken, err := Sweep(context.Background(), []Setting{s}, 1, seeds, opts, nil)
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range broken {
				short := Shorten(s, r.Seed, opts)
				t.Fatalf("seed %d, cohort %d:\n%s\n%v", r.Seed, short.Cohort, strings.Join(short.Trace, "\n"), r.Err)
			}
			for i, d := range rows[0].Demands {
				// In a fleet of 200 the second batch is 18 nodes: less is seen.
				if most := 20 + s.demands[i].allowed; (seeds-d.Runs)*100 > most*seeds {
					t.Errorf("%q in %d of %d runs only", d.What, d.Runs, seeds)
				}
			}
		})
	}
}

// TestThousands plays one rollout over a large fleet.
func TestThousands(t *testing.T) {
	s, _ := SettingNamed("healthy-2")
	r := Run(s, 1, Options{Cohort: 3000})
	if r.Err != nil || !r.Completed || !r.Reached {
		t.Errorf("%+v", r)
	}
}

// TestSameSeedSameTrace: a seed that failed can be looked at again.
func TestSameSeedSameTrace(t *testing.T) {
	for _, name := range []string{"crash-3", "chaos"} {
		s, _ := SettingNamed(name)
		opts := Options{Cohort: 100, Trace: true}
		a, b, c := Run(s, 7, opts), Run(s, 7, opts), Run(s, 8, opts)
		if len(a.Trace) < 100 || !slices.Equal(a.Trace, b.Trace) {
			t.Errorf("%s: the same seed gave traces of %d and %d lines that differ", name, len(a.Trace), len(b.Trace))
		}
		if slices.Equal(a.Trace, c.Trace) {
			t.Errorf("%s: two seeds gave the same trace", name)
		}
	}
}

// TestLeaving: the fleet leaves as often as the world says, laptops most.
func TestLeaving(t *testing.T) {
	w := NewWorld(Config{Seed: 1, Jitter: time.Second})
	w.populate(4000, oldVersion, 0.05, time.Minute)
	var there, left [2]float64 // servers, laptops: node-windows present, departures
	was := map[*Node]bool{}
	for range 120 { // an hour in steps of half a minute
		for _, n := range w.order {
			kind := 0
			if n.laptop {
				kind = 1
			}
			switch {
			case !n.away:
				there[kind] += 0.05
			case was[n]:
				left[kind]++
			}
			was[n] = !n.away
		}
		w.Advance(30 * time.Second)
	}
	for kind, want := range []float64{0.05 / 7, 0.15} {
		if rate := left[kind] / there[kind]; rate < 0.75*want || rate > 1.25*want {
			t.Errorf("kind %d leaves at %.4f a window, want %.4f", kind, rate, want)
		}
	}
}

// TestShortPast: a past that is not kept leaves the same traces as one that is.
func TestShortPast(t *testing.T) {
	short, whole := NewWorld(Config{Seed: 3}), NewWorld(Config{Seed: 3, Keep: true})
	for _, w := range []*World{short, whole} {
		w.populate(100, oldVersion, 0.05, dayHeard)
	}
	gaps := 0
	for id, n := range whole.Mesh().Nodes {
		o := short.Mesh().Nodes[id]
		gaps += len(n.Hearing) - 1
		if !slices.Equal(n.Hearing, o.Hearing) || n.LastHeard() != o.LastHeard() || n.Heard.StartID != o.Heard.StartID {
			t.Errorf("%s was heard in %v, last %v; the short past says %v, last %v", id, n.Hearing, n.LastHeard(), o.Hearing, o.LastHeard())
		}
	}
	if gaps < 50 || len(whole.stored) < 10*int(short.beats) {
		t.Errorf("%d gaps, %d and %d heartbeats: this shows nothing", gaps, len(whole.stored), short.beats)
	}
}

// TestLawsFindWhatIsBroken feeds the laws logs that are wrong in one way each.
func TestLawsFindWhatIsBroken(t *testing.T) {
	started := &events.RolloutStarted{Version: newVersion, Cohort: []string{"a", "b", "c", "d"}, Targets: []int{2, 4}}
	batch := func(number int, nodes ...string) *events.BatchOpened {
		return &events.BatchOpened{Batch: number, Stage: number, Nodes: nodes, Presence: make([]uint64, len(nodes))}
	}
	tail := func(number int, nodes ...string) *events.BatchOpened {
		b := batch(number, nodes...)
		b.Tail = true
		return b
	}
	declared := func(batch int, node string) *events.Declared {
		return &events.Declared{Node: node, Because: events.DeclarationCause{Kind: events.CauseBatch, Rollout: "r1", Batch: batch},
			Resources: []events.Resource{events.ResourceFromSpec(events.ResourceHost, events.HostPackage,
				events.HostSpec{Release: events.Release{Version: newVersion, Architecture: "amd64"}})}}
	}
	recalled := func(node string) *events.Declared {
		return &events.Declared{Node: node, Because: events.DeclarationCause{Kind: events.CauseRecall, Rollout: "r1", Batch: 1}}
	}
	passed := func(number int, nodes ...string) *events.BatchPassed {
		f := &events.BatchPassed{Batch: number}
		for _, n := range nodes {
			f.Passed = append(f.Passed, events.NodePassed{Node: n})
		}
		return f
	}
	silent := func(nodes ...string) (out []events.Failure) {
		for _, n := range nodes {
			out = append(out, events.Failure{Node: n, Kind: events.Silent})
		}
		return out
	}
	halt := &events.RolloutHalted{Batch: 1, Failures: silent("a", "b")}
	pause, resume := &events.RolloutPaused{Because: events.ByOperator}, &events.RolloutResumed{Mode: events.ResumeRetry}
	release := events.ReleaseKey(newVersion, "amd64")
	good := []events.Fact{started, batch(1, "a", "b"), declared(1, "a"), declared(1, "b")}
	for _, tt := range []struct {
		name  string
		facts []events.Fact
		want  string // empty: no law is broken
	}{
		{"a whole rollout", slices.Concat(good, []events.Fact{passed(1, "a", "b"), batch(2, "c"), declared(2, "c"), passed(2, "c"),
			&events.RolloutCompleted{}, tail(3, "d"), declared(3, "d")}), ""},
		{"halted, resumed, tried again", slices.Concat(good, []events.Fact{halt, recalled("b"), resume, batch(2, "a", "b"), declared(2, "a")}), ""},
		{"a batch while one is open", slices.Concat(good, []events.Fact{batch(2, "c")}), "while batch 1 is open"},
		{"a batch after a halt", slices.Concat(good, []events.Fact{halt, batch(2, "c")}), "while the rollout is halted"},
		{"a batch while paused", []events.Fact{started, pause, batch(1, "a")}, "while the rollout is paused"},
		{"a declaration after a halt", []events.Fact{started, batch(1, "a", "b"), declared(1, "a"), halt, declared(1, "b")}, "the rollout is halted"},
		{"a declaration after an abort", []events.Fact{started, batch(1, "a"), &events.RolloutAborted{}, declared(1, "a")}, "the rollout is ended"},
		{"a declaration without a batch", []events.Fact{started, batch(1, "a"), declared(1, "b")}, "in no batch"},
		{"a declaration of a closed batch", []events.Fact{started, batch(1, "a", "b"), passed(1, "a", "b"), batch(2, "c"), declared(1, "a")}, "that is not open"},
		{"a declaration made twice", slices.Concat(good, []events.Fact{declared(1, "a")}), "a second time"},
		{"a held release", []events.Fact{started, batch(1, "a"), &events.ReleaseHeld{}, declared(1, "a")}, "it is held"},
		{"a node exposed before", slices.Concat(good, []events.Fact{passed(1, "a", "b"), batch(2, "b", "c")}), "passed in batch 1"},
		{"a failed node without a resume", slices.Concat(good, []events.Fact{
			&events.BatchPassed{Batch: 1, Passed: passed(1, "a").Passed, Failures: silent("b")}, batch(2, "b")}), "was exposed in batch 1"},
		{"a batch after nobody passed", slices.Concat(good, []events.Fact{&events.BatchPassed{Batch: 1, Failures: silent("a", "b")}, batch(2, "c")}), "nobody passed"},
		{"a batch that forgets a node", slices.Concat(good, []events.Fact{passed(1, "a")}), "not accounted for"},
		{"a batch that counts a node twice", slices.Concat(good, []events.Fact{passed(1, "a", "a")}), "twice"},
		{"a stranger", []events.Fact{started, batch(1, "x")}, "not in the cohort"},
		{"an unjudged node left behind", slices.Concat(good, []events.Fact{&events.RolloutHalted{Batch: 1, Failures: silent("a")}, resume, batch(2, "a", "c")}), "declared and unjudged"},
		{"completed with an open batch", slices.Concat(good, []events.Fact{&events.RolloutCompleted{}}), "batch open true"},
		{"too much of the tail at once", []events.Fact{started, batch(1, "a"), passed(1, "a"), &events.RolloutCompleted{},
			tail(2, "b", "c"), declared(2, "b"), declared(2, "c")}, "unjudged at once"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := NewLaws()
			var err error
			for i, f := range tt.facts {
				if err != nil {
					t.Fatalf("broken before the last event: %v", err)
				}
				subject := "r1"
				switch f := f.(type) {
				case *events.Declared:
					subject = f.Node
				case *events.ReleaseHeld:
					subject = release
				}
				err = l.Check(events.Record{Seq: uint64(i + 1), Event: events.Event{Type: f.EventType(), Subject: subject}}, f)
			}
			switch {
			case tt.want == "" && err != nil, tt.want != "" && !errors.Is(err, ErrLaw):
				t.Errorf("found %v, want %q", err, tt.want)
			case tt.want != "" && !strings.Contains(err.Error(), tt.want):
				t.Errorf("found %v, want %q", err, tt.want)
			}
		})
	}
}

func BenchmarkRun(b *testing.B) {
	for _, name := range []string{"crash-all", "healthy-2"} {
		b.Run(name, func(b *testing.B) {
			s, _ := SettingNamed(name)
			for i := range b.N {
				Run(s, uint64(i), Options{})
			}
		})
	}
}
