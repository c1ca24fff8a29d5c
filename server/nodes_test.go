package server

import (
	"encoding/json"
	"slices"
	"testing"

	"noxmesh/events"
	"noxmesh/projections"
)

func TestDecommission(t *testing.T) {
	w := startServer(t, t.TempDir())
	ctx := testContext(t)
	conns := w.fleetOf(t, "n1", "n2", "n3")
	out := func(name string) (DecommissionReply, error) {
		return w.client.Decommission(ctx, DecommissionRequest{Node: name, Reason: "disk died"})
	}
	for _, name := range []string{"n9", "*", ""} {
		_, err := out(name)
		refused(t, "decommissioning "+name, err, "is enrolled: nox-mesh fleet shows the names")
	}
	if _, err := w.client.StartRollout(ctx, StartRequest{Version: "1.1.0", Policy: twoByOne}); err != nil {
		t.Fatal(err)
	}
	canary := w.batch(t, "r1", 1).Nodes[0]
	gone := "n1"
	if canary == gone {
		gone = "n2"
	}
	// It has an event of its own besides its enrolment.
	report(t, conns[gone], gone, events.ReportConfirmed, confirmed(t, "a", "1.0.0"))
	w.waitFacts(t, gone, 2)
	for i, r := range w.twice(t, cmdNodeDecommission, DecommissionRequest{Node: gone, Reason: "disk died"}) {
		var got DecommissionReply
		if err := json.Unmarshal(r.Result, &got); err != nil {
			t.Fatal(err)
		}
		if got.Node != gone || got.Already || !slices.Equal(got.Rollouts, []string{"r1"}) {
			t.Errorf("answer %d is %+v", i+1, got)
		}
	}
	w.once(t, &events.NodeDecommissioned{}, 1)
	if r, err := out(gone); err != nil || !r.Already {
		t.Errorf("a second decommissioning gives %+v, %v", r, err)
	}
	w.once(t, &events.NodeDecommissioned{}, 1)
	if names := w.names(t); slices.Contains(names, gone) || len(names) != 2 {
		t.Errorf("the fleet is %v after %s left", names, gone)
	}
	if s := w.status(t, "r1"); s.Counts[projections.Decommissioned] != 1 {
		t.Errorf("the rollout counts %v", s.Counts)
	}
	w.until(t, gone+" is disconnected", func() (bool, string) { return !conns[gone].IsConnected(), conns[gone].Status().String() })
	_, err := w.client.Declare(ctx, DeclareRequest{Node: gone})
	refused(t, "declaring to one that left", err, "no node")

	// Its name can be enrolled anew, with labels of its own.
	back := w.node(t, gone, map[string]string{"site": "fra"})
	w.beat(t, back, gone, "1.0.0")
	if names := w.names(t); len(names) != 3 {
		t.Errorf("the fleet is %v after %s came back", names, gone)
	}
	report(t, back, gone, events.ReportConfirmed, confirmed(t, "c", "1.0.0"))
	w.waitFacts(t, gone, 5)
	if r, err := out(gone); err != nil || r.Already {
		t.Errorf("decommissioning it once more gives %+v, %v", r, err)
	}
}

func (w *whole) names(t *testing.T) []string {
	t.Helper()
	f, err := w.client.Fleet(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, n := range f.Nodes {
		out = append(out, n.Node)
	}
	return out
}
