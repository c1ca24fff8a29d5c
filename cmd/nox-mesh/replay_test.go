package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"noxmesh/events"
	"noxmesh/projections"
	"noxmesh/server"
)

// replayed replays a log and gives what is told of each event, without its time,
// the waits, and how it ended.
func replayed(log []events.Record, set func(*replay)) (lines []string, waits []time.Duration, r *replay, err error) {
	var out strings.Builder
	r = newReplay(&out, func(_ context.Context, d time.Duration) error { waits = append(waits, d); return nil })
	if set != nil {
		set(r)
	}
	for _, rec := range log {
		if err = r.event(context.Background(), rec); err != nil {
			break
		}
	}
	for line := range strings.Lines(out.String()) {
		fields := strings.Fields(line)
		if len(fields) > 3 && len(fields[1]) == len(time.DateOnly) {
			line = fields[0] + " " + strings.Join(fields[3:], " ")
		}
		lines = append(lines, strings.TrimSpace(line))
	}
	return lines, waits, r, err
}

func recorded(t *testing.T, name string) (log []events.Record) {
	t.Helper()
	f, err := os.Open("../../testdata/logs/" + name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		rec, err := server.LogRecord{Seq: uint64(len(log) + 1), Data: lines.Bytes()}.Decode()
		if err != nil {
			t.Fatal(err)
		}
		log = append(log, rec)
	}
	return log
}

func TestReplayTellsWhatChanged(t *testing.T) {
	log := recorded(t, "0.2.jsonl")
	lines, _, r, err := replayed(log, nil)
	if err != nil || len(lines) != len(log) {
		t.Fatalf("%d of %d events are told, %v", len(lines), len(log), err)
	}
	for _, want := range []string{
		"16 rollout.started r1: 1.1.0 over 3 nodes in batches 2,100% => r1: 3 undeclared",
		"17 rollout.batch-opened r1: batch 1: c a => r1: batch 1: 2 waiting",
		"18 declaration.declared c: revision 1, host 1.1.0 (rollout-batch of r1) => c: declared 1.1.0",
		"27 rollout.completed r1: 3 passed, 0 failed, 0 not heard in time => r1: completed, batch 2: 1 passed",
		"30 declaration.declared c: revision 2, host 1.2.0 (rollout-batch of r2) => c: declared 1.2.0, was 1.1.0",
		"37 node.refused c: 1.2.0: this machine rolled 1.2.0 back: version 1.2.0 failed to star... => c: will not install 1.2.0",
	} {
		if !slices.Contains(lines, want) {
			t.Errorf("nothing says\n%s\nbut\n%s", want, strings.Join(lines, "\n"))
		}
	}
	if last := lines[37]; !strings.HasSuffix(last, "=> r2: halted, batch 1: 2 rolled back") {
		t.Errorf("the last line is %s", last)
	}
	// At the end everything is as the fold has it, for people.
	out := &strings.Builder{}
	r.out = out
	r.end()
	text := strings.Join(strings.Fields(out.String()), " ")
	for _, want := range []string{
		"as of event 38, ", "heartbeats are not in the log, so RUNNING is what a node reported last",
		"a - 1.2.0 1.1.0 rolled back from 1.2.0", "b - 1.1.0 1.1.0", "r2 1.2.0 halted", "operator 0 of 3 2 rolled back of 2", "r1 1.1.0 completed",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in\n%s", want, out)
		}
	}
}

func TestReplayOfAPart(t *testing.T) {
	log := recorded(t, "0.2.jsonl")
	seqs := func(set func(*replay)) string {
		lines, _, r, err := replayed(log, set)
		if err != nil && !errors.Is(err, errReplayed) {
			t.Fatal(err)
		}
		var out []string
		for _, line := range lines {
			seq, _, _ := strings.Cut(line, " ")
			out = append(out, seq)
		}
		return fmt.Sprintf("%s at %d", strings.Join(out, " "), r.mesh.EventSeq)
	}
	for name, c := range map[string]struct {
		set  func(*replay)
		want string
	}{
		"a span of events":  {func(r *replay) { r.fromSeq, r.lastSeq = 16, 18 }, "16 17 18 at 18"},
		"one rollout":       {func(r *replay) { r.rollout, r.lastSeq = "r2", 31 }, "28 29 30 31 at 31"},
		"from a moment":     {func(r *replay) { r.fromTime = log[36].Event.Time }, "37 38 at 38"},
		"to a moment":       {func(r *replay) { r.fromSeq, r.to = 20, log[20].Event.Time }, "20 21 at 21"},
		"nothing is shown":  {func(r *replay) { r.fromSeq = 100 }, " at 38"},
		"before everything": {func(r *replay) { r.to = log[0].Event.Time.Add(-time.Second) }, " at 0"},
	} {
		if got := seqs(c.set); got != c.want {
			t.Errorf("%s: %q is shown, want %q", name, got, c.want)
		}
	}
	if _, _, r, _ := replayed(log[:11], nil); r.mesh.EventSeq != 11 {
		t.Errorf("it is at %d", r.mesh.EventSeq)
	}
	if _, _, _, err := replayed(log[1:], nil); !errors.Is(err, projections.ErrGap) {
		t.Errorf("a missing event gives %v", err)
	}
}

func TestReplayKeepsPauses(t *testing.T) {
	begin := time.Date(2026, 9, 1, 12, 0, 0, 0, time.UTC)
	var log []events.Record
	for i, at := range []time.Duration{0, 30 * time.Second, 90 * time.Second, 89 * time.Second, 10 * time.Hour, 10*time.Hour + time.Minute} {
		e := events.New(fmt.Sprint("u", i), &events.UserAdded{Role: "viewer"}, events.Origin{Source: "t", Actor: "ann"}, begin.Add(at))
		log = append(log, events.Record{Seq: uint64(i + 1), Event: e})
	}
	for _, c := range []struct {
		speed float64
		from  uint64
		want  string
		skips int
	}{
		{0, 0, "[]", 0},
		{60, 0, "[500ms 1s 5s 1s]", 1}, // one event is a second before the one it follows
		{60, 5, "[1s]", 0},             // nobody waits for what is not shown
		{1, 0, "[5s 5s 5s 5s]", 4},
	} {
		lines, waits, _, err := replayed(log, func(r *replay) { r.speed, r.fromSeq = c.speed, c.from })
		skips := 0
		for _, line := range lines {
			if strings.HasSuffix(line, " later") {
				skips++
			}
		}
		if err != nil || fmt.Sprint(waits) != c.want || skips != c.skips {
			t.Errorf("at %vx it waits %v and says %d skips, %v; want %s and %d", c.speed, waits, skips, err, c.want, c.skips)
		}
	}
}
