package eventstest_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"noxmesh/events"
	"noxmesh/events/eventstest"
)

func opened(batch int) *events.BatchOpened {
	return &events.BatchOpened{Batch: batch, Nodes: []string{"a"}, Presence: []uint64{1}}
}

func isBatch(n int) eventstest.Filter {
	return eventstest.Match(func(f *events.BatchOpened) error {
		if f.Batch != n {
			return fmt.Errorf("batch %d, want %d", f.Batch, n)
		}
		return nil
	})
}

func TestExpect(t *testing.T) {
	log := eventstest.NewLog(t)
	log.Write(t, "r1", &events.RolloutStarted{Version: "1.1.0"})
	log.Write(t, "r1", opened(1))
	log.Write(t, "r2", opened(2))
	log.Write(t, "r1", opened(2))
	last := log.Write(t, "r1", &events.RolloutHalted{Batch: 2})
	var (
		started = eventstest.Type[*events.RolloutStarted]()
		halted  = eventstest.Type[*events.RolloutHalted]()
		batch   = eventstest.Type[*events.BatchOpened]()
	)
	type call func(*eventstest.Watcher, ...eventstest.Filter) error
	for _, c := range []struct {
		name    string
		call    call
		filters []eventstest.Filter
		want    []string // in the error; none: it passes
	}{
		{"in order, others between", eventstest.Expect, []eventstest.Filter{started, isBatch(2), halted}, nil},
		{"all of them", eventstest.ExpectExactly, []eventstest.Filter{started, isBatch(1), batch, isBatch(2), halted}, nil},
		{"about one rollout", eventstest.Expect, []eventstest.Filter{eventstest.About("r2", batch), eventstest.About("r1", batch)}, nil},
		{"none", eventstest.Expect, nil, nil},
		{"none at all", eventstest.ExpectExactly, nil, []string{"more came than was waited for", "rollout.started", "one too many"}},
		{"wrong order", eventstest.Expect, []eventstest.Filter{halted, started}, []string{
			"waiting for mesh.rollout.started.v1 (2 of 2): it did not come within 100ms", "     5  mesh.rollout.halted.v1  r1", "<- 1 of 2"}},
		{"the same twice", eventstest.Expect, []eventstest.Filter{halted, halted}, []string{"(2 of 2): it did not come"}},
		{"not like this", eventstest.Expect, []eventstest.Filter{isBatch(3)}, []string{"it did not come", "<- batch 1, want 3", "<- batch 2, want 3"}},
		{"another rollout", eventstest.Expect, []eventstest.Filter{eventstest.About("r3", halted)}, []string{"mesh.rollout.halted.v1 about r3"}},
		{"one too few", eventstest.ExpectExactly, []eventstest.Filter{started, isBatch(1), batch, isBatch(2)}, []string{
			"more came than was waited for", "     5  mesh.rollout.halted.v1  r1", "one too many"}},
		{"another between", eventstest.ExpectExactly, []eventstest.Filter{started, isBatch(2)}, []string{
			"waiting for mesh.rollout.batch-opened.v2 (2 of 2): another event came", "<- batch 1, want 2"}},
		{"another before", eventstest.ExpectExactly, []eventstest.Filter{halted}, []string{"another event came", "mesh.rollout.started.v1"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := eventstest.NewWatcher(t, log.Log, events.ReadOptions{})
			if c.want != nil {
				w.Timeout = 100 * time.Millisecond
			}
			err := c.call(w, c.filters...)
			if (err == nil) != (c.want == nil) {
				t.Fatalf("it says %v", err)
			}
			for _, text := range c.want {
				if !strings.Contains(err.Error(), text) {
					t.Errorf("%q is not in: %v", text, err)
				}
			}
		})
	}

	t.Run("one call after another", func(t *testing.T) {
		w := eventstest.NewWatcher(t, log.Log, events.ReadOptions{From: 2, Subjects: []string{events.EventSubject(events.AggregateRollout, "r1")}})
		if err := eventstest.Expect(w, batch); err != nil {
			t.Error(err)
		}
		if err := eventstest.ExpectExactly(w, isBatch(2), halted); err != nil {
			t.Error(err)
		}
		go log.Write(t, "r1", &events.RolloutAborted{})
		if err := eventstest.ExpectExactly(w, eventstest.Type[*events.RolloutAborted]()); err != nil {
			t.Error(err)
		}
	})
	t.Run("nothing came", func(t *testing.T) {
		w := eventstest.NewWatcher(t, log.Log, events.ReadOptions{From: last + 10})
		w.Timeout = 50 * time.Millisecond
		if err := eventstest.Expect(w, halted); err == nil || !strings.Contains(err.Error(), "no event was seen") {
			t.Errorf("it says %v", err)
		}
	})
}
