package events_test

import (
	"testing"

	"noxmesh/events"
)

// TestOldTypesComeAsNew: what older versions wrote reads as what today's writes,
// and the stored bytes are left alone.
func TestOldTypesComeAsNew(t *testing.T) {
	for _, c := range []struct {
		name, typ, data string
		stage           int
	}{
		{"0.1, without stages", "mesh.rollout.batch-opened.v1", `{"batch":3,"nodes":["a"],"presence":[1]}`, 3},
		{"0.2, with a stage", "mesh.rollout.batch-opened.v1", `{"batch":3,"stage":1,"nodes":["a"],"presence":[1],"retry":true}`, 1},
		{"today", "mesh.rollout.batch-opened.v2", `{"batch":3,"stage":2,"nodes":["a"],"presence":[1]}`, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			raw := `{"specversion":"1.0","id":"i","type":"` + c.typ + `","source":"s","subject":"r1","time":"2026-11-29T12:00:00Z","actor":"stager","cause":"c","data":` + c.data + `}`
			e, err := events.Decode([]byte(raw))
			if err != nil {
				t.Fatal(err)
			}
			fact, err := e.Fact()
			if err != nil {
				t.Fatal(err)
			}
			opened, ok := fact.(*events.BatchOpened)
			if !ok {
				t.Fatalf("it reads as %T", fact)
			}
			if opened.Stage != c.stage || opened.Batch != 3 || len(opened.Nodes) != 1 || opened.EventType() != "mesh.rollout.batch-opened.v2" {
				t.Errorf("it reads as %+v", opened)
			}
			if string(e.Encode()) != raw {
				t.Errorf("it is written again as %s", e.Encode())
			}
			if subject, err := e.StreamSubject(); err != nil || subject != "mesh.event.rollout.r1" {
				t.Errorf("it belongs on %q: %v", subject, err)
			}
		})
	}
}
