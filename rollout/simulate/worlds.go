package simulate

import (
	"math/rand/v2"
	"time"

	"noxmesh/events"
)

// Setting is a kind of world that the stager is judged in.
type Setting struct {
	Name string // as in the table
	What string // what happens in it
	Must string // what is demanded of the stager

	// Breaks: the release is broken, so a halt is right.
	Breaks bool
	churn  float64 // share of the fleet that leaves in a window
	// behave says what a node does about the release; nil: all upgrade.
	behave func(fleet []*Node, rng *rand.Rand)
	outage outage
	chaos  bool
	most   int // nodes it is played with at most; 0: no bound
	// install overrides how long an install takes, given the policy's window.
	install func(window time.Duration) func(*rand.Rand) time.Duration
	demands []demand
}

// demand is one thing that must be so in all runs but a few.
type demand struct {
	what    string // of the runs in which it is so
	so      func(Result) bool
	allowed int // percent of the runs in which it may be otherwise
}

func noHalt(allowed int) demand {
	return demand{"not halted", func(r Result) bool { return !r.Halted }, allowed}
}

func haltedWith(what string, allowed int, so func(Result) bool) demand {
	return demand{what, func(r Result) bool { return r.Halted && so(r) }, allowed}
}

// outage is what happens to the link a while after a batch opened, chosen at
// random among the plan's.
type outage string

const (
	noOutage outage = ""
	halfCut  outage = "half" // half of the nodes lose their link for 20 min
	meshDown outage = "mesh" // nobody reaches the mesh for an hour
)

// ordinaryChurn is the share that leaves in a window where a world says nothing
// else.
const ordinaryChurn = 0.01

// Settings are all kinds of world, in the table's order.
func Settings() []Setting {
	return []Setting{
		{
			Name: "healthy-2", What: "healthy, 2% of nodes leave in a window",
			Must: "false halts at most 1%, all present nodes reached", churn: 0.02,
			demands: []demand{noHalt(1), {"all reached", func(r Result) bool { return !r.Completed || r.Reached }, 0}},
		},
		{
			Name: "healthy-10", What: "healthy, 10% leave in a window",
			Must: "false halts at most 3%", churn: 0.10,
			demands: []demand{noHalt(3)},
		},
		{
			Name: "crash-all", What: "crashes on start everywhere", Breaks: true,
			Must: "always halts, exactly 2 exposed, diagnosis release", churn: ordinaryChurn,
			behave: crashing(1),
			demands: []demand{haltedWith("2 exposed, diagnosis release", 0, func(r Result) bool {
				return r.Exposed == 2 && r.Diagnosis == events.DiagnosisRelease
			})},
		},
		{
			Name: "crash-20", What: "crashes on 20% of machines", Breaks: true,
			Must: "halts having exposed at most 12% in 99% of runs", churn: ordinaryChurn,
			behave:  crashing(0.2),
			demands: []demand{haltedWith("at most 12% exposed", 1, func(r Result) bool { return r.Exposed*100 <= 12*r.Cohort })},
		},
		{
			Name: "crash-3", What: "crashes on 3% of machines", Breaks: true,
			Must: "halts before the last batch in 90% of runs", churn: ordinaryChurn,
			behave:  crashing(0.03),
			demands: []demand{haltedWith("halted before the last batch", 10, func(r Result) bool { return r.Stage < r.Stages })},
		},
		{
			Name: "arch", What: "one architecture of three broken (10% of nodes)", Breaks: true,
			Must: "halts at the canaries or the second batch; report names the architecture in 95%", churn: ordinaryChurn,
			behave: func(fleet []*Node, _ *rand.Rand) {
				for _, n := range fleet {
					if n.Architecture == brokenArchitecture {
						n.behaviour = Crash
					}
				}
			},
			demands: []demand{
				haltedWith("halted by the second batch", 0, func(r Result) bool { return r.Stage <= 2 }),
				haltedWith("architecture named", 5, func(r Result) bool { return r.Named }),
			},
		},
		{
			Name: "link-half", What: "half the fleet loses its link in mid-batch for 20 min",
			Must: "diagnosis link in 99%, completes afterwards without a person", churn: ordinaryChurn,
			outage: halfCut,
			demands: []demand{{"diagnosis link and completed", func(r Result) bool {
				return r.Diagnosis == events.DiagnosisLink && r.Completed
			}, 1}},
		},
		{
			Name: "mesh-down", What: "the mesh is down for an hour in mid-batch",
			Must: "no halt, same end", churn: ordinaryChurn,
			outage:  meshDown,
			demands: []demand{{"completed", func(r Result) bool { return r.Completed }, 0}},
		},
		{
			Name: "slow-install", What: "installs take up to half the window",
			Must: "no halt", churn: ordinaryChurn,
			install: func(window time.Duration) func(*rand.Rand) time.Duration {
				return func(rng *rand.Rand) time.Duration { return upTo(rng, window/2) }
			},
			demands: []demand{noHalt(0)},
		},
		{
			Name: "machine", What: "one machine in 500 crashes on any version",
			Must: "halts at most 2%", churn: ordinaryChurn,
			behave:  crashing(0.002),
			demands: []demand{noHalt(2)},
		},
		{
			Name: "chaos", What: "two servers that stop and start, one reads late; reports lost and repeated; skewed clocks; 5% leave; an outage; an operator who pauses, resumes and ends",
			Must: "no law broken", churn: 0.05, Breaks: true,
			chaos: true, outage: halfCut, most: 100, // each start of a server folds everything again
			behave: func(fleet []*Node, rng *rand.Rand) {
				bad := []Behaviour{Crash, Stuck, Loop, Perish, Refuse}
				for _, n := range fleet {
					if rng.IntN(12) == 0 {
						n.behaviour = bad[rng.IntN(len(bad))]
					}
					n.skew = upTo(rng, 4*time.Hour) - 2*time.Hour
				}
			},
		},
	}
}

// SettingNamed gives the setting of that name.
func SettingNamed(name string) (Setting, bool) {
	for _, s := range Settings() {
		if s.Name == name {
			return s, true
		}
	}
	return Setting{}, false
}

const brokenArchitecture = "riscv64"

// crashing makes a share of the fleet crash, at least one machine.
func crashing(share float64) func([]*Node, *rand.Rand) {
	return func(fleet []*Node, rng *rand.Rand) {
		count := max(1, int(share*float64(len(fleet))+0.5))
		for _, i := range rng.Perm(len(fleet))[:count] {
			fleet[i].behaviour = Crash
		}
	}
}
