package main

import (
	"encoding/json"
	"strings"
	"time"

	"noxmesh/events"
	"noxmesh/rollout"
	"noxmesh/server"
)

// shownEvent is an event in --json.
type shownEvent struct {
	Seq   uint64          `json:"seq"`
	Event json.RawMessage `json:"event"`
}

// shownJSON is what --json prints.
type shownJSON struct {
	shownEvent
	// Command or Report began the chain of causes; By is whose it was.
	Command string       `json:"command,omitempty"`
	Report  string       `json:"report,omitempty"`
	By      string       `json:"by"`
	Causes  []shownEvent `json:"causes"`
	Effects []shownEvent `json:"effects"`
	More    bool         `json:"more_effects,omitempty"`
	// Evidence is what a decision rests on. Heartbeats that have aged out have
	// their number only.
	Evidence   []rollout.Cite `json:"evidence,omitempty"`
	Heartbeats []shownBeat    `json:"heartbeats,omitempty"`
	Events     []shownEvent   `json:"evidence_events,omitempty"`
}

type shownBeat struct {
	Seq       uint64            `json:"seq"`
	Node      string            `json:"node,omitempty"`
	Stored    *time.Time        `json:"stored,omitempty"`
	Heartbeat *events.Heartbeat `json:"heartbeat,omitempty"`
	AgedOut   bool              `json:"aged_out,omitempty"`
}

func (s *around) json() shownJSON {
	list := func(raws []server.LogRecord) []shownEvent {
		out := []shownEvent{}
		for _, raw := range raws {
			out = append(out, shownEvent{raw.Seq, raw.Data})
		}
		return out
	}
	out := shownJSON{shownEvent: shownEvent{s.at.Seq, s.at.Data}, By: s.by, Causes: list(s.causes), Effects: list(s.effects), More: s.more, Evidence: s.cites}
	if strings.HasPrefix(s.by, "node:") {
		out.Report = s.begun
	} else {
		out.Command = s.begun
	}
	for _, cite := range s.cites {
		for _, seq := range cite.Heartbeats {
			b := shownBeat{Seq: seq, AgedOut: true}
			if m, ok := s.beats[seq]; ok {
				b.AgedOut, b.Stored = false, &m.Stored
				b.Node, _, _ = events.SubjectNode(m.Subject)
				if hb, err := events.DecodeHeartbeat(m.Data); err == nil {
					b.Heartbeat = &hb
				}
			}
			out.Heartbeats = append(out.Heartbeats, b)
		}
		for _, seq := range cite.Events {
			if m, ok := s.facts[seq]; ok {
				out.Events = append(out.Events, shownEvent{seq, m.Data})
			}
		}
	}
	return out
}
