package server

import (
	"errors"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"

	"noxmesh/events"
)

// holder is somebody with a key of their own, whose credential is a JWT.
type holder struct {
	key nkeys.KeyPair
	pub string
}

func newHolder(t testing.TB) holder {
	t.Helper()
	key, err := nkeys.CreateUser()
	if err != nil {
		t.Fatal(err)
	}
	pub, err := key.PublicKey()
	if err != nil {
		t.Fatal(err)
	}
	return holder{key, pub}
}

// connect gives a connection, or why the broker refuses it. ended hears what the
// broker says when it ends it later on.
func (h holder) connect(m *mesh, token, inbox string) (nc *nats.Conn, ended chan error, err error) {
	ended = make(chan error, 8)
	nc, err = nats.Connect(m.broker.ClientURL(), nats.CustomInboxPrefix(inbox), nats.NoReconnect(), nats.RootCAs(CAFile(m.dir)),
		nats.UserJWT(func() (string, error) { return token, nil }, h.key.Sign),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { ended <- err }),
		nats.ClosedHandler(func(nc *nats.Conn) { ended <- nc.LastError() }))
	return nc, ended, err
}

// refused says whether the broker does not let a credential in.
func (h holder) refused(m *mesh, token, inbox string) error {
	nc, _, err := h.connect(m, token, inbox)
	switch {
	case err == nil:
		nc.Close()
		return errors.New("it is let in")
	case errors.Is(err, nats.ErrAuthorization), strings.Contains(err.Error(), "Authentication Expired"):
		return nil
	}
	return err
}

// way is a way into the broker.
type way struct {
	name, inbox string
	sign        func(publicKey string) (string, error)
	list        func(k *RevokedKeys) map[string]time.Time

	out, stays holder
	token      string // out's
}

func (w *way) signed(t testing.TB, h holder) string {
	t.Helper()
	token, err := w.sign(h.pub)
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// Each way in is closed by revoking its key: at once, for the same credential
// later, for one that is signed later, and from the first moment of a start.
func TestRevoke(t *testing.T) {
	m := startMesh(t, t.TempDir())
	id := m.identity
	ways := []*way{
		{name: "link", inbox: events.InboxPrefix("node", "n1"),
			sign: func(k string) (string, error) { return id.NodeJWT("n1", k, time.Hour) },
			list: func(k *RevokedKeys) map[string]time.Time { return k.Nodes }},
		{name: "door", inbox: events.InboxPrefix("door", "n1"),
			sign: func(k string) (string, error) { return id.DoorJWT("n1", k) },
			list: func(k *RevokedKeys) map[string]time.Time { return k.Door }},
		{name: "invite", inbox: events.InboxPrefix("join", "i1"),
			sign: func(k string) (string, error) { return id.InviteJWT("i1", k, time.Hour) },
			list: func(k *RevokedKeys) map[string]time.Time { return k.Door }},
		{name: "person", inbox: events.InboxPrefix("user", "ann"),
			sign: func(k string) (string, error) { return scopedJWT("ann", k, id.people, id.roleViewer, time.Time{}) },
			list: func(k *RevokedKeys) map[string]time.Time { return k.People }},
	}
	// What is no key turns nobody out, all others least of all.
	none := func() map[string]time.Time { return map[string]time.Time{jwt.All: time.Now(), "": time.Now(), ">": {}} }
	revoked := RevokedKeys{Nodes: none(), Door: none(), People: none()}
	for _, way := range ways {
		t.Run(way.name, func(t *testing.T) {
			way.out, way.stays = newHolder(t), newHolder(t)
			way.token = way.signed(t, way.out)
			_, ended, err := way.out.connect(m, way.token, way.inbox)
			if err != nil {
				t.Fatal(err)
			}
			kept, _, err := way.stays.connect(m, way.signed(t, way.stays), way.inbox)
			if err != nil {
				t.Fatal(err)
			}
			defer kept.Close()
			way.list(&revoked)[way.out.pub] = time.Unix(0, 0)
			for range 2 { // it is the same the second time
				if err := m.broker.Revoke(revoked); err != nil {
					t.Fatal(err)
				}
			}
			select {
			case err := <-ended:
				if !errors.Is(err, nats.ErrAuthRevoked) {
					t.Errorf("the connection ended with %v", err)
				}
			case <-time.After(patience):
				t.Fatal("the connection goes on")
			}
			for what, token := range map[string]string{"same": way.token, "later": way.signed(t, way.out)} {
				if err := way.out.refused(m, token, way.inbox); err != nil {
					t.Errorf("the %s credential is answered with %v", what, err)
				}
			}
			// Nobody else notices.
			if err := kept.FlushWithContext(testContext(t)); err != nil {
				t.Error("another was disconnected:", err)
			}
			if err := way.stays.refused(m, way.signed(t, way.stays), way.inbox); err == nil {
				t.Error("another is refused")
			}
		})
	}
	m = m.restart(t, revoked)
	for _, way := range ways {
		if err := way.out.refused(m, way.token, way.inbox); err != nil {
			t.Errorf("%s: after a restart it is answered with %v", way.name, err)
		}
		if err := way.stays.refused(m, way.signed(t, way.stays), way.inbox); err == nil {
			t.Errorf("%s: after a restart another is refused", way.name)
		}
	}
	// Off the list, they are let in: the list is the whole truth.
	if err := m.broker.Revoke(RevokedKeys{}); err != nil {
		t.Fatal(err)
	}
	for _, way := range ways {
		if err := way.out.refused(m, way.token, way.inbox); err == nil {
			t.Errorf("%s: it is refused, and no longer on the list", way.name)
		}
	}
}

// restart stops the broker and starts it on the same data.
func (m *mesh) restart(t testing.TB, revoked RevokedKeys) *mesh {
	t.Helper()
	m.stop(t)
	return startBroker(t, m.dir, revoked)
}

// A node's requests go on while others are revoked: what gets lost is asked again.
func TestRevokingHarmsNobody(t *testing.T) {
	m := startMesh(t, t.TempDir())
	u := connectNode(t, m, "self")
	ctx := testContext(t)
	sub, err := u.SubscribeSync(events.DeclarationSubject("self"))
	if err != nil {
		t.Fatal(err)
	}
	var sent, answered atomic.Int64
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			sent.Add(1)
			if _, err := u.Request(events.HeartbeatSubject("self"), []byte(strconv.Itoa(i)), 2*time.Second); err == nil {
				answered.Add(1)
			}
		}
	}()
	revoked := RevokedKeys{Nodes: map[string]time.Time{}}
	for range 50 {
		revoked.Nodes[newHolder(t).pub] = time.Now()
		if err := m.broker.Revoke(revoked); err != nil {
			t.Fatal(err)
		}
	}
	close(stop)
	<-done
	t.Logf("%d of %d requests were answered during 50 changes", answered.Load(), sent.Load())
	if answered.Load() == 0 {
		t.Error("no request was answered")
	}
	if _, err := u.RequestWithContext(ctx, events.HeartbeatSubject("self"), []byte("after")); err != nil {
		t.Error("a request afterwards:", err)
	}
	declare(t, m, "self", 1, 0)
	if _, err := sub.NextMsgWithContext(ctx); err != nil {
		t.Error("its declaration afterwards:", err)
	}
}

func TestCredentialsExpire(t *testing.T) {
	m := startMesh(t, t.TempDir())
	h := newHolder(t)
	token, err := m.identity.NodeJWT("n1", h.pub, 2*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	_, ended, err := h.connect(m, token, events.InboxPrefix("node", "n1"))
	if err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-ended:
		if !errors.Is(err, nats.ErrAuthExpired) {
			t.Errorf("the connection ended with %v", err)
		}
	case <-time.After(patience):
		t.Fatal("the connection goes on")
	}
	// Within the second in which it expires it is still good.
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(2 * time.Second); ; <-tick.C {
		err := h.refused(m, token, events.InboxPrefix("node", "n1"))
		if err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("an expired credential is answered with %v", err)
		}
	}
	for _, ttl := range []time.Duration{0, -time.Hour, time.Millisecond} {
		if token, err := m.identity.NodeJWT("n1", h.pub, ttl); err == nil || token != "" {
			t.Errorf("a credential for %s was signed", ttl)
		}
		if token, err := m.identity.InviteJWT("i1", h.pub, ttl); err == nil || token != "" {
			t.Errorf("an invite for %s was signed", ttl)
		}
	}
}
