package nodeagent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"

	"noxmesh/events"
	"noxmesh/events/anchor"
)

// The credential for the link lives for a day or so. It is renewed over the
// link when half of that is over. A machine that was off or away for longer has
// one that the broker refuses: it goes through the joining door then, where its
// key is let in for nothing else but to ask for the next one.
//
// The machine's own clock decides nothing: the mesh tells for how long a
// credential is good from the moment it is given, and the broker when one is good
// no more. After a start that moment is not known, so the first renewal comes soon.

// mayComeBack tells a credential that the broker does not take from everything
// else.
func mayComeBack(err error) bool {
	return errors.Is(err, nats.ErrAuthorization) || errors.Is(err, nats.ErrAuthExpired) || errors.Is(err, nats.ErrAuthRevoked)
}

// hasDoor says whether the machine has a credential for the door.
func (l *link) hasDoor() bool {
	if l.a.cfg.DoorFile == "" {
		return false
	}
	_, err := os.Stat(l.a.cfg.DoorFile)
	return err == nil
}

// secure makes the options that check who the server is.
func (l *link) secure() ([]nats.Option, error) {
	if l.a.cfg.CAFile == "" {
		return nil, nil
	}
	cfg, err := anchor.File(l.a.cfg.CAFile)
	if err != nil {
		return nil, fmt.Errorf("%w: give nox-mesh-host join TOKEN", err)
	}
	return []nats.Option{nats.Secure(cfg)}, nil
}

// renewal gives the timer of the next renewal.
func (l *link) renewal() *time.Timer {
	d := rand.N(l.a.cfg.Timings.RenewFirst)
	if !l.renewAt.IsZero() {
		d = max(0, time.Until(l.renewAt))
	}
	return time.NewTimer(d)
}

// renew asks for the next credential and gives the pause before the one after.
func (l *link) renew(ctx context.Context, nc *nats.Conn, node string) time.Duration {
	t := l.a.cfg.Timings
	if !nc.IsConnected() {
		return about(t.RetryLeast)
	}
	if !expires(l.a.cfg.CredsFile) {
		return about(t.RefusedMax)
	}
	ctx, cancel := context.WithTimeout(ctx, t.Request)
	defer cancel()
	reply, err := askOver(ctx, nc, events.RenewSubject(node), nil)
	if err == nil {
		err = l.take(node, reply)
	}
	if err != nil {
		if nc.IsConnected() && ctx.Err() != context.Canceled {
			l.a.problem("renewal", fmt.Sprintf("the credential for the link could not be renewed; it is tried again: %v", err))
		}
		l.renewTries++
		return backoff(l.renewTries, t.RetryLeast, t.RetryMost)
	}
	return max(0, time.Until(l.renewAt))
}

// take puts a new credential in the place of the one from before.
func (l *link) take(node string, r events.DoorReply) error {
	raw, err := os.ReadFile(l.a.cfg.CredsFile)
	if err != nil {
		return err
	}
	key, err := nkeys.ParseDecoratedNKey(raw)
	if err != nil {
		return fmt.Errorf("%s is damaged: %w", l.a.cfg.CredsFile, err)
	}
	defer key.Wipe()
	if r.Node != node || r.Seconds <= 0 {
		return errors.New("the mesh's answer is for another node")
	}
	creds, err := credsFile(node, r.Link, key)
	if err != nil {
		return fmt.Errorf("the mesh's answer: %w", err)
	}
	if err := writeDurablyWith(l.a.cfg.CredsFile, creds, 0o600); err != nil {
		return err
	}
	l.renewAt, l.renewTries = time.Now().Add(about(time.Duration(r.Seconds)*time.Second/2)), 0
	l.a.problem("renewal", "")
	return nil
}

// comeBack gets a new credential for the link through the door.
func (l *link) comeBack(ctx context.Context) error {
	a := l.a
	raw, err := os.ReadFile(a.cfg.DoorFile)
	if err != nil {
		return fmt.Errorf("the credential for the link is refused, and the one for coming back cannot be read: %w", err)
	}
	node, err := NodeName(a.cfg.DoorFile)
	if err != nil {
		return err
	}
	key, err := nkeys.ParseDecoratedNKey(raw)
	if err != nil {
		return fmt.Errorf("%s is damaged: %w", a.cfg.DoorFile, err)
	}
	defer key.Wipe()
	pub, err := key.PublicKey()
	if err != nil {
		return err
	}
	request, err := json.Marshal(events.ReturnRequest{PublicKey: pub})
	if err != nil {
		return err
	}
	opts, err := l.secure()
	if err != nil {
		return err
	}
	reply, err := ask(ctx, a.cfg.URL, events.ReturnSubject(node), request, a.cfg.Timings.Request, append(opts,
		nats.Name("nox-mesh-host return "+node), nats.UserCredentials(a.cfg.DoorFile),
		nats.CustomInboxPrefix(events.InboxPrefix("door", node)))...)
	switch {
	case mayComeBack(err):
		return fmt.Errorf("%w this node's key: it was revoked or decommissioned, another machine joined in its place, or the mesh was made anew", ErrRefused)
	case err != nil:
		return fmt.Errorf("coming back through the door: %w", anchor.Explain(err))
	}
	if err := l.take(node, reply); err != nil {
		return fmt.Errorf("coming back through the door: %w", err)
	}
	a.log.Info().Msg("got a new credential through the door")
	return nil
}

// token is the JWT in a credentials file, empty if it does not read.
func token(file string) string {
	raw, err := os.ReadFile(file)
	if err != nil {
		return ""
	}
	t, err := nkeys.ParseDecoratedJWT(raw)
	if err != nil {
		return ""
	}
	return t
}

// expires says whether the credential in a file ends some day.
func expires(file string) bool {
	claims, err := jwt.DecodeUserClaims(token(file))
	return err == nil && claims.Expires != 0
}
