package nodeagent

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"noxmesh/events"
	"noxmesh/events/anchor"
)

// link is the node's one connection to the mesh. It goes outwards only.
type link struct {
	a      *Agent
	cameUp chan struct{}

	mu     sync.Mutex
	nc     *nats.Conn // nil unless up
	up     chan struct{}
	reason string // why it is down
	since  time.Time
	denied map[string]bool // problem keys of denied permissions

	// Of run's goroutine alone.
	began      string    // the credential that the session began with
	renewAt    time.Time // zero until the first renewal
	renewTries int
}

func newLink(a *Agent) *link {
	return &link{a: a, cameUp: make(chan struct{}, 1), up: make(chan struct{}), reason: "not tried yet", since: time.Now(), denied: map[string]bool{}}
}

// LinkStatus is what the link is like.
type LinkStatus struct {
	Up     bool      `json:"up"`
	Reason string    `json:"reason,omitempty"` // why it is down
	Since  time.Time `json:"since"`
	URL    string    `json:"url,omitempty"`
}

func (l *link) status() LinkStatus {
	l.mu.Lock()
	defer l.mu.Unlock()
	return LinkStatus{Up: l.nc != nil, Reason: l.reason, Since: l.since.UTC(), URL: l.a.cfg.URL}
}

func (l *link) isUp() bool { return l.conn() != nil }

func (l *link) conn() *nats.Conn {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.nc
}

// waitUp gives the connection as soon as there is one.
func (l *link) waitUp(ctx context.Context) (*nats.Conn, error) {
	for {
		l.mu.Lock()
		nc, up := l.nc, l.up
		l.mu.Unlock()
		if nc != nil {
			return nc, nil
		}
		select {
		case <-up:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (l *link) setUp(nc *nats.Conn) {
	l.mu.Lock()
	if l.nc == nil {
		close(l.up)
	}
	l.nc, l.reason, l.since = nc, "", time.Now()
	// What was denied may be allowed by now; if not, it will show again.
	denied := l.denied
	l.denied = map[string]bool{}
	l.mu.Unlock()
	for key := range denied {
		l.a.problem(key, "")
	}
	l.a.log.Info().Str("url", nc.ConnectedUrlRedacted()).Msg("link is up")
	poke(l.cameUp)
	poke(l.a.beat)
	poke(l.a.dirty)
}

func (l *link) setDown(reason string) {
	l.mu.Lock()
	was, old := l.nc != nil, l.reason
	if was {
		l.up, l.since = make(chan struct{}), time.Now()
	}
	l.nc, l.reason = nil, reason
	l.mu.Unlock()
	if was || old != reason {
		l.a.log.Warn().Str("reason", reason).Msg("link is down")
		poke(l.a.dirty)
	}
}

// run keeps the link until the context ends.
func (l *link) run(ctx context.Context) {
	if l.a.cfg.URL == "" {
		l.setDown("no address of the mesh: give nox-mesh-host join TOKEN, or set NOX_MESH_URL=tls://HOST:4222 in /etc/nox-mesh-host/environment and restart the host")
		return
	}
	t := l.a.cfg.Timings
	refused := 0
	for try := 1; ; try++ {
		began := time.Now()
		err := l.session(ctx)
		if errors.Is(err, errNotLetIn) && ctx.Err() == nil {
			// The credential has expired, while the machine was away or on a
			// connection that lives on from before the last renewal.
			l.setDown(err.Error())
			if token(l.a.cfg.CredsFile) != l.began {
				continue
			}
			if err = l.comeBack(ctx); err == nil {
				// With the pause below, for a mesh that would refuse that, too.
				err = errors.New("connecting with a new credential")
			}
		}
		if ctx.Err() != nil {
			l.setDown("the host stops")
			return
		}
		l.setDown(err.Error())
		if time.Since(began) > t.ReconnectMax {
			try = 1
		}
		pause := backoff(try, t.Reconnect, t.ReconnectMax)
		if refusedLink(err.Error()) {
			// Only an operator can change that, so nobody is in a hurry.
			refused++
			pause = backoff(refused, t.Refused, t.RefusedMax)
		} else {
			refused = 0
		}
		if wait(ctx, pause) != nil {
			return
		}
	}
}

// errNotLetIn: the broker does not take the credential for the link.
var errNotLetIn = errors.New("the mesh does not take this machine's credential")

// session is the link under one set of credentials. It ends with the context,
// when the credentials are for another node by now, or when nats gives up.
func (l *link) session(ctx context.Context) error {
	a := l.a
	node, err := NodeName(a.cfg.CredsFile)
	if err != nil {
		return err
	}
	a.identify(node)
	l.began = token(a.cfg.CredsFile)
	secure, err := l.secure()
	if err != nil {
		return err
	}
	changed, closed := make(chan struct{}, 1), make(chan error, 1)
	nc, err := connect(ctx, a.cfg.URL, append(l.options(node, changed, closed), secure...)...)
	if err != nil {
		return fmt.Errorf("connecting to %s: %w", a.cfg.URL, anchor.Explain(err))
	}
	defer nc.Close()
	// Subscribe first and get afterwards, on each connection: what is declared
	// in between comes both ways, and nothing falls through.
	if _, err := nc.Subscribe(events.DeclarationSubject(node), func(m *nats.Msg) { a.offer(m.Data, false) }); err != nil {
		return fmt.Errorf("subscribing: %w", err)
	}
	refresh := time.NewTimer(about(a.cfg.Timings.Refresh))
	defer refresh.Stop()
	renew := l.renewal()
	defer renew.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-closed:
			if mayComeBack(err) {
				return fmt.Errorf("%w: %w", errNotLetIn, err)
			}
			return err
		case <-renew.C:
			renew.Reset(l.renew(ctx, nc, node))
			continue
		case <-changed:
			if name, err := NodeName(a.cfg.CredsFile); err == nil && name != node {
				return fmt.Errorf("the credentials are for node %q now", name)
			}
			if !nc.IsConnected() {
				// Refused credentials reach no callback while the first
				// connection is still to be made.
				if err := nc.LastError(); err != nil {
					if l.hasDoor() && mayComeBack(err) {
						return fmt.Errorf("%w: %w", errNotLetIn, err)
					}
					l.setDown("connecting: " + anchor.Explain(err).Error())
				}
				continue
			}
			l.setUp(nc)
		case <-refresh.C:
		}
		next := about(a.cfg.Timings.Refresh)
		if nc.IsConnected() {
			if err := l.refresh(ctx, nc, node); err != nil && ctx.Err() == nil {
				a.problem("refresh", fmt.Sprintf("the own declaration cannot be read from the mesh: %v", err))
				next = min(next, backoff(1, a.cfg.Timings.RetryLeast, a.cfg.Timings.RetryMost))
			} else {
				a.problem("refresh", "")
			}
		}
		refresh.Reset(next)
	}
}

func (l *link) options(node string, changed chan struct{}, closed chan error) []nats.Option {
	t := l.a.cfg.Timings
	return []nats.Option{
		nats.Name("nox-mesh-host " + node),
		nats.UserCredentials(l.a.cfg.CredsFile), // read again for each connection
		nats.CustomInboxPrefix(events.InboxPrefix("node", node)),
		nats.RetryOnFailedConnect(true),
		nats.MaxReconnects(-1),
		nats.IgnoreAuthErrorAbort(), // credentials may be replaced or allowed again
		nats.CustomReconnectDelay(func(n int) time.Duration {
			poke(changed)
			return backoff(n, t.Reconnect, t.ReconnectMax)
		}),
		nats.Timeout(10 * time.Second),
		nats.PingInterval(20 * time.Second),
		nats.MaxPingsOutstanding(2),
		// No buffer: a heartbeat that comes late says what is not so.
		nats.ReconnectBufSize(-1),
		nats.ConnectHandler(func(*nats.Conn) { poke(changed) }),
		nats.ReconnectHandler(func(*nats.Conn) { poke(changed) }),
		nats.DisconnectErrHandler(func(nc *nats.Conn, err error) {
			if nc.IsClosed() {
				return
			}
			if err == nil {
				err = errors.New("the connection ended")
			}
			l.setDown(err.Error())
			poke(changed)
		}),
		nats.ReconnectErrHandler(func(_ *nats.Conn, err error) {
			l.setDown("connecting: " + anchor.Explain(err).Error())
			poke(changed)
		}),
		nats.ClosedHandler(func(nc *nats.Conn) {
			err := nc.LastError()
			if err == nil {
				err = errors.New("the connection was closed")
			}
			select {
			case closed <- err:
			default:
			}
		}),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { l.asyncError(err) }),
	}
}

// asyncError hears what has no caller to return to. A denied permission shows
// nowhere else: whoever waits for the answer only sees a timeout.
func (l *link) asyncError(err error) {
	text := events.Printable(err.Error(), 250)
	if !errors.Is(err, nats.ErrPermissionViolation) {
		l.a.log.Warn().Str("error", text).Msg("broker")
		return
	}
	key := "denied " + text
	l.mu.Lock()
	full := len(l.denied) >= 10 && !l.denied[key]
	if !full {
		l.denied[key] = true
	}
	l.mu.Unlock()
	if !full {
		l.a.problem(key, "the broker denies this node something that it needs; its credentials may be of another mesh or time: "+text)
	}
}

// errNothing: the stream has no message on that subject.
var errNothing = errors.New("the mesh has nothing there")

// directGet reads the last message on one subject of a stream, in the form of
// Direct Get that can be granted subject by subject.
func directGet(ctx context.Context, nc *nats.Conn, stream, subject string, timeout time.Duration) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	m, err := nc.RequestWithContext(ctx, "$JS.API.DIRECT.GET."+stream+"."+subject, nil)
	if errors.Is(err, context.DeadlineExceeded) {
		return nil, fmt.Errorf("no answer within %v (slow link, or not allowed)", timeout)
	}
	if err != nil {
		return nil, err
	}
	switch code := m.Header.Get("Status"); code {
	case "":
		return m.Data, nil
	case "404":
		return nil, errNothing
	default:
		return nil, fmt.Errorf("the broker answers %s %s", code, events.Printable(m.Header.Get("Description"), 200))
	}
}

// direct is [directGet] over the link as it is now.
func (l *link) direct(ctx context.Context, stream, subject string) ([]byte, error) {
	nc := l.conn()
	if nc == nil {
		return nil, fmt.Errorf("the link is down: %s", l.status().Reason)
	}
	return directGet(ctx, nc, stream, subject, l.a.cfg.Timings.Request)
}

// refresh looks what the mesh declares now.
func (l *link) refresh(ctx context.Context, nc *nats.Conn, node string) error {
	raw, err := directGet(ctx, nc, events.StreamDeclarations, events.DeclaredSubject(node), l.a.cfg.Timings.Request)
	if errors.Is(err, errNothing) {
		return nil // not declared yet
	}
	if err != nil {
		return err
	}
	l.a.offer(raw, true)
	return nil
}

// wait pauses, unless the context ends.
func wait(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}
