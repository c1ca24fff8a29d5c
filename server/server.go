package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"noxmesh/events"
	"noxmesh/projections"
	"noxmesh/rollout"
)

// Config says how to run a server. The zero values of the optional fields are
// what an installation wants.
type Config struct {
	DataDir string
	Listen  string // host:port; port 0 takes a free one
	Logger  zerolog.Logger
	// Hosts are names and addresses under which clients find the server, besides
	// those that it finds out itself; tokens name the first.
	Hosts []string
	// Certificates of the installation's own; the mesh makes its own if none.
	Certificates Certificates
	// LinkLife is how long a node's credential for the link lives; 24 h if zero.
	LinkLife time.Duration
	// NewOperator issues the first operator's credential anew, since it was lost.
	NewOperator bool
	// PulseInterval is how often the mesh says that it listens; 5 s if zero.
	// Windows are counted in steps of it.
	PulseInterval time.Duration
	// Metrics is host:port for Prometheus to ask; empty: nowhere. Port 0 takes a
	// free one.
	Metrics string
	// Appended, if set, hears of each event that this server has written.
	Appended func(seq uint64, e events.Event)
}

// Server is the whole control plane in one process.
type Server struct {
	broker  *Broker
	nc      *nats.Conn
	api     *api
	door    *door
	metrics net.Addr
	notary  *logNotary
	cancel  context.CancelCauseFunc
	ctx     context.Context
	parts   sync.WaitGroup
}

const defaultPulse = 5 * time.Second

// healthInterval is how often the broker's health is looked at: a stream
// freezes on an I/O error until the broker is started again.
const healthInterval = 5 * time.Second

// Start starts everything and returns when operators and nodes are served.
func Start(ctx context.Context, c Config) (_ *Server, err error) {
	if c.PulseInterval == 0 {
		c.PulseInterval = defaultPulse
	}
	identity, err := LoadOrCreateIdentity(c.DataDir)
	if err != nil {
		return nil, err
	}
	broker, err := StartBroker(BrokerConfig{
		DataDir: c.DataDir, Listen: c.Listen, Hosts: c.Hosts, Certificates: c.Certificates,
		Identity: identity, Revoked: loadRevoked(c.DataDir, c.Logger), Logger: c.Logger,
	})
	if err != nil {
		return nil, err
	}
	s := &Server{broker: broker}
	s.ctx, s.cancel = context.WithCancelCause(context.Background())
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Stop())
		}
	}()
	if err := writeFile(URLFile(c.DataDir), []byte(broker.ClientURL()+"\n")); err != nil {
		return nil, err
	}
	if s.nc, err = broker.Connect(ctx); err != nil {
		return nil, err
	}
	js, err := jetstream.New(s.nc)
	if err != nil {
		return nil, fmt.Errorf("opening JetStream: %w", err)
	}
	if err := EnsureStreams(ctx, js, StreamOptions{}); err != nil {
		return nil, err
	}
	if s.notary, err = openNotary(ctx, c.DataDir, js, c.Logger); err != nil {
		return nil, err
	}
	hostname, err := os.Hostname()
	if err != nil {
		hostname = "unknown"
	}
	source := "nox-mesh/" + hostname
	log := events.NewLog(js)
	log.Appended = c.Appended
	runner := projections.NewRunner(js, log)
	runner.Dir, runner.Logger = snapshotDir(c.DataDir), c.Logger
	signer := &signer{dir: c.DataDir, log: log, runner: runner, source: source, logger: c.Logger, afterStep: func(string) error { return nil }}
	log.Seal = signer.seal
	s.part("projections", func(ctx context.Context) error { return whatToDo(runner.Run(ctx), c.DataDir) })
	if c.Metrics != "" {
		l, err := listenMetrics(c.Metrics)
		if err != nil {
			return nil, err
		}
		s.metrics = l.Addr()
		s.part("metrics", func(ctx context.Context) error { return serveMetrics(ctx, l, &metrics{runner, s.notary}) })
	}
	s.part("pulse", (&pulser{js: js, server: hostname, interval: c.PulseInterval, logger: c.Logger}).run)
	s.part("intake", (&intake{js: js, log: log, runner: runner, source: source, logger: c.Logger}).run)
	s.part("away", (&awayKeeper{log: log, runner: runner, source: source, logger: c.Logger}).run)
	s.part("health", func(ctx context.Context) error { return watchHealth(ctx, broker) })
	if err := s.folded(ctx, js, runner, c.Logger); err != nil {
		return nil, err
	}
	if err := signer.start(ctx); err != nil {
		return nil, err
	}
	if err := s.notary.start(runner); err != nil {
		return nil, err
	}
	s.part("notary", s.notary.follow)
	s.part("checkpoints", s.notary.watch)
	s.part("stager", (&rollout.Stager{Log: log, Runner: runner, Source: source, Logger: c.Logger}).Run)
	s.part("views", (&views{js: js, runner: runner, logger: c.Logger}).run)
	guard := &guard{file: RevokedFile(c.DataDir), broker: broker, runner: runner, logger: c.Logger}
	if err := guard.apply(); err != nil {
		return nil, err
	}
	s.part("guard", guard.run)
	s.api = &api{nc: s.nc, js: js, log: log, runner: runner, identity: identity, signer: signer, guard: guard, place: broker.place, source: source, logger: c.Logger, stopped: s.ctx.Done()}
	if err := s.api.firstOperator(ctx, c.DataDir, c.NewOperator); err != nil {
		return nil, err
	}
	s.api.notary = s.notary
	if err := s.api.start(); err != nil {
		return nil, err
	}
	s.door = &door{nc: s.nc, api: s.api, runner: runner, identity: identity, linkLife: cmp.Or(c.LinkLife, linkLife), logger: c.Logger}
	if err := s.door.start(); err != nil {
		return nil, err
	}
	return s, nil
}

// part runs one background part; the first to fail brings the server down.
func (s *Server) part(name string, run func(context.Context) error) {
	s.parts.Go(func() {
		if err := run(s.ctx); err != nil && s.ctx.Err() == nil {
			s.cancel(fmt.Errorf("%s: %w", name, err))
		}
	})
}

// progressEvery is how often a start that has much to read says how far it is.
const progressEvery = 5 * time.Second

// folded waits until all that is in the streams is folded.
func (s *Server) folded(ctx context.Context, js jetstream.JetStream, runner *projections.Runner, logger zerolog.Logger) error {
	progress := time.NewTicker(progressEvery)
	defer progress.Stop()
	for {
		select {
		case <-runner.Ready():
			return nil
		case <-s.ctx.Done():
			return context.Cause(s.ctx)
		case <-ctx.Done():
			return fmt.Errorf("reading the log: %w", ctx.Err())
		case <-progress.C:
		}
		line := logger.Info()
		runner.View(func(m *projections.Mesh) { line.Uint64("event", m.EventSeq).Uint64("heartbeat", m.HeartbeatSeq) })
		for name, key := range map[string]string{events.StreamEvents: "of_events", events.StreamHeartbeats: "of_heartbeats"} {
			if stream, err := js.Stream(ctx, name); err == nil {
				line.Uint64(key, stream.CachedInfo().State.LastSeq)
			}
		}
		line.Msg("reading the log; operators are served once it is read")
	}
}

func watchHealth(ctx context.Context, broker *Broker) error {
	tick := time.NewTicker(healthInterval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			if err := broker.Healthy(); err != nil {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// URLFile is where a running server leaves its address for the command line.
func URLFile(dataDir string) string { return filepath.Join(dataDir, "url") }

// URL is where nodes and operators on this machine connect to.
func (s *Server) URL() string { return s.broker.ClientURL() }

// OutsideURL is where clients on other machines connect to, as far as the server
// knows.
func (s *Server) OutsideURL() string { return s.broker.OutsideURL() }

// Failed is closed when a part has failed, or the server was stopped; Err then
// says why. A failed server must still be stopped.
func (s *Server) Failed() <-chan struct{} { return s.ctx.Done() }

// Err is why the server failed, nil if it did not.
func (s *Server) Err() error {
	if err := context.Cause(s.ctx); err != nil && !errors.Is(err, errStopped) {
		return err
	}
	return nil
}

var errStopped = errors.New("stopped")

// stopTimeout bounds a stop; systemd and people wait for it.
const stopTimeout = 4 * time.Second

// Stop stops everything and returns when the data is closed. Stopping twice is
// the same as stopping once.
func (s *Server) Stop() error {
	s.cancel(errStopped)
	if s.api != nil {
		s.api.stop()
	}
	if s.door != nil {
		s.door.stop()
	}
	s.parts.Wait()
	var err error
	if s.notary != nil {
		err = s.notary.close()
	}
	if s.nc != nil {
		s.nc.Close()
	}
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	return errors.Join(err, s.broker.Shutdown(ctx))
}
