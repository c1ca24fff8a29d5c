package rollout

import (
	"fmt"
	"math"
	"testing"

	"noxmesh/events"
	"noxmesh/projections"
)

// TestTails checks the tails against values computed elsewhere (with exact integers).
func TestTails(t *testing.T) {
	for _, c := range []struct {
		name      string
		got, want float64
	}{
		{"binomial 1 of 2 at 0.1%", binomialTail(1, 2, 0.001), 0.001999},
		{"binomial 2 of 50 at 0.1%", binomialTail(2, 50, 0.001), 0.00118654},
		{"binomial 3 of 250 at 0.1%", binomialTail(3, 250, 0.001), 0.00214022},
		{"binomial 0 of 10", binomialTail(0, 10, 0.2), 1},
		{"binomial 10 of 10 at 20%", binomialTail(10, 10, 0.2), 1.024e-7},
		{"binomial below the mean", binomialTail(1, 10, 0.2), 1 - math.Pow(0.8, 10)},
		{"beta-binomial, uniform prior", betaBinomialTail(1, 1, 1, 1), 0.5},
		{"beta-binomial 2 of 3 uniform", betaBinomialTail(2, 3, 1, 1), 0.5},
		{"hypergeometric 2 of 2 among 5 of 50", hypergeometricTail(2, 50, 5, 2), 5.0 / 50 * 4 / 49},
		{"hypergeometric all", hypergeometricTail(0, 50, 5, 2), 1},
	} {
		if math.Abs(c.got-c.want) > 1e-6+c.want*1e-3 {
			t.Errorf("%s: %g, want %g", c.name, c.got, c.want)
		}
	}
}

// TestHowManyAreTooMany is the table in docs/stager.md: the fewest failures that
// halt a rollout, by how many nodes were told the version.
func TestHowManyAreTooMany(t *testing.T) {
	for _, c := range []struct{ told, broken, notApplied int }{
		{3, 1, 2}, {10, 1, 3}, {11, 2, 3}, {50, 2, 5}, {148, 2, 9}, {250, 3, 12}, {500, 4, 19}, {1000, 5, 32}, {10000, 19, 234},
	} {
		broken, stuck := 0, 0
		for k := 1; broken == 0 || stuck == 0; k++ {
			if _, yes := (tally{told: c.told, broken: k}).tooMany(); yes && broken == 0 {
				broken = k
			}
			if _, yes := (tally{told: c.told, notApplied: k}).tooMany(); yes && stuck == 0 {
				stuck = k
			}
		}
		if broken != c.broken || stuck != c.notApplied {
			t.Errorf("of %d: %d broken, %d not applied, want %d and %d", c.told, broken, stuck, c.broken, c.notApplied)
		}
	}
}

// TestSilenceAgainstTheControlGroup: the fewest silent nodes of a batch that
// halt, by what the control group did.
func TestSilenceAgainstTheControlGroup(t *testing.T) {
	for _, c := range []struct {
		batch   int
		control events.Control
		want    int
	}{
		{2, events.Control{}, 2},
		{3, events.Control{Nodes: 7}, 2},
		{5, events.Control{Nodes: 200}, 2},
		{48, events.Control{Nodes: 450}, 3},
		{48, events.Control{Nodes: 450, Silent: 9}, 6},
		{48, events.Control{Nodes: 450, Silent: 45}, 13},
		{200, events.Control{Nodes: 250, Silent: 25}, 36},
	} {
		b := &projections.Batch{Nodes: make([]string, c.batch)}
		got := 0
		var failures []events.Failure
		for k := 1; k <= c.batch; k++ {
			failures = append(failures, events.Failure{Node: fmt.Sprint(k), Kind: events.Silent})
			if _, yes := silentTooMany(b, failures, c.control); yes {
				got = k
				break
			}
		}
		if got != c.want {
			t.Errorf("of %d with %d of %d in the control group: %d, want %d", c.batch, c.control.Silent, c.control.Nodes, got, c.want)
		}
	}
}

// TestLinkAway: how many of a control group must be silent for the link to be
// the finding, and that it is back well below that.
func TestLinkAway(t *testing.T) {
	for _, c := range []struct{ nodes, away int }{{1, 0}, {2, 0}, {3, 3}, {5, 4}, {10, 6}, {50, 18}, {250, 66}, {500, 122}} {
		got := 0
		for s := 1; s <= c.nodes; s++ {
			if linkAway(events.Control{Nodes: c.nodes, Silent: s}) {
				got = s
				break
			}
		}
		if got != c.away {
			t.Errorf("of %d: %d, want %d", c.nodes, got, c.away)
		}
		if got > 0 && linkBack(events.Control{Nodes: c.nodes, Silent: got}) {
			t.Errorf("of %d: %d silent are away and back at once", c.nodes, got)
		}
	}
}
