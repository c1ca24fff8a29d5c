package server

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"

	"noxmesh/events"
	"noxmesh/events/anchor"
)

// machine is what a node keeps of its joining.
type machine struct {
	node  string
	key   nkeys.KeyPair
	reply events.DoorReply
}

func (x machine) public() string {
	pub, err := x.key.PublicKey()
	if err != nil {
		panic(err)
	}
	return pub
}

func (x machine) creds(token string) nats.Option {
	return nats.UserJWT(func() (string, error) { return token, nil }, x.key.Sign)
}

func newKey(t testing.TB) nkeys.KeyPair {
	t.Helper()
	key, err := nkeys.CreateUser()
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// invite gives a token for a node.
func (w *whole) invite(t testing.TB, name string, labels map[string]string) events.Token {
	t.Helper()
	r, err := w.client.Invite(testContext(t), InviteRequest{Nodes: []string{name}, Labels: labels})
	if err != nil {
		t.Fatal(err)
	}
	token, err := events.ParseToken(r.Invites[0].Token)
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// knock asks once at the joining door.
func knock(t testing.TB, token events.Token, q any) (events.DoorReply, error) {
	t.Helper()
	raw, err := json.Marshal(q)
	if err != nil {
		t.Fatal(err)
	}
	if s, ok := q.(string); ok {
		raw = []byte(s)
	}
	host, err := anchor.Host(token.URL)
	if err != nil {
		t.Fatal(err)
	}
	return atDoor(t, token.URL, events.JoinSubject(token.Invite), raw,
		nats.Secure(anchor.Pinned(token.CA, host, func(*x509.Certificate) {})), nats.UserJWTAndSeed(token.JWT, token.Seed),
		nats.CustomInboxPrefix(events.InboxPrefix("join", token.Invite)))
}

func atDoor(t testing.TB, url, subject string, raw []byte, opts ...nats.Option) (events.DoorReply, error) {
	t.Helper()
	nc, err := nats.Connect(url, append(opts, nats.NoReconnect())...)
	if err != nil {
		return events.DoorReply{}, err
	}
	defer nc.Close()
	msg, err := nc.RequestWithContext(testContext(t), subject, raw)
	if err != nil {
		return events.DoorReply{}, err
	}
	return events.DecodeDoorReply(msg.Data)
}

func signed(t testing.TB, key nkeys.KeyPair, invite string) events.JoinRequest {
	t.Helper()
	q, err := events.SignJoin(key, invite, "")
	if err != nil {
		t.Fatal(err)
	}
	return q
}

// joined has a machine join under a name.
func (w *whole) joined(t testing.TB, name string, labels map[string]string) machine {
	t.Helper()
	token := w.invite(t, name, labels)
	x := machine{node: name, key: newKey(t)}
	var err error
	if x.reply, err = knock(t, token, signed(t, x.key, token.Invite)); err != nil || x.reply.Link == "" {
		t.Fatalf("joining as %s: %+v, %v", name, x.reply, err)
	}
	return x
}

// link connects as a machine does.
func (w *whole) link(x machine, opts ...nats.Option) (*nats.Conn, error) {
	return nats.Connect(w.URL(), append([]nats.Option{nats.RootCAs(CAFile(w.dir)), x.creds(x.reply.Link),
		nats.CustomInboxPrefix(events.InboxPrefix("node", x.node))}, opts...)...)
}

// end is how a connection ended.
type end struct {
	at  time.Time
	why error // what the broker said last
}

// linked is a machine's connection, and how it ends.
func (w *whole) linked(t testing.TB, x machine) (*nats.Conn, <-chan end) {
	t.Helper()
	ended, said := make(chan end, 1), make(chan error, 8)
	nc, err := w.link(x, nats.NoReconnect(),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { said <- err }),
		nats.ClosedHandler(func(*nats.Conn) {
			e := end{at: time.Now()}
			for len(said) > 0 {
				e.why = <-said
			}
			ended <- e
		}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc, ended
}

// comesBack asks at the door for a node that was away.
func (w *whole) comesBack(t testing.TB, x machine) (events.DoorReply, error) {
	t.Helper()
	raw, err := json.Marshal(events.ReturnRequest{PublicKey: x.public()})
	if err != nil {
		t.Fatal(err)
	}
	return atDoor(t, w.URL(), events.ReturnSubject(x.node), raw, nats.RootCAs(CAFile(w.dir)), x.creds(x.reply.Door),
		nats.CustomInboxPrefix(events.InboxPrefix("door", x.node)))
}

// factsAbout are all facts of one kind about a node.
func factsAbout[T events.Fact](t testing.TB, w *whole, node string) []T {
	t.Helper()
	var out []T
	err := w.client.ReadLog(testContext(t), LogRequest{Node: node}, false, func(rec events.Record) error {
		fact, err := rec.Event.Fact()
		if f, ok := fact.(T); ok {
			out = append(out, f)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestJoin(t *testing.T) {
	w := startServer(t, t.TempDir())
	token := w.invite(t, "n1", map[string]string{"site": "ams"})
	key := newKey(t)
	q, err := events.SignJoin(key, token.Invite, strings.Repeat("ab", 16))
	if err != nil {
		t.Fatal(err)
	}
	first, err := knock(t, token, q)
	if err != nil || first.Node != "n1" || first.Invite != token.Invite || first.Seconds != int64(linkLife/time.Second) || first.Pins.Validate() != nil {
		t.Fatalf("the answer is %+v, %v", first, err)
	}
	for what, want := range map[string]struct {
		token   string
		expires bool
	}{"link": {first.Link, true}, "door": {first.Door, false}} {
		c, err := jwt.DecodeUserClaims(want.token)
		if err != nil || c.Subject != q.PublicKey || c.Name != "n1" || (c.Expires != 0) != want.expires {
			t.Errorf("%s: the JWT is %+v, %v", what, c, err)
		}
	}
	// The answer was lost: the same key is answered again, and is enrolled once.
	again, err := knock(t, token, q)
	if err != nil || again.Link == "" || again.Door == "" || again.Pins == nil {
		t.Errorf("asked again, the answer is %+v, %v", again, err)
	}
	enrolled := factsAbout[*events.NodeEnrolled](t, w, "n1")
	if len(enrolled) != 1 || enrolled[0].PublicKey != q.PublicKey || enrolled[0].Invite != token.Invite ||
		enrolled[0].MachineID != q.MachineID || enrolled[0].Labels["site"] != "ams" {
		t.Errorf("the log has %+v", enrolled)
	}
	w.once(t, &events.NodeJoinRefused{}, 0)
}

// TestJoinRefused: who is not let in is told why, and it is recorded.
func TestJoinRefused(t *testing.T) {
	w := startServer(t, t.TempDir())
	taken := w.joined(t, "taken", nil)
	revoked := w.joined(t, "shut", nil)
	if _, err := w.client.RevokeNode(testContext(t), RevokeRequest{Node: "shut"}); err != nil {
		t.Fatal(err)
	}
	itself := newKey(t)
	for _, tt := range []struct {
		name string
		// before happens between the token and the request.
		before func(node string, token *events.Token)
		ask    func(token events.Token) any
		want   string
	}{
		{"used", func(_ string, token *events.Token) {
			if r, err := knock(t, *token, signed(t, newKey(t), token.Invite)); err != nil || r.Link == "" {
				t.Fatal(r, err)
			}
		}, nil, "was used already"},
		{"expired", func(node string, token *events.Token) {
			*token = w.expired(t, node)
		}, nil, "has expired at"},
		{"replaced", func(node string, _ *events.Token) { w.invite(t, node, nil) }, nil, "a newer token was issued"},
		{"revoked", func(node string, _ *events.Token) {
			if _, err := w.client.RevokeNode(testContext(t), RevokeRequest{Node: node}); err != nil {
				t.Fatal(err)
			}
		}, nil, "the node was revoked after"},
		{"decommissioned", func(node string, token *events.Token) {
			w.joined(t, node, nil)
			*token = w.invite(t, node, nil)
			if _, err := w.client.Decommission(testContext(t), DecommissionRequest{Node: node}); err != nil {
				t.Fatal(err)
			}
		}, nil, "decommissioned after"},
		{"another invite's signature", nil, func(token events.Token) any {
			return signed(t, newKey(t), "another1nv1te")
		}, "the signature is not by the key"},
		{"another key's signature", nil, func(token events.Token) any {
			q := signed(t, newKey(t), token.Invite)
			q.PublicKey = signed(t, newKey(t), token.Invite).PublicKey
			return q
		}, "the signature is not by the key"},
		{"signature for another machine", nil, func(token events.Token) any {
			q := signed(t, newKey(t), token.Invite)
			q.MachineID = strings.Repeat("0", 32)
			return q
		}, "the signature is not by the key"},
		{"an account's key", nil, func(token events.Token) any {
			key, err := nkeys.CreateAccount()
			if err != nil {
				t.Fatal(err)
			}
			return signed(t, key, token.Invite)
		}, "no user's nkey"},
		{"a key in use", nil, func(token events.Token) any { return signed(t, taken.key, token.Invite) }, "the machine's key was used before"},
		{"a revoked key", nil, func(token events.Token) any { return signed(t, revoked.key, token.Invite) }, "the machine's key was used before"},
		{"used by itself, and revoked since", func(node string, token *events.Token) {
			if r, err := knock(t, *token, signed(t, itself, token.Invite)); err != nil || r.Link == "" {
				t.Fatal(r, err)
			}
			if _, err := w.client.RevokeNode(testContext(t), RevokeRequest{Node: node}); err != nil {
				t.Fatal(err)
			}
		}, func(token events.Token) any { return signed(t, itself, token.Invite) }, "was used already"},
		{"a field too many", nil, func(token events.Token) any { return `{"public_key":"x","name":"other"}` }, `unknown field "name"`},
		{"two requests", nil, func(token events.Token) any { return `{}{}` }, "behind its end"},
		{"garbage", nil, func(token events.Token) any { return "\x00\xff" }, "does not read"},
		{"nothing", nil, func(token events.Token) any { return "" }, "does not read"},
		{"a machine id that is none", nil, func(token events.Token) any {
			q, err := events.SignJoin(newKey(t), token.Invite, "x\ny")
			if err != nil {
				t.Fatal(err)
			}
			return q
		}, "machine id is not"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			node := "n-" + strings.NewReplacer(" ", "-", ",", "", "'", "").Replace(tt.name)
			token := w.invite(t, node, nil)
			if tt.before != nil {
				tt.before(node, &token)
			}
			before := len(factsAbout[*events.NodeEnrolled](t, w, node))
			var q any = signed(t, newKey(t), token.Invite)
			if tt.ask != nil {
				q = tt.ask(token)
			}
			for range 2 { // recorded once: the second is within the minute
				r, err := knock(t, token, q)
				if err != nil || !strings.Contains(r.Refused, tt.want) || r.Link+r.Door != "" || r.Pins != nil {
					t.Errorf("got %+v, %v; want a refusal with %q", r, err, tt.want)
				}
			}
			facts := factsAbout[*events.NodeJoinRefused](t, w, node)
			if len(facts) != 1 || facts[0].Invite != token.Invite || !strings.Contains(facts[0].Reason, tt.want) {
				t.Errorf("recorded is %+v", facts)
			}
			if after := len(factsAbout[*events.NodeEnrolled](t, w, node)); after != before {
				t.Errorf("%d machines joined, %d before", after, before)
			}
		})
	}
}

// expired gives a token whose time is over.
func (w *whole) expired(t testing.TB, node string) events.Token {
	t.Helper()
	inv, err := w.api.inviteOne(testContext(t), caller{actor: "test"}, node, nil, -time.Minute, w.api.place())
	if err != nil {
		t.Fatal(err)
	}
	token, err := events.ParseToken(inv.Token)
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// TestUnknownInvite: the mesh was put back to before the token was issued.
func TestUnknownInvite(t *testing.T) {
	w := startServer(t, t.TempDir())
	token := w.invite(t, "n1", nil)
	seed, err := nkeys.FromSeed([]byte(token.Seed))
	if err != nil {
		t.Fatal(err)
	}
	pub, err := seed.PublicKey()
	if err != nil {
		t.Fatal(err)
	}
	token.Invite = "unknown0000"
	if token.JWT, err = w.api.identity.InviteJWT(token.Invite, pub, time.Hour); err != nil {
		t.Fatal(err)
	}
	r, err := knock(t, token, signed(t, newKey(t), token.Invite))
	if err != nil || !strings.Contains(r.Refused, "knows no such token") {
		t.Errorf("got %+v, %v", r, err)
	}
}

// TestOneOfTwo: two machines with one token at the same moment.
func TestOneOfTwo(t *testing.T) {
	w := startServer(t, t.TempDir())
	token := w.invite(t, "n1", nil)
	const machines = 6
	replies := make(chan events.DoorReply, machines)
	for range machines {
		q := signed(t, newKey(t), token.Invite)
		go func() {
			r, err := knock(t, token, q)
			if err != nil {
				r.Error = err.Error()
			}
			replies <- r
		}()
	}
	in := 0
	for range machines {
		switch r := <-replies; {
		case r.Link != "":
			in++
		case !strings.Contains(r.Refused, "was used already"):
			t.Errorf("got %+v", r)
		}
	}
	if in != 1 || len(factsAbout[*events.NodeEnrolled](t, w, "n1")) != 1 {
		t.Errorf("%d machines are in", in)
	}
}

// TestReimaged: a machine that joins again under its name is one node, and the
// key from before is shut out.
func TestReimaged(t *testing.T) {
	w := startServer(t, t.TempDir())
	old := w.joined(t, "n1", map[string]string{"site": "ams"})
	conn, gone := w.linked(t, old)
	fresh := w.joined(t, "n1", nil)
	if g := receive(t, gone); !errors.Is(g.why, nats.ErrAuthRevoked) || !conn.IsClosed() {
		t.Errorf("the former machine's connection ended with %v", g.why)
	}
	if _, err := w.link(old); !errors.Is(err, nats.ErrAuthorization) {
		t.Errorf("the former key connects: %v", err)
	}
	r, err := w.comesBack(t, old)
	if err != nil || !strings.Contains(r.Refused, "another machine joined as n1") {
		t.Errorf("the former key at the door: %+v, %v", r, err)
	}
	nc, err := w.link(fresh)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	f, err := w.client.Fleet(testContext(t))
	if err != nil || len(f.Nodes) != 1 || f.Nodes[0].Labels["site"] != "ams" || f.Nodes[0].Revoked {
		t.Errorf("the fleet is %+v, %v", f.Nodes, err)
	}
}

func receive[T any](t testing.TB, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(patience):
		t.Fatal("nothing came")
		panic("unreachable")
	}
}

// TestANodeIsShutOut: a revoked node is disconnected at once and refused later, also by
// a server that has just started; a new token lets it in again.
func TestANodeIsShutOut(t *testing.T) {
	for _, tt := range []struct {
		name   string
		revoke func(ctx context.Context, c *Client) error
		want   string
	}{
		{"revoked", func(ctx context.Context, c *Client) error {
			_, err := c.RevokeNode(ctx, RevokeRequest{Node: "n1", Reason: "stolen"})
			return err
		}, "the node was revoked"},
		{"decommissioned", func(ctx context.Context, c *Client) error {
			_, err := c.Decommission(ctx, DecommissionRequest{Node: "n1"})
			return err
		}, "the node was decommissioned"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			w := startServer(t, dir)
			x, bystander := w.joined(t, "n1", nil), w.joined(t, "n2", nil)
			_, gone := w.linked(t, x)
			other, err := w.link(bystander, nats.NoReconnect())
			if err != nil {
				t.Fatal(err)
			}
			defer other.Close()
			begun := time.Now()
			if err := tt.revoke(testContext(t), w.client); err != nil {
				t.Fatal(err)
			}
			if nc, err := w.link(x); !errors.Is(err, nats.ErrAuthorization) {
				t.Errorf("right after the answer the link gives %v, %v", nc, err)
			}
			if g := receive(t, gone); g.at.Sub(begun) > time.Second || !errors.Is(g.why, nats.ErrAuthRevoked) {
				t.Errorf("it took %s to disconnect the node, with %v", g.at.Sub(begun), g.why)
			}
			if err := other.Flush(); err != nil {
				t.Errorf("another node suffered: %v", err)
			}
			refusedEverywhere := func(when string) {
				t.Helper()
				if nc, err := w.link(x); !errors.Is(err, nats.ErrAuthorization) {
					t.Errorf("%s: the link gives %v, %v", when, nc, err)
				}
				if r, err := w.comesBack(t, x); !errors.Is(err, nats.ErrAuthorization) {
					t.Errorf("%s: the door gives %+v, %v", when, r, err)
				}
			}
			// The door says why once, and records it; then the broker shuts it.
			r, err := w.comesBack(t, x)
			if err != nil || !strings.Contains(r.Refused, tt.want) || r.Link != "" {
				t.Errorf("at the door: %+v, %v", r, err)
			}
			w.until(t, "the refusal is recorded and the door shut", func() (bool, string) {
				facts := factsAbout[*events.NodeJoinRefused](t, w, "n1")
				_, err := w.comesBack(t, x)
				return len(facts) == 1 && facts[0].PublicKey == x.public() && errors.Is(err, nats.ErrAuthorization), fmt.Sprint(facts, err)
			})
			refusedEverywhere("later")
			w.stop(t)
			w = startServer(t, dir)
			refusedEverywhere("after a restart")

			back := w.joined(t, "n1", nil)
			nc, err := w.link(back)
			if err != nil {
				t.Fatal("it does not get in with a new token:", err)
			}
			nc.Close()
			refusedEverywhere("after the node is back with another key")
		})
	}
}

// TestRevokedFromTheFirstMoment: the broker refuses before the log is read.
func TestRevokedFromTheFirstMoment(t *testing.T) {
	dir := t.TempDir()
	w := startServer(t, dir)
	x := w.joined(t, "n1", nil)
	if _, err := w.client.RevokeNode(testContext(t), RevokeRequest{Node: "n1"}); err != nil {
		t.Fatal(err)
	}
	w.stop(t)
	m := startBroker(t, dir, loadRevoked(dir, testLog(t)))
	_, err := nats.Connect(m.broker.ClientURL(), nats.RootCAs(CAFile(dir)), x.creds(x.reply.Link))
	if !errors.Is(err, nats.ErrAuthorization) {
		t.Errorf("a broker with nothing but its data directory lets a revoked key in: %v", err)
	}
}

// TestRenewAndReturn: a linked node gets its next credential, and one whose
// credential has expired gets one at the door.
func TestRenewAndReturn(t *testing.T) {
	dir := t.TempDir()
	w := startServer(t, dir)
	x := w.joined(t, "n1", nil)
	nc, err := w.link(x)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	msg, err := nc.RequestWithContext(testContext(t), events.RenewSubject("n1"), nil)
	if err != nil {
		t.Fatal(err)
	}
	renewed, err := events.DecodeDoorReply(msg.Data)
	if err != nil || renewed.Node != "n1" || renewed.Door != "" || renewed.Pins != nil {
		t.Fatalf("renewed: %+v, %v", renewed, err)
	}
	returned, err := w.comesBack(t, x)
	if err != nil {
		t.Fatal(err)
	}
	for what, token := range map[string]string{"renewed": renewed.Link, "returned": returned.Link} {
		c, err := jwt.DecodeUserClaims(token)
		if err != nil || c.Subject != x.public() || c.Expires-c.IssuedAt != int64(linkLife/time.Second) {
			t.Errorf("%s: %+v, %v", what, c, err)
		}
		again, err := w.link(machine{node: "n1", key: x.key, reply: events.DoorReply{Link: token}})
		if err != nil {
			t.Errorf("%s: %v", what, err)
			continue
		}
		again.Close()
	}
}

// TestTheDoorIsForItsOwnOnly: a token's or a node's key at the door opens
// nothing else there.
func TestTheDoorIsForItsOwnOnly(t *testing.T) {
	w := startServer(t, t.TempDir())
	x := w.joined(t, "n1", nil)
	w.joined(t, "n2", nil)
	token := w.invite(t, "n3", nil)
	for _, tt := range []struct {
		name, subject, inbox string
		creds                nats.Option
	}{
		{"invite returns", events.ReturnSubject("n2"), events.InboxPrefix("join", token.Invite), nats.UserJWTAndSeed(token.JWT, token.Seed)},
		{"invite joins for another", events.JoinSubject("another1nv1te"), events.InboxPrefix("join", token.Invite), nats.UserJWTAndSeed(token.JWT, token.Seed)},
		{"invite renews", events.RenewSubject("n2"), events.InboxPrefix("join", token.Invite), nats.UserJWTAndSeed(token.JWT, token.Seed)},
		{"node returns for another", events.ReturnSubject("n2"), events.InboxPrefix("door", "n1"), x.creds(x.reply.Door)},
		{"node joins", events.JoinSubject(token.Invite), events.InboxPrefix("door", "n1"), x.creds(x.reply.Door)},
		{"link renews for another", events.RenewSubject("n2"), events.InboxPrefix("node", "n1"), x.creds(x.reply.Link)},
		{"link returns", events.ReturnSubject("n1"), events.InboxPrefix("node", "n1"), x.creds(x.reply.Link)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			denied := make(chan error, 8)
			nc, err := nats.Connect(w.URL(), nats.RootCAs(CAFile(w.dir)), tt.creds, nats.CustomInboxPrefix(tt.inbox), nats.NoReconnect(),
				nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { denied <- err }))
			if err != nil {
				t.Fatal(err)
			}
			defer nc.Close()
			if err := errors.Join(nc.PublishRequest(tt.subject, tt.inbox+".x", []byte("{}")), nc.Flush()); err != nil {
				t.Fatal(err)
			}
			if err := receive(t, denied); !errors.Is(err, nats.ErrPermissionViolation) {
				t.Errorf("got %v", err)
			}
		})
	}
}
