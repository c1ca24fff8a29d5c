package simulate

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"noxmesh/projections"
)

// leaveWindow is the time that a share of leaving nodes is stated for.
const leaveWindow = 10 * time.Minute

const (
	dayHeard = 24 * time.Hour // what HEARTBEATS keeps
	warmUp   = 24 * time.Hour // how long the fleet lived before the mesh heard it
	// historyBeat is between two heartbeats of the history. Nothing of it is
	// looked at but whether it has gaps.
	historyBeat = projections.Gap - 10*time.Second
)

// upTo is a time between 0 and d.
func upTo(rng *rand.Rand, d time.Duration) time.Duration {
	return time.Duration(rng.Int64N(int64(d) + 1)).Truncate(time.Millisecond)
}

// logNormal makes times half of which are longer than the median, and none
// longer than most (0: no bound).
func logNormal(median time.Duration, sigma float64, most time.Duration) func(*rand.Rand) time.Duration {
	return func(rng *rand.Rand) time.Duration {
		d := time.Duration(float64(median) * math.Exp(sigma*rng.NormFloat64())).Truncate(time.Millisecond)
		if most > 0 {
			d = min(d, most)
		}
		return d
	}
}

var (
	laptopAway = logNormal(2*time.Hour, 1, 0)
	serverAway = logNormal(5*time.Minute, 1, 0)
)

var (
	sites   = []string{"ams", "fra", "lon", "nyc", "sin"}
	systems = []string{"Debian GNU/Linux 12 (bookworm)", "Debian GNU/Linux 13 (trixie)", "Ubuntu 24.04.3 LTS"}
	kernels = []string{"6.1.0-40", "6.12.48", "6.8.0-85"} // of the systems
)

// populate adds a mixed fleet on a version, with its past, and goes on to the
// moment when the mesh has heard it for that long. churn is the share that
// leaves in a window.
func (w *World) populate(size int, version string, churn float64, history time.Duration) {
	// Shares are kept exactly; who has what is by chance.
	arch := make([]string, size)
	laptop := make([]bool, size)
	for i := range size {
		switch share := float64(i) / float64(size); {
		case share < 0.6:
			arch[i] = "amd64"
		case share < 0.9:
			arch[i] = "arm64"
		default:
			arch[i] = "riscv64"
		}
		laptop[i] = float64(i) < 0.3*float64(size)
	}
	w.rng.Shuffle(size, func(i, j int) { arch[i], arch[j] = arch[j], arch[i] })
	w.rng.Shuffle(size, func(i, j int) { laptop[i], laptop[j] = laptop[j], laptop[i] })
	for i := range size {
		class := "server"
		if laptop[i] {
			class = "laptop"
		}
		n := w.AddNode(fmt.Sprintf("n%04d", i+1), version, map[string]string{"site": sites[w.rng.IntN(len(sites))], "class": class})
		n.laptop = laptop[i]
		n.Architecture = arch[i]
		system := w.rng.IntN(len(systems))
		if arch[i] == "riscv64" {
			system = 1 // the only one with that port
		}
		n.OS, n.Kernel = systems[system], kernels[system]+"-"+arch[i]
		n.phase = upTo(w.rng, w.cfg.Beat-time.Millisecond)
	}
	slices.SortStableFunc(w.ring, func(a, b *Node) int { return cmp.Compare(a.phase, b.phase) })
	w.at += history
	for _, s := range w.servers {
		s.since = w.start
		s.pulseAt += history
	}
	w.store(&stored{since: w.start})
	for _, n := range w.order {
		w.past(n, churn, history)
		for _, s := range w.servers {
			s.read(1 << 62)
		}
	}
	w.turn, w.cycle = 0, w.at
}

// past lets a node live until now and beat as it goes.
func (w *World) past(n *Node, churn float64, history time.Duration) {
	leaves := math.Inf(1) // mean time until it leaves, in windows
	if churn > 0 {
		leaves = 1 / (3 * churn)
		if !n.laptop {
			leaves = 7 / churn
		}
	}
	stay := func() time.Duration {
		if math.IsInf(leaves, 1) {
			return 1000 * time.Hour
		}
		return time.Duration(w.rng.ExpFloat64() * leaves * float64(leaveWindow)).Truncate(time.Millisecond)
	}
	var leave, back func()
	leave = func() {
		n.SetAway(true)
		w.after(n.awayTime(), back)
	}
	back = func() {
		n.wake()
		n.SetAway(false)
		w.after(stay(), leave)
	}
	// Times here count from now; the past is below zero.
	for t := -(history + warmUp); ; {
		gone := t + stay()
		w.heardFromTo(n, max(t, -history), min(gone, 0))
		if gone > 0 {
			w.after(gone, leave)
			return
		}
		t = gone + n.awayTime()
		if t > 0 {
			n.away = true
			n.unlink()
			w.after(t, back)
			return
		}
		n.wake()
	}
}

// heardFromTo stores the heartbeats of a node between two past moments.
func (w *World) heardFromTo(n *Node, from, to time.Duration) {
	now := w.Now()
	if from >= to {
		return
	}
	// The last one before it left, or before now at its own phase.
	last := to - upTo(w.rng, w.cfg.Beat)
	if to == 0 {
		last = n.phase - w.cfg.Beat
	}
	b := stored{node: n.ID, hb: n.heartbeat(now)}
	beat := func(t time.Duration) {
		b.at = now.Add(t)
		b.hb.At = b.at.Add(n.skew)
		w.store(&b)
	}
	if last < from {
		return
	}
	if w.cfg.Keep {
		for t := from; t < last; t += historyBeat {
			beat(t)
		}
	} else {
		// The beats in between would prolong the span of hearing and nothing
		// else, so that is done for them: there are a hundred thousand.
		beat(from)
		for _, s := range w.servers {
			hearing := s.mesh.Nodes[n.ID].Hearing
			hearing[len(hearing)-1].To = now.Add(last)
		}
	}
	beat(last)
}

func (n *Node) awayTime() time.Duration {
	if n.laptop {
		return laptopAway(n.w.rng)
	}
	return serverAway(n.w.rng)
}

// wake is what happens to the process on return: half of the laptops slept.
func (n *Node) wake() {
	if n.crashing || n.dead || n.laptop && n.w.rng.IntN(2) == 0 {
		return
	}
	n.restart()
}
