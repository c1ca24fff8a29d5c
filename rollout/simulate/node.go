package simulate

import (
	"fmt"
	"time"

	"noxmesh/events"
)

// Behaviour is what a node does about a version that is not its first.
type Behaviour string

const (
	Upgrade Behaviour = "upgrade"
	Crash   Behaviour = "crash"  // no start succeeds; it comes back on known-good and says so
	Stuck   Behaviour = "stuck"  // never applies it, and goes on beating
	Loop    Behaviour = "loop"   // starts anew before each heartbeat
	Perish  Behaviour = "die"    // restarts onto it and is never heard again
	Refuse  Behaviour = "refuse" // says that it will not install it
)

// Node is one machine. What it does about a version follows from its behaviour.
type Node struct {
	ID                       string
	Labels                   map[string]string
	Architecture, OS, Kernel string
	laptop                   bool

	w                         *World
	phase                     time.Duration // of its heartbeats
	skew                      time.Duration // of its clock
	behaviour                 Behaviour
	first, version, knownGood string
	startID                   string
	starts                    int
	applied                   uint64           // revision
	declared                  *events.Declared // newest in the mesh, whether it knows or not
	settled                   uint64           // revision about which there is no more to do
	refused                   string           // version it rolled back from
	linked                    bool             // the mesh hears it
	linkedAt                  time.Duration
	away, cut, crashing, dead bool
	looping                   bool
	installing                uint64 // revision
	work                      int    // number of the installation under way
	reports                   int
	outbox                    []report
}

// report is a fact the node wants the mesh to know. It is kept until it got
// through.
type report struct {
	id   string
	at   time.Time // node's clock
	fact events.ReportFact
}

// AddNode enrols a node that runs a version, and links it.
func (w *World) AddNode(id, version string, labels map[string]string) *Node {
	n := &Node{ID: id, Labels: labels, Architecture: "amd64", w: w, behaviour: Upgrade,
		first: version, version: version, knownGood: version}
	n.phase = time.Duration(len(w.order)) * time.Second % w.cfg.Beat
	w.write(id, &events.NodeEnrolled{Labels: labels, PublicKey: "U"})
	n.restart()
	w.nodes[id] = n
	w.order = append(w.order, n)
	w.place(n)
	n.linked, n.linkedAt = !w.deaf, w.at
	return n
}

// SetBehaviour changes what the node does about the next version it is given.
func (n *Node) SetBehaviour(b Behaviour) { n.behaviour, n.looping = b, false }

// SetAway closes the lid, or opens it.
func (n *Node) SetAway(away bool) {
	n.away = away
	n.linkIf()
}

// SetCut takes the node's link, and nothing else, or brings it back.
func (n *Node) SetCut(cut bool) {
	n.cut = cut
	n.linkIf()
}

func (n *Node) linkIf() {
	if n.away || n.cut {
		n.unlink()
		return
	}
	n.w.after(n.w.jitter(), n.link)
}

// Away says whether the node is closed or has no link.
func (n *Node) Away() bool { return n.away || n.cut }

// Version is what the node runs.
func (n *Node) Version() string { return n.version }

// Die ends the node for good.
func (n *Node) Die() {
	n.dead = true
	n.unlink()
}

// unlink: the mesh does not hear it any more. What it was fetching is lost.
func (n *Node) unlink() {
	n.linked = false
	n.installing = 0
	n.work++
}

// link connects, reads the declaration, and says what waited to be said.
func (n *Node) link() {
	if n.away || n.cut || n.dead || n.crashing || n.w.deaf || n.linked {
		return
	}
	n.linked, n.linkedAt = true, n.w.at
	outbox := n.outbox
	n.outbox = nil
	for _, r := range outbox {
		n.send(r)
	}
	n.look()
	n.beat()
}

// beat says what the node runs.
func (n *Node) beat() {
	if !n.linked {
		return
	}
	if n.looping {
		n.restart()
	}
	n.w.store(&stored{node: n.ID, hb: n.heartbeat(n.w.Now())})
}

func (n *Node) heartbeat(now time.Time) events.Heartbeat {
	return events.Heartbeat{At: now.Add(n.skew), StartID: n.startID, Version: n.version, KnownGood: n.knownGood,
		Revision: n.applied, Architecture: n.Architecture, OS: n.OS, Kernel: n.Kernel, Retained: true}
}

func (n *Node) restart() {
	n.starts++
	n.startID = fmt.Sprintf("%s-%d", n.ID, n.starts)
}

// look compares the node with its declaration and begins what there is to do.
func (n *Node) look() {
	d := n.declared
	if !n.linked || d == nil || d.Revision <= n.applied || d.Revision == n.settled || d.Revision == n.installing {
		return
	}
	n.installing = 0
	n.work++
	host := d.Host()
	if host == nil || host.Version == n.version {
		n.applied = d.Revision
		n.beat()
		return
	}
	if host.Version != n.refused || host.Retry {
		n.refused = ""
	}
	n.installing = d.Revision
	work := n.work
	n.w.after(n.w.cfg.Install(n.w.rng), func() {
		if n.work == work {
			n.install(d.Revision, host.Version)
		}
	})
}

// install is the end of an installation: the restart, unless it came to nothing.
func (n *Node) install(revision uint64, version string) {
	n.installing = 0
	behaviour := n.behaviour
	if version == n.first {
		behaviour = Upgrade // the version the machine is known to run
	}
	switch {
	case version == n.refused:
		n.settled = revision
		n.report(&events.NodeRefused{Version: version, Revision: revision, Reason: "it rolled back from this version"})
	case behaviour == Refuse:
		n.settled = revision
		n.report(&events.NodeRefused{Version: version, Revision: revision, Reason: "no parachute"})
	case behaviour == Stuck:
		n.settled = revision
	case behaviour == Perish:
		n.Die()
	case behaviour == Crash:
		n.crash(revision, version)
	default:
		n.version, n.knownGood, n.applied = version, version, revision
		n.looping = behaviour == Loop
		n.restart()
		n.report(&events.NodeConfirmed{Version: version, Revision: revision, StartID: n.startID})
		n.beat()
	}
}

// crash: the new version does not start. The service manager gives it up after
// a while and puts the last good one back.
func (n *Node) crash(revision uint64, version string) {
	n.unlink()
	n.crashing = true
	n.w.after(n.w.cfg.Crash(n.w.rng), func() {
		n.crashing = false
		if n.w.cfg.Dies > 0 && n.w.rng.Float64() < n.w.cfg.Dies {
			n.Die()
		}
		if n.dead {
			return
		}
		n.refused, n.settled = version, revision
		n.restart()
		n.report(&events.NodeRolledBack{From: version, To: n.knownGood, Revision: revision, Reason: "3 starts failed", Restarts: 3})
		n.link()
	})
}

// RollBack is a version that ran and runs no more: the node goes back to its
// first one and says so. One that runs its first version does nothing. The
// stagers decide when time goes on, be it by nothing.
func (n *Node) RollBack() {
	if n.version == n.first {
		return
	}
	from := n.version
	n.version, n.knownGood, n.looping, n.refused = n.first, n.first, false, from
	n.settled = n.applied
	n.restart()
	n.report(&events.NodeRolledBack{From: from, To: n.first, Revision: n.applied, Reason: "3 starts failed", Restarts: 3})
	n.beat()
}

// report says something to the mesh, at once or when there is a link.
func (n *Node) report(fact events.ReportFact) {
	n.reports++
	r := report{id: fmt.Sprintf("%s-r%d", n.ID, n.reports), at: n.w.Now().Add(n.skew), fact: fact}
	if !n.linked {
		n.outbox = append(n.outbox, r)
		return
	}
	n.send(r)
}

// send gives a report to the broker. One that is lost is sent again.
func (n *Node) send(r report) {
	w := n.w
	if w.cfg.Lose > 0 && w.rng.Float64() < w.cfg.Lose {
		w.after(5*time.Second+upTo(w.rng, 25*time.Second), func() {
			if n.linked {
				n.send(r)
			} else {
				n.outbox = append(n.outbox, r)
			}
		})
		return
	}
	w.receive(n.ID, r)
	if w.cfg.Repeat > 0 && w.rng.Float64() < w.cfg.Repeat {
		w.after(time.Second+upTo(w.rng, 20*time.Second), func() { w.receive(n.ID, r) })
	}
}
