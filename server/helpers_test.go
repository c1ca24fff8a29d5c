package server

import (
	"context"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"noxmesh/events"
)

// patience bounds waits for things that do happen. It costs nothing when they do.
const patience = 20 * time.Second

func testContext(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*patience)
	t.Cleanup(cancel)
	return ctx
}

// mesh is a broker with its streams, and a connection to it as the mesh itself.
type mesh struct {
	dir      string
	identity *Identity
	broker   *Broker
	nc       *nats.Conn
	js       jetstream.JetStream
}

func startMesh(t testing.TB, dir string) *mesh {
	t.Helper()
	m := startBroker(t, dir, RevokedKeys{})
	if err := EnsureStreams(testContext(t), m.js, StreamOptions{}); err != nil {
		t.Fatal(err)
	}
	return m
}

func startBroker(t testing.TB, dir string, revoked RevokedKeys) *mesh {
	t.Helper()
	id, err := LoadOrCreateIdentity(dir)
	if err != nil {
		t.Fatal(err)
	}
	b, err := StartBroker(BrokerConfig{DataDir: dir, Listen: "127.0.0.1:0", Identity: id, Revoked: revoked, Logger: testLog(t)})
	if err != nil {
		t.Fatal(err)
	}
	m := &mesh{dir: dir, identity: id, broker: b}
	t.Cleanup(func() { m.stop(t) })
	if m.nc, err = b.Connect(testContext(t)); err != nil {
		t.Fatal(err)
	}
	if m.js, err = jetstream.New(m.nc); err != nil {
		t.Fatal(err)
	}
	return m
}

// stop may be called twice.
func (m *mesh) stop(t testing.TB) {
	t.Helper()
	if m.nc != nil {
		m.nc.Close()
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := m.broker.Shutdown(ctx); err != nil {
		t.Error(err)
	}
}

func testLog(t testing.TB) zerolog.Logger {
	return zerolog.New(zerolog.NewTestWriter(t)).Level(zerolog.WarnLevel)
}

// user is a connection with some creds that keeps what the broker refuses.
type user struct {
	*nats.Conn
	denied chan error
}

func connectUser(t testing.TB, m *mesh, creds []byte, inbox string) *user {
	t.Helper()
	u := &user{denied: make(chan error, 64)}
	nc, err := nats.Connect(m.broker.ClientURL(), nats.RootCAs(CAFile(m.dir)), nats.UserCredentialBytes(creds), nats.CustomInboxPrefix(inbox),
		nats.NoReconnect(), nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { u.denied <- err }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	u.Conn = nc
	return u
}

func connectNode(t testing.TB, m *mesh, name string) *user {
	t.Helper()
	creds, _, err := m.identity.NodeCreds(name)
	if err != nil {
		t.Fatal(err)
	}
	return connectUser(t, m, creds, events.InboxPrefix("node", name))
}

func connectPerson(t testing.TB, m *mesh, name, role string) *user {
	t.Helper()
	creds, _, err := m.identity.UserCreds(name, role)
	if err != nil {
		t.Fatal(err)
	}
	return connectUser(t, m, creds, events.InboxPrefix("user", name))
}

// NodeCreds makes a credential for one node, which no join has made, and gives it
// with its public key.
func (id *Identity) NodeCreds(name string) (creds []byte, publicKey string, err error) {
	return newCreds(name, func(publicKey string) (string, error) {
		if err := events.CheckNodeID(name); err != nil {
			return "", err
		}
		return scopedJWT(name, publicKey, id.nodes, id.roleNode, time.Time{})
	})
}
