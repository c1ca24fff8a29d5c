package server

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"noxmesh/events"
)

// asked gives the subjects of what the log answers.
func (w *whole) asked(t *testing.T, q LogRequest) string {
	t.Helper()
	var got []string
	err := w.client.ReadLog(testContext(t), q, false, func(rec events.Record) error {
		got = append(got, rec.Event.Subject)
		return nil
	})
	if err != nil {
		t.Errorf("%+v: %v", q, err)
	}
	return strings.Join(got, " ")
}

func TestLogIsAskedByEachFilter(t *testing.T) {
	w := startServer(t, t.TempDir())
	ctx := testContext(t)
	w.fleetOf(t, "n1", "n2")
	if _, err := w.client.Hold(ctx, "1.1.0", "leaks"); err != nil {
		t.Fatal(err)
	}
	if _, err := w.client.Lift(ctx, "1.1.0", ""); err != nil {
		t.Fatal(err)
	}
	if _, err := w.client.StartRollout(ctx, StartRequest{Version: "1.1.0", Policy: twoByOne}); err != nil {
		t.Fatal(err)
	}
	canary := w.batch(t, "r1", 1).Nodes[0]
	all := w.page(t, LogRequest{})
	opened := w.page(t, LogRequest{Type: "batch-opened"}).Events[0]
	rec, err := opened.Decode()
	if err != nil {
		t.Fatal(err)
	}
	last := all.Events[len(all.Events)-1]
	key := events.ReleaseKey("1.1.0", "amd64")
	for _, c := range []struct {
		name string
		q    LogRequest
		want string
	}{
		{"a release", LogRequest{Release: "1.1.0", Type: "held"}, key},
		{"a release and its rollouts", LogRequest{Release: "1.1.0", Actor: "stager"}, "r1 " + canary},
		{"a release's key", LogRequest{Release: key, Type: "release.added"}, key},
		{"a release of one architecture", LogRequest{Release: "1.1.0/amd64", Type: "hold-lifted"}, key},
		{"a release of another one", LogRequest{Release: "1.1.0/arm64", Type: "hold-lifted"}, ""},
		{"an actor", LogRequest{Actor: FirstOperator, Type: "rollout.started"}, "r1"},
		{"another actor", LogRequest{Actor: "stager", Type: "rollout.started"}, ""},
		{"since", LogRequest{Since: rec.Event.Time}, "r1 " + canary},
		{"until", LogRequest{Until: rec.Event.Time, Type: "batch-opened"}, ""},
		{"an id", LogRequest{IDs: []string{rec.Event.ID}}, "r1"},
		{"the beginning of an id", LogRequest{IDs: []string{rec.Event.ID[:23]}}, "r1"},
		{"more than the index keeps of an id", LogRequest{IDs: []string{rec.Event.ID[:35] + "!"}}, ""},
		{"an event's effects", LogRequest{Causes: []string{rec.Event.ID}}, canary},
		{"the last", LogRequest{Last: 1}, canary},
		{"the last of a kind", LogRequest{Type: "enrolled", Last: 1}, "n2"},
		{"from", LogRequest{From: opened.Seq, Type: "declared"}, canary},
		{"to", LogRequest{To: opened.Seq, Type: "declared"}, ""},
		{"all at once", LogRequest{Node: canary, Rollout: "r1", Release: "1.1.0", Type: "declared", Actor: "stager", Since: rec.Event.Time, From: opened.Seq, Last: 7}, canary},
	} {
		if got := w.asked(t, c.q); got != c.want {
			t.Errorf("%s: it gives %q, want %q", c.name, got, c.want)
		}
	}
	for name, q := range map[string]LogRequest{
		"release": {Release: "latest"}, "short id": {IDs: []string{"0123"}}, "empty cause": {Causes: []string{""}},
		"negative": {Last: -1}, "many": {IDs: slices.Repeat([]string{"01234567"}, maxAsked+1)},
	} {
		if _, err := w.client.LogPage(ctx, q); err == nil {
			t.Errorf("%s: %+v is answered", name, q)
		}
	}
	if p := w.page(t, LogRequest{Last: 2}); p.Earlier != len(all.Events)-2 || p.Events[1].Seq != last.Seq {
		t.Errorf("of the last two it says %+v", p)
	}
}

func TestLogSaysWhatItDoesNotKnow(t *testing.T) {
	w := startServer(t, t.TempDir())
	w.fleetOf(t, "ams-01", "ams-02")
	if _, err := w.client.StartRollout(testContext(t), StartRequest{Version: "1.1.0", Policy: twoByOne}); err != nil {
		t.Fatal(err)
	}
	for want, q := range map[string]LogRequest{
		`no node "ams-03" is in the log, there is ams-01, ams-02: nox-mesh fleet`: {Node: "ams-03"},
		`no node "fra" is in the log: nox-mesh fleet`:                             {Node: "fra"},
		`no rollout "r9" is in the log, there is r1: nox-mesh rollout ls`:         {Rollout: "r9"},
		`no release "1.1.1" is in the log, there is 1.1.0, 1.0.0: nox-mesh`:       {Release: "1.1.1"},
		`no actor "operater" is in the log, there is operator: an actor is`:       {Actor: "operater"},
		`no type "holted" is in the log, there is halted: one is a fact`:          {Type: "holted"},
		`no type "rollout.start" is in the log, there is rollout.started: one`:    {Type: "rollout.start"},
		"":                    {Type: "rollout.halted"}, // there is none, and there may be
		"no node \"x\" is in": {Node: "x", Type: "halted"},
	} {
		p := w.page(t, q)
		if got := strings.Join(p.Unknown, "; "); !strings.HasPrefix(got, want) || want == "" && got != "" {
			t.Errorf("%+v is answered %q, want %q", q, got, want)
		}
	}
	if p := w.page(t, LogRequest{Node: "ams-01", Limit: 1}); len(p.Unknown) != 0 || len(p.Events) != 1 || p.Next > p.Last {
		t.Errorf("what is known is answered %+v", p)
	}
}

// Pages of what matches, found here and there and in one run, hold each event
// once, in order.
func TestLogOfAFilterIsReadInPages(t *testing.T) {
	w := startServer(t, t.TempDir())
	w.write(t, "a-", 60, 10)
	w.write(t, "b-", 3, 800<<10) // each of them large
	w.write(t, "a2-", 5, 10)
	for _, limit := range []int{0, 1, 7, 61} {
		var seqs []uint64
		q := LogRequest{Type: "held", Limit: limit}
		for {
			p := w.page(t, q)
			for _, rec := range p.Events {
				seqs = append(seqs, rec.Seq)
			}
			if limit > 0 && len(p.Events) > limit {
				t.Fatalf("a page of %d has %d events", limit, len(p.Events))
			}
			if q.From = p.Next; p.Next > p.Last {
				break
			}
		}
		if len(seqs) != 68 || !slices.IsSorted(seqs) || len(slices.Compact(slices.Clone(seqs))) != 68 {
			t.Errorf("in pages of %d there are %d events: %v", limit, len(seqs), seqs)
		}
	}
	// Single ones, far from one another.
	first := w.page(t, LogRequest{Type: "held", Limit: 1}).Events[0].Seq
	var apart []uint64
	for i := range uint64(5) {
		apart = append(apart, first+12*i)
	}
	got, err := w.client.Messages(testContext(t), events.StreamEvents, append(apart, 1_000_000))
	if err != nil || len(got) != 5 {
		t.Errorf("%d messages, %v", len(got), err)
	}
	for seq, m := range got {
		if m.Seq != seq || !slices.Contains(apart, seq) || len(m.Data) == 0 {
			t.Errorf("%d is %+v", seq, m)
		}
	}
	large, err := w.client.Messages(testContext(t), events.StreamEvents, []uint64{first + 60, first + 61, first + 62, 1})
	if err != nil || len(large) != 4 {
		t.Errorf("%d large messages, %v", len(large), err)
	}
}

// Who waits for something to happen takes no place from those who work, and is
// answered as soon as it happens.
func TestLogIsWaitedFor(t *testing.T) {
	w := startServer(t, t.TempDir())
	ctx, cancel := context.WithCancel(testContext(t))
	defer cancel()
	const many = 3 * maxUserCommands
	answers := make(chan LogPage, many)
	var waiting sync.WaitGroup
	for range many {
		waiting.Go(func() {
			p, err := w.client.LogPage(ctx, LogRequest{Type: "held", Wait: events.Duration(MaxLogWait)})
			if err != nil {
				t.Error(err)
			}
			answers <- p
		})
	}
	w.until(t, "all of them wait", func() (bool, string) {
		w.api.waiting.mu.Lock()
		defer w.api.waiting.mu.Unlock()
		return w.api.waiting.all == many, fmt.Sprint(w.api.waiting.all)
	})
	if _, err := w.client.Fleet(ctx); err != nil {
		t.Error("meanwhile", err)
	}
	w.write(t, "it-", 1, 10)
	waiting.Wait()
	for range many {
		if p := <-answers; len(p.Events) != 1 || p.Next != p.Last+1 {
			t.Errorf("an answer is %+v", p)
		}
	}
	if w.api.waiting.all != 0 {
		t.Errorf("%d wait on", w.api.waiting.all)
	}
	// Nobody waits longer than they want, nor for what is there.
	begun := time.Now()
	w.page(t, LogRequest{Type: "no-such", Wait: events.Duration(50 * time.Millisecond)})
	w.page(t, LogRequest{Type: "held", Wait: events.Duration(MaxLogWait)})
	if took := time.Since(begun); took < 50*time.Millisecond || took > MaxLogWait/2 {
		t.Errorf("it took %s", took)
	}
	// With no room to wait it is said so.
	w.api.waiting.mu.Lock()
	w.api.waiting.all = maxWaiting
	w.api.waiting.mu.Unlock()
	impatient, stop := context.WithTimeout(ctx, time.Second)
	defer stop()
	_, err := w.client.LogPage(impatient, LogRequest{Type: "no-such", Wait: events.Duration(MaxLogWait)})
	wantError(t, err, "commands of yours wait")
	w.api.waiting.mu.Lock()
	w.api.waiting.all = 0
	w.api.waiting.mu.Unlock()
}

// A server that stops does not wait for those who wait for something to happen.
func TestStopEndsWaits(t *testing.T) {
	dir := t.TempDir()
	w := startServer(t, dir)
	ended := make(chan error, 1)
	ctx, cancel := context.WithCancel(testContext(t))
	go func() {
		ended <- w.client.ReadLog(ctx, LogRequest{Type: "held"}, true, func(events.Record) error { return nil })
	}()
	w.until(t, "it waits", func() (bool, string) {
		w.api.waiting.mu.Lock()
		defer w.api.waiting.mu.Unlock()
		return w.api.waiting.all == 1, ""
	})
	begun := time.Now()
	if err := w.Stop(); err != nil {
		t.Error(err)
	}
	w.until(t, "nobody waits", func() (bool, string) {
		w.api.waiting.mu.Lock()
		defer w.api.waiting.mu.Unlock()
		return w.api.waiting.all == 0, ""
	})
	if took := time.Since(begun); took > MaxLogWait/2 {
		t.Errorf("the wait went on for %s", took)
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error("it ended with", err)
	}
}

// What is gone is left out, in a run and alone, and who wants no more gets none.
func TestFetch(t *testing.T) {
	m := startMesh(t, t.TempDir())
	ctx := testContext(t)
	s, err := m.js.CreateStream(ctx, jetstream.StreamConfig{Name: "T", Subjects: []string{"t"}, Storage: jetstream.MemoryStorage})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 200 {
		if _, err := m.js.Publish(ctx, "t", []byte(fmt.Sprint(i+1))); err != nil {
			t.Fatal(err)
		}
	}
	for _, seq := range []uint64{1, 5, 6, 20, 100, 200} {
		if err := s.DeleteMsg(ctx, seq); err != nil {
			t.Fatal(err)
		}
	}
	run := func(from, to, step uint64) (out []uint64) {
		for seq := from; seq <= to; seq += step {
			out = append(out, seq)
		}
		return out
	}
	for name, seqs := range map[string][]uint64{
		"all": run(1, 200, 1), "one in three": run(1, 200, 3), "one in twenty": run(20, 200, 20), "beyond the end": run(180, 260, 5),
		"one": {7}, "one that is gone": {6}, "none": {}, "a run and single ones": slices.Concat(run(1, 30, 1), []uint64{60, 100, 140}, run(160, 199, 2)),
	} {
		var want []uint64
		for _, seq := range seqs {
			if seq <= 200 && !slices.Contains([]uint64{1, 5, 6, 20, 100, 200}, seq) {
				want = append(want, seq)
			}
		}
		for _, most := range []int{len(want), len(want) / 2} {
			var got []uint64
			err := fetch(ctx, s, seqs, func(msg events.Message) (bool, error) {
				if len(got) == most {
					return false, nil
				}
				if string(msg.Data) != fmt.Sprint(msg.Seq) || msg.Subject != "t" || msg.Stored.IsZero() {
					t.Errorf("%s: %+v", name, msg)
				}
				got = append(got, msg.Seq)
				return true, nil
			})
			if err != nil || !slices.Equal(got, want[:most]) {
				t.Errorf("%s, the first %d: %v, %v; want %v", name, most, got, err, want[:most])
			}
		}
	}
	broken := errors.New("broken")
	if err := fetch(ctx, s, run(1, 200, 1), func(events.Message) (bool, error) { return true, broken }); !errors.Is(err, broken) {
		t.Errorf("an error ends it with %v", err)
	}
	if info, err := s.Info(ctx); err != nil || info.State.Consumers != 0 {
		t.Errorf("readers are left behind: %v, %v", info, err)
	}
}
