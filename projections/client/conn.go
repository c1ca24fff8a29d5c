package client

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats.go"

	"noxmesh/events"
	"noxmesh/events/anchor"
)

// Conn is a connection to a mesh under the name of one person or tool. It may
// be used by several goroutines at once.
type Conn struct {
	nc   *nats.Conn
	user string

	mu    sync.Mutex
	asked map[*asked]struct{} // what waits for an answer
}

// asked is a command that waits for its answer.
type asked struct {
	subject string
	stop    context.CancelCauseFunc
}

// Dial connects with the credential in a file, to a server whose certificate is
// by the CA in another. The error says what to do. A connection that breaks
// later is made again, for as long as the credential is let in.
func Dial(url, credsFile, caFile string) (*Conn, error) {
	raw, err := os.ReadFile(credsFile)
	if err != nil {
		return nil, fmt.Errorf("reading the operator's credential: %w: start nox-mesh server (it writes one into its data directory), or name one with --creds or NOX_MESH_CREDS", err)
	}
	token, err := jwt.ParseDecoratedJWT(raw)
	if err != nil {
		return nil, fmt.Errorf("%s is no credential: %w", credsFile, err)
	}
	claims, err := jwt.DecodeUserClaims(token)
	if err != nil {
		return nil, fmt.Errorf("%s is no user's credential: %w", credsFile, err)
	}
	secure, err := anchor.File(caFile)
	if err != nil {
		return nil, fmt.Errorf("%w: copy tls/ca.pem from the server's data directory, and name it with --ca or NOX_MESH_CA", err)
	}
	c := &Conn{user: claims.Name, asked: map[*asked]struct{}{}}
	c.nc, err = nats.Connect(url,
		nats.Secure(secure),
		nats.Name("nox-mesh "+claims.Name),
		nats.UserCredentials(credsFile),
		nats.CustomInboxPrefix(events.InboxPrefix("user", claims.Name)),
		nats.MaxReconnects(-1),
		// A command must not wait in a buffer and be carried out later, when
		// the person who gave it has long been told that it failed.
		nats.ReconnectBufSize(-1),
		nats.ErrorHandler(func(nc *nats.Conn, _ *nats.Subscription, err error) {
			switch {
			case errors.Is(err, nats.ErrPermissionViolation):
				c.denied(err)
			case errors.Is(err, nats.ErrAuthRevoked), errors.Is(err, nats.ErrAuthorization):
				nc.Close() // it will not be otherwise the next time
			}
		}))
	if errors.Is(err, nats.ErrAuthorization) || errors.Is(err, nats.ErrAuthRevoked) {
		return nil, fmt.Errorf("the mesh at %s does not let %q in (%w): the credential %s was revoked or replaced, or is another mesh's", url, claims.Name, err, credsFile)
	}
	if why := anchor.Explain(err); errors.Is(why, anchor.ErrNotThisMesh) {
		return nil, fmt.Errorf("%s: %w (%s): name another CA with --ca or NOX_MESH_CA, or another place with --url", url, why, caFile)
	} else if why != err {
		return nil, fmt.Errorf("%s: %w", url, why)
	}
	if err != nil {
		return nil, fmt.Errorf("no mesh answers at %s: %w: is nox-mesh server running there? Name another place with --url or NOX_MESH_URL", url, err)
	}
	return c, nil
}

// Close ends the connection.
func (c *Conn) Close() { c.nc.Close() }

// User is the name in the credential.
func (c *Conn) User() string { return c.user }

// NATS is the connection itself, to look at (is it up, and to where?). The mesh
// lets nothing through on it but commands.
func (c *Conn) NATS() *nats.Conn { return c.nc }

// denied tells whoever waits for an answer that the broker refused the command.
// The refusal arrives beside the call, which would then time out.
func (c *Conn) denied(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for a := range c.asked {
		if strings.Contains(strings.ToLower(err.Error()), strings.ToLower(`"`+a.subject+`"`)) {
			a.stop(err)
		}
	}
}

// await has a command hear of its refusal until done is called.
func (c *Conn) await(subject string, stop context.CancelCauseFunc) (done func()) {
	a := &asked{subject, stop}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked[a] = struct{}{}
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.asked, a)
	}
}
