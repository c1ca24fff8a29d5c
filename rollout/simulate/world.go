package simulate

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sort"
	"time"

	"noxmesh/events"
	"noxmesh/projections"
)

// Config is what a world is like. The zero value of each field is the ordinary.
type Config struct {
	Start time.Time // 2026-09-01 12:00 UTC
	Seed  uint64
	Beat  time.Duration // between two heartbeats of a node; 30 s
	Pulse time.Duration // between two pulses of a server; 10 s
	// Install is how long a node takes from its declaration to the restart,
	// Crash how long it is gone when the new version does not start.
	Install, Crash func(*rand.Rand) time.Duration
	// Dies is the share of crashing machines that never come back.
	Dies float64
	// Jitter is within which time nodes reconnect when a link is back. A
	// declaration reaches its node within a tenth of that.
	Jitter time.Duration
	// Lose and Repeat are the shares of reports that are lost and sent again,
	// and that arrive twice.
	Lose, Repeat float64
	// Stop is the chance that a server stops right after an event it wrote. It
	// is back within two minutes.
	Stop float64
	// Keep keeps what was stored, so that servers can be started again.
	Keep bool
	// Look is how often a stager decides besides at pulses and at what nodes
	// report; 0: not.
	Look time.Duration
}

// Story is a world for stories: everything takes a known time. An install takes
// 4 s, a version that crashes is given up after 10 s, nodes beat every 15 s, the
// mesh pulses every 5 s and decides every second.
func Story() Config {
	fixed := func(d time.Duration) func(*rand.Rand) time.Duration {
		return func(*rand.Rand) time.Duration { return d }
	}
	return Config{Beat: 15 * time.Second, Pulse: 5 * time.Second, Look: time.Second,
		Install: fixed(4 * time.Second), Crash: fixed(10 * time.Second), Keep: true}
}

// World is a mesh and its fleet in virtual time. It is used by one goroutine.
type World struct {
	cfg    Config
	start  time.Time
	at     time.Duration // since start
	rng    *rand.Rand
	timers timers

	Laws    *Laws
	Records []events.Record // the whole log
	// OnEvent hears of each event after everybody else did.
	OnEvent func(events.Record, events.Fact)

	last    map[string]uint64 // last sequence on each stream subject
	beats   uint64            // last sequence of HEARTBEATS
	stored  []stored
	reports uint64 // last sequence of REPORTS
	pending []received

	asleep  bool // no stager decides
	servers []*Server
	deaf    bool // the broker is away, with all servers
	news    bool // something came that a stager looks at at once

	nodes map[string]*Node
	order []*Node // as added
	ring  []*Node // by phase: the order in which they beat
	turn  int     // who of the ring beats next
	cycle time.Duration
	err   error
}

// stored is one message of HEARTBEATS: a node's, or a server's pulse.
type stored struct {
	seq   uint64
	at    time.Time
	node  string // empty: a pulse
	hb    events.Heartbeat
	since time.Time
}

func (s *stored) applyTo(m *projections.Mesh) {
	if s.node == "" {
		m.Pulse(s.seq, s.at, s.since)
	} else {
		m.Heard(s.node, s.seq, s.at, s.hb)
	}
}

// NewWorld makes a world with one server and nothing else.
func NewWorld(cfg Config) *World {
	if cfg.Start.IsZero() {
		cfg.Start = time.Date(2026, 9, 1, 12, 0, 0, 0, time.UTC)
	}
	if cfg.Beat == 0 {
		cfg.Beat = 30 * time.Second
	}
	if cfg.Pulse == 0 {
		cfg.Pulse = 10 * time.Second
	}
	if cfg.Install == nil {
		cfg.Install = logNormal(20*time.Second, 0.7, 5*time.Minute)
	}
	if cfg.Crash == nil {
		cfg.Crash = func(rng *rand.Rand) time.Duration { return 9*time.Second + upTo(rng, 2*time.Second) }
	}
	w := &World{
		cfg: cfg, start: cfg.Start, rng: rand.New(rand.NewPCG(cfg.Seed, 0x6e6f782d6d657368)),
		Laws: NewLaws(), last: map[string]uint64{}, nodes: map[string]*Node{},
	}
	w.AddServer(0)
	if cfg.Look > 0 {
		var look func()
		look = func() { w.news = true; w.after(cfg.Look, look) }
		w.after(cfg.Look, look)
	}
	return w
}

// Now is the world's time.
func (w *World) Now() time.Time { return w.start.Add(w.at) }

// Mesh is what the first server knows.
func (w *World) Mesh() *projections.Mesh { return w.servers[0].mesh }

// Node gives a node, or nil.
func (w *World) Node(id string) *Node { return w.nodes[id] }

// Nodes gives the names of all nodes, in order.
func (w *World) Nodes() []string {
	out := make([]string, 0, len(w.order))
	for _, n := range w.order {
		out = append(out, n.ID)
	}
	sort.Strings(out)
	return out
}

// Err is the first thing that went wrong in the world itself: a broken law, a
// fold that failed, a stager that does not settle. The world stands still then.
func (w *World) Err() error { return w.err }

func (w *World) fail(err error) {
	if w.err == nil && err != nil {
		w.err = fmt.Errorf("%s: %w", w.Now().Format("15:04:05"), err)
	}
}

func (w *World) after(d time.Duration, fn func()) { w.timers.add(w.at+d, fn) }

// jitter is how long something takes that ordinarily takes no time.
func (w *World) jitter() time.Duration {
	if w.cfg.Jitter == 0 {
		return 0
	}
	return upTo(w.rng, w.cfg.Jitter)
}

// Advance lets time pass.
func (w *World) Advance(d time.Duration) {
	end := w.at + d
	for w.err == nil {
		at, kind, server := w.next()
		if at > end {
			break
		}
		w.at = at
		switch kind {
		case aTimer:
			w.timers.pop().fn()
		case aBeat:
			w.beat()
		case aPulse:
			server.pulse()
		}
		if w.news && !w.due(w.at) {
			w.decide()
		}
	}
	w.at = max(w.at, end)
	if w.news {
		w.decide()
	}
}

// what happens next.
type what int

const (
	nothing what = iota
	aTimer
	aBeat
	aPulse
)

// next is when something happens next, and what: at one moment timers come
// first, then beats, then pulses, of which s is the server.
func (w *World) next() (at time.Duration, kind what, s *Server) {
	at = 1 << 62
	for _, o := range w.servers {
		if o.pulseAt <= at {
			at, kind, s = o.pulseAt, aPulse, o
		}
	}
	if len(w.ring) > 0 {
		if due := w.cycle + w.ring[w.turn].phase; due <= at {
			at, kind = due, aBeat
		}
	}
	if due, ok := w.timers.next(); ok && due <= at {
		at, kind = due, aTimer
	}
	return at, kind, s
}

// due says whether anything else happens at a moment.
func (w *World) due(at time.Duration) bool {
	next, _, _ := w.next()
	return next <= at
}

// beat is the turn of one node.
func (w *World) beat() {
	n := w.ring[w.turn]
	if w.turn++; w.turn == len(w.ring) {
		w.turn = 0
		w.cycle += w.cfg.Beat
	}
	n.beat()
}

// place gives a node its turn among the beats.
func (w *World) place(n *Node) {
	i, _ := slices.BinarySearchFunc(w.ring, n.phase, func(o *Node, phase time.Duration) int {
		if o.phase <= phase {
			return -1
		}
		return 1
	})
	w.ring = slices.Insert(w.ring, i, n)
	switch {
	case len(w.ring) == 1:
		w.cycle = w.at - w.at%w.cfg.Beat
		if n.phase <= w.at%w.cfg.Beat && w.at > 0 {
			w.cycle += w.cfg.Beat
		}
	case i <= w.turn && w.cycle+n.phase <= w.at:
		w.turn++
		if w.turn == len(w.ring) {
			w.turn = 0
			w.cycle += w.cfg.Beat
		}
	case i < w.turn:
		w.turn = i
	}
}

// SetDeaf takes the whole mesh away, broker and servers, or brings it back.
func (w *World) SetDeaf(deaf bool) {
	if w.deaf == deaf {
		return
	}
	w.deaf = deaf
	for _, s := range w.servers {
		s.since = w.Now()
	}
	for _, n := range w.order {
		if deaf {
			n.unlink()
		} else {
			w.after(w.jitter(), n.link)
		}
	}
}

// Sleep keeps the stagers from deciding, or wakes them.
func (w *World) Sleep(asleep bool) {
	w.asleep = asleep
	w.decide()
}

// decide lets the servers that read without a lag decide.
func (w *World) decide() {
	w.news = false
	for _, s := range w.servers {
		if s.lag == 0 {
			s.decide()
		}
	}
}
