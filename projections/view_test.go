package projections_test

import (
	"encoding/json"
	"testing"

	"noxmesh/events"
	"noxmesh/projections"
)

// TestRunning: a node's heartbeat says what it runs; without any, its last
// report does. So the log alone tells it for any moment.
func TestRunning(t *testing.T) {
	confirmed := func(v string) events.Fact { return &events.NodeConfirmed{Version: v, StartID: "s"} }
	rolledBack := func(from, to string) events.Fact { return &events.NodeRolledBack{From: from, To: to} }
	for _, c := range []struct {
		name  string
		facts []events.Fact
		beat  string // version in a heartbeat, if there was one
		want  string
	}{
		{"nothing is known", []events.Fact{&events.NodeEnrolled{}}, "", ""},
		{"confirmed", []events.Fact{confirmed("1.0.0"), confirmed("1.1.0")}, "", "1.1.0"},
		{"rolled back", []events.Fact{confirmed("1.0.0"), rolledBack("1.1.0", "0.9.0")}, "", "0.9.0"},
		{"rolled back only", []events.Fact{rolledBack("1.1.0", "1.0.0")}, "", "1.0.0"},
		{"confirmed after it rolled back", []events.Fact{rolledBack("1.1.0", "1.0.0"), confirmed("1.1.1")}, "", "1.1.1"},
		{"heard", []events.Fact{confirmed("1.0.0")}, "1.1.0", "1.1.0"},
	} {
		m := projections.NewMesh()
		for i, f := range c.facts {
			rec := events.Record{Seq: uint64(i + 1), Event: events.New("n1", f, events.Origin{Source: "test", Actor: "test"}, t0)}
			if err := m.ApplyEvent(rec); err != nil {
				t.Fatal(err)
			}
		}
		if c.beat != "" {
			raw, err := json.Marshal(events.Heartbeat{StartID: "s", Version: c.beat})
			if err != nil {
				t.Fatal(err)
			}
			m.ApplyHeartbeat(events.Message{Seq: 1, Subject: events.HeartbeatSubject("n1"), Stored: t0, Data: raw})
		}
		if got := m.Nodes["n1"].View().Running; got != c.want {
			t.Errorf("%s: it runs %q, want %q", c.name, got, c.want)
		}
	}
}
