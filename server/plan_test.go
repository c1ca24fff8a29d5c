package server

import (
	"fmt"
	"slices"
	"testing"

	"noxmesh/events"
)

func TestPlanWritesNothing(t *testing.T) {
	w := startServer(t, t.TempDir())
	ctx := testContext(t)
	w.fleetOf(t, "n1", "n2", "n3", "n4", "n5", "n6")
	w.node(t, "absent", nil)
	q := StartRequest{Version: "1.1.0", Policy: events.Policy{Batches: []string{"2", "50%", "100%"}}, MaxFailed: "5%"}
	for _, c := range []struct {
		q    StartRequest
		want string
	}{
		{StartRequest{Version: "9.9.9"}, `no release has version "9.9.9"`},
		{StartRequest{Version: "1.1.0", Selector: "site in ams"}, "selector"},
		{StartRequest{Version: "1.1.0", MaxFailed: "few"}, `max-failed "few"`},
	} {
		_, err := w.client.PlanRollout(ctx, c.q)
		refused(t, fmt.Sprintf("planning %+v", c.q), err, c.want)
	}
	before := w.last(t)
	plan, err := w.client.PlanRollout(ctx, q)
	if err != nil {
		t.Fatal(err)
	}
	if plan.Cohort != 7 || plan.Batches != 3 || plan.Seed == 0 || plan.Policy.Tolerate != "5%" || plan.Policy.Window == 0 {
		t.Errorf("the plan is %+v", plan)
	}
	if b := plan.Schedule.Batches; len(b) != 3 || len(b[0].Nodes) != 2 || b[1].Target != 4 || b[2].Target != 7 || len(b[2].Nodes) != 2 ||
		!slices.Equal(plan.Schedule.Absent, []string{"absent"}) {
		t.Errorf("the schedule is %+v", plan.Schedule)
	}
	if after := w.last(t); after != before {
		t.Errorf("planning wrote events %d to %d", before+1, after)
	}
	seeds := map[uint64]bool{plan.Seed: true}
	for range 3 {
		other, err := w.client.PlanRollout(ctx, q)
		if err != nil {
			t.Fatal(err)
		}
		seeds[other.Seed] = true
	}
	if len(seeds) < 2 {
		t.Errorf("four plans had the seeds %v", seeds)
	}

	q.Seed = plan.Seed
	same, err := w.client.PlanRollout(ctx, q)
	if err != nil || fmt.Sprint(same.Schedule) != fmt.Sprint(plan.Schedule) {
		t.Errorf("with the same seed the schedule is %v, want %v (%v)", same.Schedule, plan.Schedule, err)
	}
	// Everybody is heard, so the batch is chosen at once.
	q.Selector = "node!=absent"
	if same, err = w.client.PlanRollout(ctx, q); err != nil {
		t.Fatal(err)
	}
	s, err := w.client.StartRollout(ctx, q)
	if err != nil {
		t.Fatal(err)
	}
	if s.Policy.Tolerate != "5%" || s.Seed != plan.Seed {
		t.Errorf("the rollout tolerates %q with seed %d", s.Policy.Tolerate, s.Seed)
	}
	if b := w.batch(t, s.ID, 1); !slices.Equal(b.Nodes, same.Schedule.Batches[0].Nodes) {
		t.Errorf("the rollout opened %v, the dry run said %v", b.Nodes, same.Schedule.Batches[0].Nodes)
	}
}

// last is the last sequence of the log.
func (w *whole) last(t *testing.T) uint64 {
	t.Helper()
	f, err := w.client.Fleet(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	return f.EventSeq
}
