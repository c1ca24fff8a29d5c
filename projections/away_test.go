package projections_test

import (
	"fmt"
	"testing"
	"time"

	"noxmesh/events"
	"noxmesh/projections"
)

// wentAway is an absence on record, hours after t0.
func wentAway(t *testing.T, m *projections.Mesh, node string, from, to float64) {
	t.Helper()
	at := func(hours float64) time.Time { return t0.Add(time.Duration(hours * float64(time.Hour))) }
	e := events.New(node, &events.NodeAway{From: at(from), To: at(to)}, events.Origin{Source: "t", Actor: "mesh"}, at(to))
	if err := m.ApplyEvent(events.Record{Seq: m.EventSeq + 1, Event: e}); err != nil {
		t.Fatal(err)
	}
}

// TestAwayIsKeptForAQuarter: the state has what ended within 92 days before the
// newest, at most 512; a list of many nodes has few of them, one node's view all.
func TestAwayIsKeptForAQuarter(t *testing.T) {
	m := projections.NewMesh()
	wentAway(t, m, "a", 0, 1)
	wentAway(t, m, "a", 24, 26)
	wentAway(t, m, "a", 92*24+1, 92*24+2)
	if got := fmt.Sprint(len(m.Nodes["a"].Away), m.Nodes["a"].Away[0].From.Equal(t0.Add(24*time.Hour))); got != "2 true" {
		t.Errorf("after 92 days: %s of %v", got, m.Nodes["a"].Away)
	}
	for i := range 600 {
		wentAway(t, m, "b", float64(i), float64(i)+0.5)
	}
	b := m.Nodes["b"]
	if len(b.Away) != 512 || !b.Away[511].To.Equal(t0.Add(599*time.Hour+30*time.Minute)) {
		t.Errorf("of 600 absences %d are kept, the last is %v", len(b.Away), b.Away[len(b.Away)-1])
	}
	if v := b.View(); len(v.Away) != 8 || v.AwayMore != 504 || v.Away[7] != (projections.AwayView{b.Away[511].From, b.Away[511].To}) {
		t.Errorf("in a list: %d and %d more, the last is %v", len(v.Away), v.AwayMore, v.Away[len(v.Away)-1])
	}
	if v := b.Detail(); len(v.Away) != 512 || v.AwayMore != 0 {
		t.Errorf("in detail: %d and %d more", len(v.Away), v.AwayMore)
	}
}

// TestAbsences: which gaps are to be recorded.
func TestAbsences(t *testing.T) {
	beat := func(m *projections.Mesh, minute int) {
		m.Pulse(m.HeartbeatSeq+1, t0.Add(time.Duration(minute)*time.Minute), t0)
		m.Heard("a", m.HeartbeatSeq+1, t0.Add(time.Duration(minute)*time.Minute), events.Heartbeat{StartID: "s", Version: "1.0.0"})
	}
	enrol := func(m *projections.Mesh, minute int) {
		e := events.New("a", &events.NodeEnrolled{PublicKey: fmt.Sprint(m.EventSeq)}, events.Origin{Source: "t", Actor: "t"}, t0.Add(time.Duration(minute)*time.Minute))
		if err := m.ApplyEvent(events.Record{Seq: m.EventSeq + 1, Event: e}); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		name string
		play func(m *projections.Mesh)
		want string
	}{
		{"no gap", func(m *projections.Mesh) { enrol(m, 0); beat(m, 1); beat(m, 6) }, "[]"},
		{"a gap", func(m *projections.Mesh) { enrol(m, 0); beat(m, 1); beat(m, 7) }, "[1-7]"},
		{"the first of two", func(m *projections.Mesh) { enrol(m, 0); beat(m, 1); beat(m, 7); beat(m, 17) }, "[1-7]"},
		{"the second of two", func(m *projections.Mesh) {
			enrol(m, 0)
			beat(m, 1)
			beat(m, 7)
			beat(m, 17)
			wentAway(t, m, "a", 1.0/60, 7.0/60)
		}, "[7-17]"},
		{"the same, told otherwise", func(m *projections.Mesh) {
			enrol(m, 0)
			beat(m, 1)
			beat(m, 20)
			wentAway(t, m, "a", 1.0/60, 18.0/60)
		}, "[]"},
		{"the first that is heard", func(m *projections.Mesh) { enrol(m, 0); beat(m, 100) }, "[]"},
		{"away before it joined again", func(m *projections.Mesh) { enrol(m, 0); beat(m, 1); enrol(m, 8); beat(m, 9) }, "[]"},
		{"not enrolled", func(m *projections.Mesh) { beat(m, 1); beat(m, 9) }, "[]"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := projections.NewMesh()
			tt.play(m)
			out := []string{}
			for _, a := range m.Absences() {
				out = append(out, fmt.Sprintf("%d-%d", int(a.From.Sub(t0).Minutes()), int(a.To.Sub(t0).Minutes())))
			}
			if fmt.Sprint(out) != tt.want {
				t.Errorf("to be recorded are %v, want %s", out, tt.want)
			}
		})
	}
}
