package server

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	natsserver "github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"

	"noxmesh/events/anchor"
)

// BrokerConfig says how to run the broker.
type BrokerConfig struct {
	// DataDir holds everything that must survive; it is made if it is not there.
	DataDir string
	// Listen is host:port for nodes and operators, always with TLS. Port 0 takes
	// a free one.
	Listen   string
	Identity *Identity
	// Hosts are names and addresses under which clients find the broker, besides
	// those that it finds out itself. The first is the one that tokens name.
	Hosts []string
	// Certificates of the installation's own; the mesh makes its own if none.
	Certificates Certificates
	// Revoked keys are refused from the first moment.
	Revoked RevokedKeys
	// Unsynced leaves it to the caller to have everything on the disk in the end.
	Unsynced bool
	Logger   zerolog.Logger
}

func (c BrokerConfig) validate() (host string, port int, err error) {
	if c.Identity == nil {
		return "", 0, errors.New("starting the broker: no identity given")
	}
	host, p, err := net.SplitHostPort(c.Listen)
	if err != nil {
		return "", 0, fmt.Errorf("listen address %q does not read: %w: give --listen HOST:PORT", c.Listen, err)
	}
	port, err = strconv.Atoi(p)
	if err != nil || port < -1 || port > 65535 {
		return "", 0, fmt.Errorf("listen address %q: %q is no port: give --listen HOST:PORT", c.Listen, p)
	}
	if port == 0 {
		port = natsserver.RANDOM_PORT
	}
	if host == "" {
		host = natsserver.DEFAULT_HOST
	}
	return host, port, checkHosts(c.Hosts)
}

// Broker is nats-server in this process.
type Broker struct {
	srv      *natsserver.Server
	identity *Identity
	lock     *dataLock
	keyring  *keyring
	hosts    []string
	listen   string
	revoker  *revoker

	stop    sync.Once
	stopped chan struct{}
	stopErr error // valid once stopped is closed
}

// readyTimeout bounds the wait from "started" to "answers". Reading the data
// back comes before that and takes as long as it takes.
const readyTimeout = 10 * time.Second

// tlsTimeout bounds a handshake; links may be slow, and all nodes may come at
// once.
const tlsTimeout = 10 * time.Second

// StartBroker locks the data directory, starts the broker on it and returns
// when it answers and all its streams are loaded. The error says what to do.
func StartBroker(c BrokerConfig) (*Broker, error) {
	host, port, err := c.validate()
	if err != nil {
		return nil, err
	}
	lock, err := lockDataDir(c.DataDir)
	if err != nil {
		return nil, err
	}
	keyring, err := openKeyring(c.DataDir, c.Certificates, c.Hosts, host, c.Logger, time.Now())
	if err != nil {
		return nil, errors.Join(err, lock.release())
	}
	resolver := &natsserver.MemAccResolver{}
	operator, system, applied, err := c.Identity.trust(resolver, c.Revoked)
	if err != nil {
		return nil, errors.Join(err, lock.release())
	}
	opts := &natsserver.Options{
		ServerName:             "nox-mesh",
		Host:                   host,
		Port:                   port,
		TrustedOperators:       operator,
		SystemAccount:          system,
		AccountResolver:        resolver,
		JetStream:              true,
		StoreDir:               c.DataDir, // the server adds "jetstream"
		SyncAlways:             !c.Unsynced,
		DisableJetStreamBanner: true,
		TLSConfig:              keyring.config(),
		TLSTimeout:             tlsTimeout.Seconds(),
		// The status of a rollout over 50,000 nodes is one message. What a node
		// may send is limited in its credential.
		MaxPayload: 8 << 20,
		// The disk is the limit. The default, a share of what is free at the
		// start, would one day refuse to load a stream that has reserved space.
		JetStreamMaxStore: math.MaxInt64 / 2,
		NoSigs:            true, // the program handles signals
		NoLog:             true, // set below
	}
	srv, err := natsserver.NewServer(opts)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("starting the broker: %w", err), lock.release())
	}
	log := &brokerLog{log: c.Logger.With().Str("part", "broker").Logger()}
	srv.SetLoggerV2(log, false, false, false)
	b := &Broker{srv: srv, identity: c.Identity, lock: lock, stopped: make(chan struct{})}
	b.keyring, b.hosts, b.listen = keyring, c.Hosts, host
	b.revoker = &revoker{resolver: resolver, applied: applied}
	srv.Start()
	if err := b.started(log, c); err != nil {
		b.shutdown()
		<-b.stopped
		return nil, errors.Join(err, b.stopErr)
	}
	return b, nil
}

// started says whether the server runs and has all its data.
func (b *Broker) started(log *brokerLog, c BrokerConfig) error {
	if why := log.fatal(); why != "" {
		switch {
		case strings.Contains(why, "address already in use"):
			return fmt.Errorf("cannot listen on %s: the port is in use: stop what uses it, or choose another with --listen", c.Listen)
		case strings.Contains(why, "listening on port"):
			return fmt.Errorf("cannot listen on %s: %s: choose another address with --listen", c.Listen, why)
		}
		return fmt.Errorf("starting the broker on %s: %s: check that the directory is writable and its disk is sound", filepath.Join(c.DataDir, "jetstream"), why)
	}
	if !b.srv.ReadyForConnections(readyTimeout) {
		return fmt.Errorf("the broker did not answer within %s of its start: look at its log above", readyTimeout)
	}
	if err := b.Healthy(); err != nil {
		return fmt.Errorf("%w: nothing was changed; restore %s from a backup, or ask for help before you start it again", err, c.DataDir)
	}
	return nil
}

// ClientURL is where the broker listens, as an address to connect to from this
// machine.
func (b *Broker) ClientURL() string {
	raw := b.srv.ClientURL()
	u, err := url.Parse(raw)
	if err != nil {
		return raw
	}
	host := u.Hostname()
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	u.Host = net.JoinHostPort(b.keyring.callable(host), u.Port())
	return u.String()
}

// OutsideURL is where clients on other machines find the broker, as far as it
// knows.
func (b *Broker) OutsideURL() string {
	u, err := url.Parse(b.srv.ClientURL())
	if err != nil {
		return b.ClientURL()
	}
	u.Host = net.JoinHostPort(b.keyring.callable(reachable(b.hosts, b.listen)), u.Port())
	return u.String()
}

// CA is the fingerprint of the CA that clients trust, see [anchor.Fingerprint].
func (b *Broker) CA() string { return anchor.Fingerprint(b.keyring.ca) }

// Connect makes a connection inside the process, as the mesh itself. It has
// all rights in the mesh's account. The caller closes it.
func (b *Broker) Connect(ctx context.Context) (*nats.Conn, error) {
	auth, err := b.identity.service()
	if err != nil {
		return nil, fmt.Errorf("connecting to the broker: %w", err)
	}
	timeout := readyTimeout
	if deadline, ok := ctx.Deadline(); ok {
		timeout = time.Until(deadline)
	}
	if ctx.Err() != nil || timeout <= 0 {
		return nil, fmt.Errorf("connecting to the broker: %w", context.Cause(ctx))
	}
	conn, err := nats.Connect("", nats.InProcessServer(b.srv), auth,
		nats.Name("nox-mesh"), nats.Timeout(timeout), nats.MaxReconnects(-1))
	if err != nil {
		return nil, fmt.Errorf("connecting to the broker: %w", err)
	}
	return conn, nil
}

// Healthy says whether every stream on the disk is loaded and can be written.
// A stream that met an error of the disk takes nothing more until a restart.
func (b *Broker) Healthy() error {
	if h := b.srv.Healthz(nil); h.Error != "" {
		return fmt.Errorf("the broker is not healthy: %s", h.Error)
	}
	return nil
}

// Shutdown stops the broker and waits until everything is on the disk and the
// data directory is free, or until ctx ends, which is then the error. Calling
// it again is fine.
func (b *Broker) Shutdown(ctx context.Context) error {
	b.shutdown()
	select {
	case <-b.stopped:
		return b.stopErr
	case <-ctx.Done():
		return fmt.Errorf("the broker is still stopping: %w", context.Cause(ctx))
	}
}

func (b *Broker) shutdown() {
	b.stop.Do(func() {
		go func() {
			b.srv.Shutdown()
			b.srv.WaitForShutdown()
			b.stopErr = b.lock.release()
			close(b.stopped)
		}()
	})
}

// brokerLog hands the server's log over. What it calls a notice is detail for
// the reader of this program's log. It has a line for each thing that it refuses
// a client; one that tries without end must not drown what else there is to read.
type brokerLog struct {
	log zerolog.Logger

	mu      sync.Mutex
	why     string
	lines   allowance
	leftOut int
}

const (
	lineBurst = 30
	lineEvery = time.Second
)

// fatal is the first thing that kept the server from starting.
func (l *brokerLog) fatal() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.why
}

func (l *brokerLog) Noticef(format string, v ...any) { l.log.Debug().Msgf(format, v...) }
func (l *brokerLog) Warnf(format string, v ...any)   { l.say(l.log.Warn(), format, v) }
func (l *brokerLog) Errorf(format string, v ...any)  { l.say(l.log.Error(), format, v) }
func (l *brokerLog) Debugf(format string, v ...any)  { l.log.Debug().Msgf(format, v...) }
func (l *brokerLog) Tracef(format string, v ...any)  { l.log.Trace().Msgf(format, v...) }

func (l *brokerLog) say(line *zerolog.Event, format string, v []any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var ok bool
	if l.lines, ok = l.lines.take(time.Now(), lineBurst, lineEvery); !ok {
		l.leftOut++
		return
	}
	if l.leftOut > 0 {
		line.Int("left_out_before", l.leftOut)
		l.leftOut = 0
	}
	line.Msgf(format, v...)
}

// Fatalf is kept for the error of [StartBroker]: errors are returned or logged.
func (l *brokerLog) Fatalf(format string, v ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.why == "" {
		l.why = fmt.Sprintf(format, v...)
	}
}
