package simulate

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"noxmesh/events"
	"noxmesh/projections"
	"noxmesh/rollout"
)

// Server is one process of the mesh: a fold of the two streams, a pulse, an
// intake of reports and a stager.
type Server struct {
	w       *World
	name    string
	mesh    *projections.Mesh
	lag     time.Duration // how late it reads
	queue   []unread
	down    bool
	since   time.Time // listening without a gap
	pulseAt time.Duration
}

// unread is something in a stream that a server that lags has not read yet.
type unread struct {
	due   time.Duration
	event *events.Record
	beat  stored
}

// received is a report in the stream REPORTS.
type received struct {
	node string
	seq  uint64
	report
}

// AddServer adds a server that reads everything late by lag.
func (w *World) AddServer(lag time.Duration) {
	s := &Server{w: w, name: fmt.Sprintf("s%d", len(w.servers)+1), mesh: projections.NewMesh(), lag: lag, since: w.Now()}
	s.pulseAt = w.at + w.cfg.Pulse + time.Duration(len(w.servers))*time.Second
	w.servers = append(w.servers, s)
	if lag > 0 {
		w.Laws.Late = max(w.Laws.Late, lag+2*w.cfg.Pulse) // it decides at its pulses
	}
}

func (s *Server) event(rec events.Record) {
	switch {
	case s.down:
	case s.lag > 0:
		s.queue = append(s.queue, unread{due: s.w.at + s.lag, event: &rec})
	default:
		s.w.fail(s.mesh.ApplyEvent(rec))
	}
}

func (s *Server) heard(b *stored) {
	switch {
	case s.down:
	case s.lag > 0:
		s.queue = append(s.queue, unread{due: s.w.at + s.lag, beat: *b})
	default:
		b.applyTo(s.mesh)
	}
}

// read catches up with what is due.
func (s *Server) read(until time.Duration) {
	i := 0
	for ; i < len(s.queue) && s.queue[i].due <= until; i++ {
		if u := &s.queue[i]; u.event != nil {
			s.w.fail(s.mesh.ApplyEvent(*u.event))
		} else {
			u.beat.applyTo(s.mesh)
		}
	}
	if s.queue = s.queue[i:]; len(s.queue) == 0 {
		s.queue = nil
	}
}

// store puts a message into HEARTBEATS.
func (w *World) store(b *stored) {
	w.beats++
	b.seq = w.beats
	if b.at.IsZero() {
		b.at = w.Now()
	}
	if w.cfg.Keep {
		w.stored = append(w.stored, *b)
	}
	for _, s := range w.servers {
		s.heard(b)
	}
}

// pulse is what a server does every few seconds: say that it listens, take the
// reports that nobody took, decide.
func (s *Server) pulse() {
	s.pulseAt += s.w.cfg.Pulse
	if s.down || s.w.deaf {
		return
	}
	s.w.store(&stored{since: s.since})
	s.read(s.w.at)
	s.takeReports()
	s.decide()
}

// maxRounds is how often a stager may decide at one moment. One that never
// settles would write for ever.
const maxRounds = 10_000

// decide runs the stager until it wants nothing more. One that reads late
// cannot see what it just wrote, so it tries once.
func (s *Server) decide() {
	for range maxRounds {
		if s.w.asleep || s.w.deaf || s.down || s.w.err != nil || !s.step() || s.lag > 0 {
			return
		}
	}
	s.w.fail(fmt.Errorf("%w: the stager wrote %d times without settling", ErrLaw, maxRounds))
}

// step decides once in each rollout, and says whether anything was written.
func (s *Server) step() (wrote bool) {
	for _, r := range s.mesh.InOrder() {
		for _, p := range rollout.Decide(s.mesh, r.ID, s.w.Now()).Events {
			err := s.w.Append(p)
			if errors.Is(err, ErrConflict) {
				break // somebody was faster: what they wrote is to be read first
			}
			s.w.fail(err)
			wrote = true
			if s.w.cfg.Stop > 0 && s.w.rng.Float64() < s.w.cfg.Stop {
				s.stop()
				s.w.after(5*time.Second+upTo(s.w.rng, 115*time.Second), s.startAgain)
				return wrote
			}
		}
	}
	return wrote
}

func (s *Server) stop() { s.down, s.queue = true, nil }

// startAgain folds both streams from their beginning, as a new process does.
func (s *Server) startAgain() {
	s.down, s.since, s.queue = false, s.w.Now(), nil
	mesh, err := s.w.fold()
	s.w.fail(err)
	s.mesh = mesh
	s.decide()
}

// fold is the state that follows from what is stored.
func (w *World) fold() (*projections.Mesh, error) {
	m := projections.NewMesh()
	for _, rec := range w.Records {
		if err := m.ApplyEvent(rec); err != nil {
			return nil, err
		}
	}
	for i := range w.stored {
		w.stored[i].applyTo(m)
	}
	return m, nil
}

// Messages gives the stream of heartbeats as the broker would have it, of a
// world that keeps it.
func (w *World) Messages() []events.Message {
	out := make([]events.Message, 0, len(w.stored))
	for _, b := range w.stored {
		var data any = b.hb
		id := b.node
		if id == "" {
			id, data = events.PulseID, events.Pulse{Server: "simulate", Since: b.since}
		}
		raw, err := json.Marshal(data)
		if err != nil {
			panic(fmt.Sprintf("simulate: %T does not marshal: %v", data, err))
		}
		out = append(out, events.Message{Seq: b.seq, Subject: events.HeartbeatSubject(id), Stored: b.at, Data: raw})
	}
	return out
}

// Refold starts the first server again, and checks that it comes to the same
// state: nothing that matters lives outside of the streams.
func (w *World) Refold() error {
	s := w.servers[0]
	if s.down {
		return nil // it is about to start anyway
	}
	fresh, err := w.fold()
	if err != nil {
		return err
	}
	if err := sameState(s.mesh, fresh); err != nil {
		return err
	}
	s.mesh = fresh
	return nil
}

// Settled checks what must be so once nothing happened for some minutes: every
// running server has come to the state that follows from what is stored, and
// nothing that was declared too late is left standing.
func (w *World) Settled() error {
	if loose := w.Laws.Loose(); len(loose) > 0 {
		return fmt.Errorf("%w: %v were declared by a server that read late, and nobody took that back", ErrLaw, loose)
	}

	fresh, err := w.fold()
	if err != nil {
		return err
	}
	for _, s := range w.servers {
		s.read(1 << 62)
		if s.down {
			continue
		}
		if err := sameState(s.mesh, fresh); err != nil {
			return fmt.Errorf("server %s: %w", s.name, err)
		}
	}
	return nil
}

func sameState(live, fresh *projections.Mesh) error {
	is, err := json.Marshal(live)
	if err != nil {
		return err
	}
	want, err := json.Marshal(fresh)
	if err != nil {
		return err
	}
	if string(is) == string(want) {
		return nil
	}
	i := 0
	for i < len(is) && i < len(want) && is[i] == want[i] {
		i++
	}
	around := func(b []byte) string { return string(b[max(0, i-80):min(len(b), i+80)]) }
	return fmt.Errorf("%w: a fold of the log is not the live state: live has %q, the fold %q", ErrLaw, around(is), around(want))
}

// receive puts a report into REPORTS. A server that is there takes it in.
func (w *World) receive(node string, r report) {
	w.reports++
	w.pending = append(w.pending, received{node, w.reports, r})
	for _, s := range w.servers {
		if !s.down && !w.deaf {
			s.takeReports()
			return
		}
	}
}

// takeReports is the intake: each report becomes one fact, once.
func (s *Server) takeReports() {
	taken := s.w.pending
	s.w.pending = nil
	for _, r := range taken {
		n := s.mesh.Nodes[r.node]
		if n == nil || n.EnrolledSeq == 0 || n.HasReport(r.id) {
			continue
		}
		r.fact.SetReceipt(events.Receipt{ReportID: r.id, ReportSeq: r.seq, NodeTime: r.at})
		err := s.w.append(s.w.event(r.node, r.fact, "intake", r.id), n.EventSeq)
		switch {
		case errors.Is(err, ErrConflict):
			s.w.pending = append(s.w.pending, r) // reads on first
		default:
			s.w.fail(err)
		}
	}
}
