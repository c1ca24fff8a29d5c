package server

import (
	"encoding/json"
	"fmt"
	"iter"
	"math/rand/v2"
	"strings"
	"time"

	"noxmesh/events"
)

// fleetYear is the log of about a year of a fleet, as events in order: each
// week or so a release that all nodes take, and in between machines that were
// away and came back. It is what a log of n events looks like; the shares of the
// kinds decide what a fold costs.
func fleetYear(n, nodes int) iter.Seq[events.Event] {
	return func(yield func(events.Event) bool) {
		y := &year{n: n, yield: yield, now: time.Date(2025, 11, 1, 0, 0, 0, 0, time.UTC), random: rand.New(rand.NewPCG(1, 2))}
		y.run(nodes)
	}
}

type year struct {
	n      int
	yield  func(events.Event) bool
	now    time.Time
	random *rand.Rand
	beats  uint64
	seq    uint64
}

// signature has the length of one.
var signature = "— nox-mesh-release " + strings.Repeat("A", 92)

func (y *year) add(subject, actor, cause string, fact events.Fact) (events.Event, bool) {
	y.now = y.now.Add(time.Duration(1+y.random.IntN(40_000)) * time.Millisecond)
	y.seq++
	e := events.New(subject, fact, events.Origin{Source: "nox-mesh/bench", Actor: actor, Cause: cause}, y.now)
	y.n--
	return e, y.yield(e) && y.n > 0
}

// share of the events that tell of machines that were away
const awayShare = 0.7

func (y *year) run(nodes int) {
	names := make([]string, nodes)
	for i := range names {
		names[i] = fmt.Sprintf("node-%05d", i)
		key := fmt.Sprintf("U%055d", i)
		if _, more := y.add(names[i], "door", "token", &events.NodeEnrolled{Labels: map[string]string{"site": fmt.Sprint("s", i%8)}, PublicKey: key}); !more {
			return
		}
	}
	revision := make([]uint64, nodes)
	old := y.release(0)
	for i := 1; ; i++ {
		rel := y.release(i)
		if _, more := y.add(rel.Key(), "operator", "command", &events.ReleaseAdded{Release: rel}); !more {
			return
		}
		id := fmt.Sprintf("r%d", i)
		started := &events.RolloutStarted{Version: rel.Version, Releases: []events.Release{rel}, Cohort: names, Targets: []int{2, nodes / 10, nodes / 2, nodes}, Seed: uint64(i)}
		if _, more := y.add(id, "operator", "command", started); !more {
			return
		}
		order := y.random.Perm(nodes)
		done := 0
		for batch, target := range started.Targets {
			opened := &events.BatchOpened{Batch: batch + 1, Stage: batch + 1}
			for _, k := range order[done:target] {
				opened.Nodes, opened.Presence = append(opened.Nodes, names[k]), append(opened.Presence, y.beat())
			}
			intent, more := y.add(id, "stager", "event", opened)
			if !more {
				return
			}
			passed := &events.BatchPassed{Batch: batch + 1}
			for _, k := range order[done:target] {
				revision[k]++
				if !y.declare(names[k], revision[k], id, batch+1, intent.ID, rel, old) {
					return
				}
			}
			for _, k := range order[done:target] {
				start := fmt.Sprintf("%032x", y.random.Uint64())
				if !y.confirm(names[k], revision[k], start, rel.Version) || !y.absences(names) {
					return
				}
				passed.Passed = append(passed.Passed, events.NodePassed{Node: names[k], StartID: start, Evidence: events.Evidence{Heartbeats: []uint64{y.beat(), y.beat()}}})
			}
			if _, more := y.add(id, "stager", intent.ID, passed); !more {
				return
			}
			done = target
		}
		if _, more := y.add(id, "stager", "event", &events.RolloutCompleted{Passed: nodes}); !more {
			return
		}
		old = rel
	}
}

func (y *year) release(i int) events.Release {
	v := fmt.Sprintf("1.%d.0", i)
	return events.Release{Version: v, Architecture: "amd64", File: "nox-mesh-host_" + v + "_amd64.deb", Size: 9_000_000, SHA256: fmt.Sprintf("%064x", i), Signature: signature}
}

func (y *year) beat() uint64 { y.beats += 3; return y.beats }

func (y *year) declare(node string, revision uint64, id string, batch int, cause string, rel, old events.Release) bool {
	spec, _ := json.Marshal(events.HostSpec{Release: rel, Fallback: &old})
	because := events.DeclarationCause{Kind: events.CauseBatch, Rollout: id, Batch: batch}
	_, more := y.add(node, "stager", cause, &events.Declared{
		Node: node, Revision: revision, Because: because, Signature: signature,
		Resources: []events.Resource{{Type: events.ResourceHost, Name: "nox-mesh-host", Spec: spec}},
	})
	return more
}

func (y *year) confirm(node string, revision uint64, start, version string) bool {
	f := &events.NodeConfirmed{Version: version, Revision: revision, StartID: start}
	f.Receipt = events.Receipt{ReportID: start, ReportSeq: y.seq, NodeTime: y.now}
	_, more := y.add(node, "node:"+node, start, f)
	return more
}

// absences are what happens between two confirmations.
func (y *year) absences(names []string) bool {
	for y.random.Float64() < awayShare {
		if !y.confirm(names[y.random.IntN(len(names))], 0, fmt.Sprintf("%032x", y.random.Uint64()), "1.0.0") {
			return false
		}
	}
	return true
}
