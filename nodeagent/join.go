package nodeagent

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"noxmesh/events"
	"noxmesh/events/anchor"
)

// JoinConfig says how to join.
type JoinConfig struct {
	Dir   string // the node's configuration directory; it is made if need be
	Token string
	// MachineIDFile is where the machine's id is; /etc/machine-id if empty.
	MachineIDFile string
	// Patience is how long to try while nobody answers; a minute if zero.
	Patience time.Duration

	// afterStep is called after each durable step, as in [Config].
	afterStep func(step string) error
}

// Joined is what a join led to.
type Joined struct {
	Node      string
	URL       string
	MachineID string // as the mesh records it; empty if the machine has none
}

// ErrRefused: the mesh said no, and asking again will not help.
var ErrRefused = errors.New("the mesh refuses")

// joinPause is between two tries of a join that got no answer.
const joinPause = time.Second

// Join trades a token for the identity of a node. The key is made here and
// never leaves the machine. A join that was cut off at any moment leaves the
// machine with its old identity whole, if it had one, or with the new one; it
// is given again with the same token.
func Join(ctx context.Context, c JoinConfig) (Joined, error) {
	token, err := events.ParseToken(c.Token)
	if err != nil {
		return Joined{}, err
	}
	host, err := anchor.Host(token.URL)
	if err != nil {
		return Joined{}, err
	}
	if c.afterStep == nil {
		c.afterStep = func(string) error { return nil }
	}
	if c.Patience == 0 {
		c.Patience = time.Minute
	}
	if err := os.MkdirAll(c.Dir, 0o755); err != nil {
		return Joined{}, fmt.Errorf("the configuration directory: %w: join as root, or name another with --config-dir", err)
	}
	unlock, err := lockDir(c.Dir)
	if err != nil {
		return Joined{}, fmt.Errorf("the configuration directory %s: %w", c.Dir, err)
	}
	defer unlock()
	if err := settleJoin(c.Dir, c.afterStep); err != nil {
		return Joined{}, err
	}
	key, err := joinKey(c.Dir, token.Invite)
	if err != nil {
		return Joined{}, fmt.Errorf("the machine's key cannot be kept in %s: %w: join as root, or name another directory with --config-dir", c.Dir, err)
	}
	defer key.Wipe()
	if err := c.afterStep("key"); err != nil {
		return Joined{}, err
	}
	id := MachineID(or(c.MachineIDFile, "/etc/machine-id"))
	q, err := events.SignJoin(key, token.Invite, id)
	if err != nil {
		return Joined{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, c.Patience)
	defer cancel()
	reply, ca, err := knock(ctx, token, host, q)
	if errors.Is(err, ErrRefused) {
		// The key is of no use any more.
		return Joined{}, errors.Join(err, os.Remove(filepath.Join(c.Dir, fileJoinKey)))
	}
	if err != nil {
		return Joined{}, err
	}
	if err := c.afterStep("answer"); err != nil {
		return Joined{}, err
	}
	files, err := identityFiles(c.Dir, token, reply, ca, key)
	if err != nil {
		return Joined{}, fmt.Errorf("the mesh's answer: %w", err)
	}
	if err := stage(c.Dir, files, c.afterStep); err != nil {
		return Joined{}, fmt.Errorf("writing the new identity to %s: %w", c.Dir, err)
	}
	return Joined{Node: reply.Node, URL: token.URL, MachineID: id}, settleJoin(c.Dir, c.afterStep)
}

// knock asks at the joining door until there is an answer, yes or no.
func knock(ctx context.Context, token events.Token, host string, q events.JoinRequest) (events.DoorReply, *x509.Certificate, error) {
	raw, err := json.Marshal(q)
	if err != nil {
		return events.DoorReply{}, nil, err
	}
	for {
		var ca *x509.Certificate
		secure := anchor.Pinned(token.CA, host, func(c *x509.Certificate) { ca = c })
		reply, err := ask(ctx, token.URL, events.JoinSubject(token.Invite), raw, joinTry,
			nats.Name("nox-mesh-host join"), nats.Secure(secure), nats.UserJWTAndSeed(token.JWT, token.Seed),
			nats.CustomInboxPrefix(events.InboxPrefix("join", token.Invite)))
		why := anchor.Explain(err)
		switch {
		case err == nil:
			return reply, ca, nil
		case errors.Is(why, anchor.ErrNotThisMesh):
			return reply, nil, fmt.Errorf("%s is not the mesh that this token is from, or somebody sits in between: its CA is another one: ask for a new token, and check the address", token.URL)
		case errors.Is(err, nats.ErrAuthorization), errors.Is(err, nats.ErrAuthExpired), errors.Is(err, nats.ErrAuthRevoked):
			return reply, nil, fmt.Errorf("%w this token: it has expired long ago, or the mesh was made anew since: ask for a new one", ErrRefused)
		case errors.Is(err, ErrRefused):
			return reply, nil, err
		case why != err: // the server's certificate; it will be the same next time
			return reply, nil, fmt.Errorf("%s: %w", token.URL, why)
		}
		if wait(ctx, joinPause) != nil {
			return reply, nil, fmt.Errorf("the mesh does not answer at %s: %w: is this machine let through to there? The token stays good, give the command again", token.URL, err)
		}
	}
}

// joinTry bounds one try.
const joinTry = 15 * time.Second

// ask makes a connection for one request at the door and gives the answer.
func ask(ctx context.Context, url, subject string, request []byte, timeout time.Duration, opts ...nats.Option) (events.DoorReply, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	// The error of a refusal comes beside the request, which then gets no answer.
	denied := make(chan error, 1)
	nc, err := connect(ctx, url, append(opts, nats.NoReconnect(), nats.IgnoreDiscoveredServers(), nats.Timeout(timeout),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
			select {
			case denied <- err:
			default:
			}
		}))...)
	if err != nil {
		return events.DoorReply{}, err
	}
	defer nc.Close()
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	go func() {
		select {
		case err := <-denied:
			stop(err)
		case <-ctx.Done():
		}
	}()
	return askOver(ctx, nc, subject, request)
}

// connect is nats.Connect, but for a context: a host that is told to stop must
// not wait for a server that says nothing, since a stop that takes too long
// counts as a failure.
func connect(ctx context.Context, url string, opts ...nats.Option) (*nats.Conn, error) {
	type result struct {
		nc  *nats.Conn
		err error
	}
	done := make(chan result, 1)
	go func() {
		nc, err := nats.Connect(url, opts...)
		done <- result{nc, err}
	}()
	select {
	case r := <-done:
		return r.nc, r.err
	case <-ctx.Done():
		go func() {
			if r := <-done; r.nc != nil {
				r.nc.Close()
			}
		}()
		return nil, ctx.Err()
	}
}

// askOver asks over a connection that there is. The answer may be the last thing
// that comes over it, so what has come counts, whatever came right behind it.
func askOver(ctx context.Context, nc *nats.Conn, subject string, request []byte) (events.DoorReply, error) {
	inbox, answers := nc.NewInbox(), make(chan *nats.Msg, 1)
	sub, err := nc.ChanSubscribe(inbox, answers)
	if err != nil {
		return events.DoorReply{}, err
	}
	defer func() { _ = sub.Unsubscribe() }()
	gone := nc.StatusChanged(nats.CLOSED, nats.RECONNECTING)
	defer nc.RemoveStatusListener(gone)
	if err := nc.PublishRequest(subject, inbox, request); err != nil {
		return events.DoorReply{}, err
	}
	var m *nats.Msg
	select {
	case m = <-answers:
	case <-ctx.Done():
		err = context.Cause(ctx)
	case <-gone:
		err = errors.Join(errors.New("the connection ended before the answer"), nc.LastError())
	}
	if m == nil {
		select {
		case m = <-answers:
		default:
			return events.DoorReply{}, err
		}
	}
	if len(m.Data) == 0 && m.Header.Get("Status") == "503" {
		return events.DoorReply{}, errors.New("the broker answers, but no nox-mesh server does: it may be starting")
	}
	reply, err := events.DecodeDoorReply(m.Data)
	switch {
	case err != nil:
		return events.DoorReply{}, err
	case reply.Refused != "":
		return events.DoorReply{}, fmt.Errorf("%w: %s", ErrRefused, reply.Refused)
	case reply.Error != "":
		return events.DoorReply{}, errors.New(reply.Error)
	}
	return reply, nil
}

// MachineID gives what the mesh records of a machine, to tell two of one name
// apart: made from the machine's id, which is to stay on the machine (see
// machine-id(5)). It is empty for a machine that has none.
func MachineID(file string) string {
	raw, err := os.ReadFile(file)
	id := strings.TrimSpace(string(raw))
	if err != nil || len(id) != 32 {
		return ""
	}
	mac := hmac.New(sha256.New, []byte(id))
	mac.Write([]byte("nox-mesh"))
	return hex.EncodeToString(mac.Sum(nil)[:16])
}

func or(s, instead string) string {
	if s == "" {
		return instead
	}
	return s
}
