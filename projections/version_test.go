package projections_test

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"noxmesh/events"
	"noxmesh/projections"
)

// TestVersionRises: who changes what a fold or a view makes of the same log raises
// [projections.Version]. Otherwise a server would go on from a snapshot that
// another fold has made, and decide on it.
func TestVersionRises(t *testing.T) {
	paths, err := filepath.Glob("../testdata/logs/*.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	var now strings.Builder
	fmt.Fprintf(&now, "version %d\n", projections.Version)
	for _, path := range paths {
		m, x := projections.NewMesh(), projections.NewIndex()
		for _, rec := range readLog(t, path) {
			if err := m.ApplyEvent(rec); err != nil {
				t.Fatal(err)
			}
			if err := x.Apply(rec); err != nil {
				t.Fatal(err)
			}
		}
		heartbeats(t, m)
		index, err := x.MarshalBinary()
		if err != nil {
			t.Fatal(err)
		}
		all := []any{m, index, m.ReleaseViews()}
		for _, id := range []string{"a", "b", "c"} {
			all = append(all, m.Nodes[id].View())
		}
		for _, r := range m.InOrder() {
			all = append(all, m.RolloutView(r))
		}
		raw, err := json.Marshal(all)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&now, "%s %x\n", filepath.Base(path), sha256.Sum256(raw))
	}
	const golden = "../testdata/folds.txt"
	if *rewrite {
		if err := os.WriteFile(golden, []byte(now.String()), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	have, err := os.ReadFile(golden)
	if err != nil || string(have) != now.String() {
		t.Errorf("the recorded logs are folded to something else than before:\n%s\nwas\n%s%v\nraise projections.Version if a released version folded them otherwise, and run the test with -rewrite", now.String(), have, err)
	}
}

// heartbeats are heard of node a, which is away for a while, and of b, which sends
// one that does not read.
func heartbeats(t *testing.T, m *projections.Mesh) {
	t.Helper()
	seq := uint64(0)
	hear := func(id string, at time.Time, payload any) {
		raw, err := json.Marshal(payload)
		if err != nil {
			t.Fatal(err)
		}
		seq++
		m.ApplyHeartbeat(events.Message{Seq: seq, Subject: events.HeartbeatSubject(id), Stored: at, Data: raw})
	}
	beat := events.Heartbeat{StartID: "s1", Version: "1.1.0", KnownGood: "1.1.0", Revision: 1, Architecture: "amd64", Retained: true}
	for minute := range 20 {
		at := t0.Add(time.Duration(minute) * time.Minute)
		hear(events.PulseID, at, events.Pulse{Server: "s", Since: t0})
		if minute < 3 || minute > 12 {
			hear("a", at, beat)
		}
	}
	hear("b", t0, "no heartbeat")
}
