package rollout

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"noxmesh/events"
	"noxmesh/projections"
)

// What is ordinary, and how sure a verdict must be. docs/stager.md says why.
const (
	// significance of a test: how often what is ordinary may look like a broken
	// release. Silence is the weaker evidence and is asked for more.
	significance       = 0.01
	silentSignificance = 0.001
	// ordinaryBroken is the share of machines on which a version that is good
	// would not start or not stay up.
	ordinaryBroken = 0.001
	// ordinaryStuck is the share of machines that cannot install anything at
	// the moment: a full disk, a lock that another package tool holds.
	ordinaryStuck = 0.02
	// A control group says how many nodes fall silent by themselves. Before it
	// said anything, this much is taken as seen: half a node of 50.
	priorSilent, priorHeard = 0.5, 49.5
	// ordinaryAway is the share of the control group above which its silence
	// is the link's doing.
	ordinaryAway = 0.2
)

// tally counts what the nodes that were told the version did, since an operator
// last accepted the failures there were.
type tally struct {
	told       int
	broken     int // rolled back or unstable: the node's own word
	notApplied int
}

func (t *tally) add(o projections.Outcome) {
	t.told++
	switch events.FailureKind(o) {
	case events.RolledBack, events.Unstable:
		t.broken++
	case events.NotApplied:
		t.notApplied++
	}
}

// tallyOf counts the members of a rollout as they would stand if an open
// batch's failures were recorded now.
func tallyOf(r *projections.Rollout, failures []events.Failure, after uint64) tally {
	now := map[string]projections.Outcome{}
	for _, f := range failures {
		now[f.Node] = projections.Outcome(f.Kind)
	}
	var t tally
	for _, m := range r.Members {
		if m.Free() || m.Outcome == projections.Decommissioned {
			continue
		}
		if m.Batch <= r.Accepted && !(m.Outcome.Failed() && m.Since > r.ResumeSeq) {
			continue // accepted, unless it failed since
		}
		o := m.Outcome
		if f, ok := now[m.Node]; ok {
			o = f
		} else if o.Failed() && m.Since <= after {
			o = projections.Waiting
		}
		t.add(o)
	}
	return t
}

// tooMany says whether the failures are beyond what is tolerated, and why.
func tooMany(r *projections.Rollout, b *projections.Batch, failures []events.Failure, c events.Control) (string, bool) {
	if n := failuresOf(r, 1, failures); n > 0 {
		return "any failure of a canary halts", true
	}
	switch p := r.Plan.Policy; {
	case p.Tolerate == events.TolerateAuto:
		if why, yes := tallyOf(r, failures, 0).tooMany(); yes {
			return why, true
		}
		return silentTooMany(b, failures, c)
	case p.Tolerate != "":
		for _, batch := range r.Batches {
			percent, _ := percentOf(p.Tolerate)
			if n := failuresIn(r, batch.Number, failures); batch.Number > r.Accepted && n*100 > percent*len(batch.Nodes) {
				return fmt.Sprintf("%d of %d in batch %d are more than the %s tolerated", n, len(batch.Nodes), batch.Number, p.Tolerate), true
			}
		}
	default:
		for _, batch := range r.Batches {
			if n := failuresIn(r, batch.Number, failures); batch.Number > r.Accepted && n > p.MaxFailed {
				return fmt.Sprintf("%d in batch %d are more than the %d tolerated", n, batch.Number, p.MaxFailed), true
			}
		}
	}
	return "", false
}

// failuresOf counts the failures of one stage's batches that no operator
// accepted.
func failuresOf(r *projections.Rollout, stage int, failures []events.Failure) int {
	n := 0
	for _, b := range r.Batches {
		if b.Stage == stage && !b.Tail && b.Number > r.Accepted {
			n += failuresIn(r, b.Number, failures)
		}
	}
	return n
}

func failuresIn(r *projections.Rollout, batch int, failures []events.Failure) int {
	n := 0
	open := map[string]bool{}
	for _, f := range failures {
		if m := r.Members[f.Node]; m != nil && m.Batch == batch {
			open[f.Node] = true
			n++
		}
	}
	for _, m := range r.Members {
		if m.Batch == batch && m.Outcome.Failed() && !open[m.Node] {
			n++
		}
	}
	return n
}

// tooMany tests what nodes reported against what machines do by themselves.
func (t tally) tooMany() (string, bool) {
	if p := binomialTail(t.broken, t.told, ordinaryBroken); t.broken > 0 && p < significance {
		return fmt.Sprintf("%d of %d that were told to run it gave it up or keep restarting, by chance in %s", t.broken, t.told, chance(p)), true
	}
	if p := binomialTail(t.notApplied, t.told, ordinaryStuck); t.notApplied > 0 && p < significance {
		return fmt.Sprintf("%d of %d could not install it, by chance in %s", t.notApplied, t.told, chance(p)), true
	}
	return "", false
}

// silentTooMany tests the silent of a batch against the control group: of the
// nodes that were told nothing, how many fell silent in the same listening time.
func silentTooMany(b *projections.Batch, failures []events.Failure, c events.Control) (string, bool) {
	silent := 0
	for _, f := range failures {
		if f.Kind == events.Silent {
			silent++
		}
	}
	if b == nil || silent == 0 {
		return "", false
	}
	p := betaBinomialTail(silent, len(b.Nodes), priorSilent+float64(c.Silent), priorHeard+float64(c.Nodes-c.Silent))
	if p >= silentSignificance {
		return "", false
	}
	return fmt.Sprintf("%d of %d fell silent and %d of %d that were told nothing, by chance in %s", silent, len(b.Nodes), c.Silent, c.Nodes, chance(p)), true
}

// percentOf reads a tolerance like "5%".
func percentOf(s string) (int, bool) {
	number, ok := strings.CutSuffix(s, "%")
	v, err := strconv.Atoi(number)
	return v, ok && err == nil && v >= 0 && v <= 100
}

// chance words a probability.
func chance(p float64) string {
	if p < 0.0001 {
		return "less than 1 of 10,000 rollouts"
	}
	return fmt.Sprintf("%.2f%% of rollouts", p*100)
}

func logChoose(n, k int) float64 {
	a, _ := math.Lgamma(float64(n + 1))
	b, _ := math.Lgamma(float64(k + 1))
	c, _ := math.Lgamma(float64(n - k + 1))
	return a - b - c
}

func logBeta(a, b float64) float64 {
	x, _ := math.Lgamma(a)
	y, _ := math.Lgamma(b)
	z, _ := math.Lgamma(a + b)
	return x + y - z
}

// tail sums the probabilities of k and more, of at most n.
func tail(k, n int, logP func(i int) float64) float64 {
	sum := 0.0
	for i := max(k, 0); i <= n; i++ {
		p := math.Exp(logP(i))
		sum += p
		if p < sum*1e-12 { // past the hump nothing is added any more
			break
		}
	}
	return min(sum, 1)
}

// binomialTail is the probability of k or more of n, each with p.
func binomialTail(k, n int, p float64) float64 {
	if float64(k) <= float64(n)*p { // the hump is still ahead: sum the short side
		return 1 - tail(n-k+1, n, func(i int) float64 {
			return logChoose(n, i) + float64(i)*math.Log1p(-p) + float64(n-i)*math.Log(p)
		})
	}
	return tail(k, n, func(i int) float64 {
		return logChoose(n, i) + float64(i)*math.Log(p) + float64(n-i)*math.Log1p(-p)
	})
}

// betaBinomialTail is the probability of k or more of n, where the share is
// known only as far as a beta distribution with a and b tells.
func betaBinomialTail(k, n int, a, b float64) float64 {
	sum := 0.0
	for i := k; i <= n; i++ {
		sum += math.Exp(logChoose(n, i) + logBeta(float64(i)+a, float64(n-i)+b) - logBeta(a, b))
	}
	return min(sum, 1)
}

// hypergeometricTail is the probability that k or more of the drawn have a mark
// that marked of all have.
func hypergeometricTail(k, all, marked, drawn int) float64 {
	sum := 0.0
	for i := k; i <= min(marked, drawn); i++ {
		if drawn-i <= all-marked {
			sum += math.Exp(logChoose(marked, i) + logChoose(all-marked, drawn-i) - logChoose(all, drawn))
		}
	}
	return min(sum, 1)
}
