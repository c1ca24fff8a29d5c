package projections_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"testing"
	"time"

	"pgregory.net/rapid"

	"noxmesh/events"
	"noxmesh/projections"
)

// viewsOf is every view there is, encoded, by what it is of.
func viewsOf(m *projections.Mesh) map[string]string {
	out := map[string]string{}
	put := func(name string, v any) {
		raw, err := json.Marshal(v)
		if err != nil {
			panic(err)
		}
		out[name] = string(raw)
	}
	for id, n := range m.Nodes {
		put("node "+id, []any{n.EnrolledSeq != 0, n.View()})
	}
	for id, r := range m.Rollouts {
		put("rollout "+id, m.RolloutView(r))
	}
	for _, v := range m.ReleaseViews() {
		put("releases", append([]any{json.RawMessage("[" + out["releases"] + "]")}, v))
	}
	return out
}

func touches(t projections.Touched, name string) bool {
	var kind, id string
	if n, _ := fmt.Sscan(name, &kind, &id); n == 1 {
		return t.Releases
	}
	return map[string]map[string]bool{"node": t.Nodes, "rollout": t.Rollouts}[kind][id]
}

// TestWhatChangesIsTouched: after each event and each heartbeat, every view that
// is another one than before was noted as touched, whatever the order of the
// two streams.
func TestWhatChangesIsTouched(t *testing.T) {
	logs, err := filepath.Glob("../testdata/logs/*.jsonl")
	if err != nil || len(logs) < 2 {
		t.Fatalf("recorded logs: %v %v", logs, err)
	}
	for _, path := range logs {
		log := readLog(t, path)
		// Its own heads and tails, so that holds and a decommissioning are in it.
		add := func(subject string, fact events.Fact) {
			seq := log[len(log)-1].Seq + 1
			log = append(log, events.Record{Seq: seq, Event: events.New(subject, fact, events.Origin{Source: "s", Actor: "a"}, t0.Add(time.Hour))})
		}
		add("1_1_0_amd64", &events.ReleaseHeld{Reason: "slow"})
		add("a", &events.NodeDecommissioned{})
		add("1_1_0_amd64", &events.ReleaseHoldLifted{})
		t.Run(filepath.Base(path), func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				m := projections.NewMesh()
				m.TakeTouched()
				before := viewsOf(m)
				check := func(what any) {
					touched, after := m.TakeTouched(), viewsOf(m)
					for name, v := range after {
						if v != before[name] && !touches(touched, name) {
							t.Fatalf("%v changed %s and did not touch it:\n%s\n%s", what, name, before[name], v)
						}
					}
					before = after
				}
				beat := uint64(0)
				for _, rec := range log {
					for range rapid.IntRange(0, 2).Draw(t, "beats") {
						beat++
						at := rec.Event.Time.Add(time.Duration(rapid.IntRange(-2, 2).Draw(t, "clock")) * time.Second)
						hb := events.Heartbeat{
							StartID: "s", Version: rapid.SampledFrom([]string{"1.0.0", "1.1.0", "1.2.0"}).Draw(t, "version"), Retained: true,
							Architecture: rapid.SampledFrom([]string{"amd64", "arm64"}).Draw(t, "architecture"), Revision: beat / 3,
						}
						hb.KnownGood = rapid.SampledFrom([]string{hb.Version, "1.0.0"}).Draw(t, "known good")
						raw, err := json.Marshal(hb)
						if err != nil {
							t.Fatal(err)
						}
						if rapid.IntRange(0, 9).Draw(t, "garbage") == 0 {
							raw = []byte("garbage")
						}
						node := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "node")
						m.ApplyHeartbeat(events.Message{Seq: beat, Subject: events.HeartbeatSubject(node), Stored: at, Data: raw})
						check(node + " " + string(raw))
					}
					if err := m.ApplyEvent(rec); err != nil {
						t.Fatal(err)
					}
					check(rec.Event.Type)
				}
			})
		})
	}
}

func TestTouchedAddsUp(t *testing.T) {
	var all projections.Touched
	if !all.Empty() {
		t.Error("nothing is not empty")
	}
	all.Add(projections.Touched{Nodes: map[string]bool{"a": true}})
	all.Add(projections.Touched{Rollouts: map[string]bool{"r1": true}, Releases: true})
	all.Add(projections.Touched{Nodes: map[string]bool{"b": true}})
	if want := (map[string]bool{"a": true, "b": true}); !maps.Equal(all.Nodes, want) || !all.Rollouts["r1"] || !all.Releases || all.Empty() {
		t.Errorf("it adds up to %+v", all)
	}
	m := projections.NewMesh()
	first, second := m.TakeTouched(), m.TakeTouched()
	if !first.All || !second.Empty() {
		t.Errorf("at first it is %+v, and then %+v", first, second)
	}
}
