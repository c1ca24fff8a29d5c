package server

import (
	"context"
	"encoding/json"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"noxmesh/events"
)

// pulser writes the mesh's own heartbeat. A pulse that reaches the stream says
// that the mesh could hear nodes since the time in it; being in the same stream
// as the nodes' heartbeats, it counts only once what came before it was read.
type pulser struct {
	js       jetstream.JetStream
	server   string
	interval time.Duration
	logger   zerolog.Logger
}

// maxMissed pulses in a row are a gap: what went on meanwhile was not heard.
const maxMissed = 3

func (p *pulser) run(ctx context.Context) error {
	since := time.Now().UTC()
	last := since // the last pulse that was stored
	tick := time.NewTicker(p.interval)
	defer tick.Stop()
	for {
		now := time.Now().UTC()
		if now.Sub(last) > maxMissed*p.interval {
			p.logger.Warn().Time("from", last).Time("to", now).Msg("the mesh was deaf; windows stood still")
			since = now
		}
		raw, err := json.Marshal(events.Pulse{Server: p.server, Since: since})
		if err != nil {
			return err
		}
		attempt, cancel := context.WithTimeout(ctx, maxMissed*p.interval)
		_, err = p.js.Publish(attempt, events.HeartbeatSubject(events.PulseID), raw)
		cancel()
		if err == nil {
			last = now
		} else if ctx.Err() == nil {
			p.logger.Warn().Err(err).Msg("could not write a pulse")
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
