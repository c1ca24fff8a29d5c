package projections_test

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"noxmesh/events"
	"noxmesh/projections"
)

var t0 = time.Date(2026, 9, 1, 12, 0, 0, 0, time.UTC)

// TestRecordedLogsFold folds the recorded log of each released version. They
// must fold for ever: never change one, add a new one.
func TestRecordedLogsFold(t *testing.T) {
	paths, err := filepath.Glob("../testdata/logs/*.jsonl")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no recorded log: %v", err)
	}
	for _, path := range paths {
		t.Run(filepath.Base(path), func(t *testing.T) {
			m := projections.NewMesh()
			for _, rec := range readLog(t, path) {
				if err := m.ApplyEvent(rec); err != nil {
					t.Fatal(err)
				}
			}
			if m.Skipped != 0 {
				t.Errorf("%d events of unknown types", m.Skipped)
			}
			var out []string
			for _, r := range m.InOrder() {
				out = append(out, fmt.Sprintf("%s %s %s, %d batches, %d exposed", r.ID, r.Plan.Version, r.State, len(r.Batches), r.Exposed()))
			}
			want := []string{"r1 1.1.0 completed, 2 batches, 3 exposed", "r2 1.2.0 halted, 1 batches, 2 exposed"}
			if fmt.Sprint(out) != fmt.Sprint(want) {
				t.Errorf("the rollouts are %q, want %q", out, want)
			}
			rolledBack := 0
			for _, n := range m.Nodes {
				if n.EnrolledSeq == 0 || n.Confirmed == nil {
					t.Errorf("node %s is not enrolled and confirmed", n.ID)
				}
				if n.RolledBack != nil && n.RolledBack.Fact.From == "1.2.0" && n.RolledBack.Fact.To == "1.1.0" {
					rolledBack++
				}
			}
			if len(m.Nodes) != 3 || rolledBack != 2 {
				t.Errorf("%d nodes, %d rolled back, want 3 and 2", len(m.Nodes), rolledBack)
			}
		})
	}
}

func readLog(t *testing.T, path string) []events.Record {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var out []events.Record
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		e, err := events.Decode(lines.Bytes())
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, events.Record{Seq: uint64(len(out) + 1), Event: e})
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	return out
}

func TestGapsAreAlarms(t *testing.T) {
	log := readLog(t, "../testdata/logs/0.1.jsonl")
	m := projections.NewMesh()
	if err := m.ApplyEvent(log[0]); err != nil {
		t.Fatal(err)
	}
	if err := m.ApplyEvent(log[2]); !errors.Is(err, projections.ErrGap) || !strings.Contains(err.Error(), "event 3 follows 1") {
		t.Errorf("a missing event gives %v", err)
	}
	damaged := log[1]
	damaged.Event.Data = json.RawMessage(`{"version":7}`)
	if err := m.ApplyEvent(damaged); err == nil {
		t.Error("a damaged event folds")
	}
	newer := log[1]
	newer.Event.Type = "mesh.node.teleported.v1"
	if err := m.ApplyEvent(newer); err != nil || m.Skipped != 1 || m.EventSeq != 2 {
		t.Errorf("an event of a newer type: %v, skipped %d, at %d", err, m.Skipped, m.EventSeq)
	}
}

// TestAnyInterleaving: the two streams may be read in any interleaving, and
// records may come twice; the state is the same.
func TestAnyInterleaving(t *testing.T) {
	log := readLog(t, "../testdata/logs/0.1.jsonl")
	var beats []events.Message
	for i := range 60 {
		id := []string{"a", "b", "c", events.PulseID}[i%4]
		at := t0.Add(time.Duration(i) * time.Second)
		var payload any = events.Heartbeat{StartID: fmt.Sprint(id, i/16), Version: []string{"1.0.0", "1.1.0"}[i/30], KnownGood: "1.1.0", Revision: uint64(i / 20)}
		if id == events.PulseID {
			payload = events.Pulse{Server: "s", Since: at.Add(-time.Duration(i%7) * time.Second)}
		}
		raw, err := json.Marshal(payload)
		if err != nil {
			t.Fatal(err)
		}
		if i%13 == 0 {
			raw = []byte("garbage")
		}
		beats = append(beats, events.Message{Seq: uint64(i + 1), Subject: events.HeartbeatSubject(id), Stored: at, Data: raw})
	}
	fold := func(pick func() bool) string {
		m := projections.NewMesh()
		for e, b := 0, 0; e < len(log) || b < len(beats); {
			twice := pick()
			if b == len(beats) || e < len(log) && pick() {
				for range map[bool]int{false: 1, true: 2}[twice] {
					if err := m.ApplyEvent(log[e]); err != nil {
						t.Fatal(err)
					}
				}
				e++
			} else {
				m.ApplyHeartbeat(beats[b])
				if twice {
					m.ApplyHeartbeat(beats[b])
				}
				b++
			}
		}
		raw, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		return string(raw)
	}
	want := fold(func() bool { return false })
	rapid.Check(t, func(t *rapid.T) {
		if got := fold(func() bool { return rapid.Bool().Draw(t, "pick") }); got != want {
			t.Fatalf("another interleaving gives another state:\n%s\n%s", got, want)
		}
	})
}

func TestListening(t *testing.T) {
	at := func(s int) time.Time { return t0.Add(time.Duration(s) * time.Second) }
	var l projections.Listening
	for _, p := range []struct{ since, at int }{
		{0, 5}, {0, 10}, {0, 15}, // one server
		{100, 100}, {100, 110}, // it was down for 85 s
		{95, 112}, {100, 115}, // a second server, which began before
		{130, 120}, // nonsense: began after it spoke; counts as a moment
	} {
		l.Pulse(at(p.since), at(p.at))
	}
	for _, c := range []struct {
		since int
		want  time.Duration
	}{
		{0, 35 * time.Second}, {10, 25 * time.Second}, {15, 20 * time.Second}, {50, 20 * time.Second},
		{105, 10 * time.Second}, {115, 0}, {200, 0}, {-50, 35 * time.Second},
	} {
		if got := l.Since(at(c.since)); got != c.want {
			t.Errorf("listened %s since second %d, want %s", got, c.since, c.want)
		}
	}
}

// TestListeningMerges: whatever the order of pulses of several servers, spans
// are in order, apart, and cover what the pulses cover.
func TestListeningMerges(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var l projections.Listening
		covered := map[int]bool{} // seconds
		for range rapid.IntRange(1, 30).Draw(t, "pulses") {
			from := rapid.IntRange(0, 200).Draw(t, "from")
			to := from + rapid.IntRange(0, 30).Draw(t, "length")
			l.Pulse(t0.Add(time.Duration(from)*time.Second), t0.Add(time.Duration(to)*time.Second))
			for s := from; s < to; s++ {
				covered[s] = true
			}
		}
		for i := 1; i < len(l.Spans); i++ {
			if !l.Spans[i-1].To.Before(l.Spans[i].From) {
				t.Fatalf("spans %v touch or are out of order", l.Spans)
			}
		}
		if got, want := l.Since(t0), time.Duration(len(covered))*time.Second; got != want {
			t.Fatalf("listened %s, want %s: %v", got, want, l.Spans)
		}
	})
}

// TestNoWayBack: the fleet view says which nodes could not roll back today.
func TestNoWayBack(t *testing.T) {
	beat := func(retained bool, knownGood string, drill *events.Drill) string {
		m := projections.NewMesh()
		raw, err := json.Marshal(events.Heartbeat{StartID: "s", Version: "1.1.0", KnownGood: knownGood, Retained: retained, Drill: drill})
		if err != nil {
			t.Fatal(err)
		}
		m.ApplyHeartbeat(events.Message{Seq: 1, Subject: events.HeartbeatSubject("n1"), Stored: t0, Data: raw})
		return m.Nodes["n1"].View().NoWayBack
	}
	for _, c := range []struct {
		name, got, want string
	}{
		{"retained, no drill yet", beat(true, "1.1.0", nil), ""},
		{"drill passed", beat(true, "1.1.0", &events.Drill{OK: true}), ""},
		{"drill failed", beat(true, "1.1.0", &events.Drill{Error: "checksum is wrong"}), "the drill failed: checksum is wrong"},
		{"not retained", beat(false, "1.1.0", &events.Drill{OK: true}), "no package of 1.1.0 retained"},
		{"never confirmed", beat(false, "", nil), "no version was confirmed yet"},
	} {
		if c.got != c.want {
			t.Errorf("%s: the view says %q, want %q", c.name, c.got, c.want)
		}
	}
}
