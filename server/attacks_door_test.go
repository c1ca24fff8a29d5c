package server

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"

	"noxmesh/events"
)

// atTheDoor: who holds a token or a node's old key tries more than to come in.
func (a *arena) atTheDoor(t *testing.T) (rows []attack) {
	token := a.token(t, "newcomer")
	invite := a.enter(t, nats.UserJWTAndSeed(token.JWT, token.Seed), events.InboxPrefix("join", token.Invite))
	back := a.enter(t, a.me.creds(a.me.reply.Door), events.InboxPrefix("door", "self"))
	for who, u := range map[string]*user{"invite": invite, "returning node": back} {
		inbox := map[string]string{"invite": events.InboxPrefix("join", token.Invite), "returning node": events.InboxPrefix("door", "self")}[who]
		rows = append(rows, publishes(who, u, inbox, subjects("{}", `mesh.join.other mesh.join.* mesh.return.other mesh.renew.self mesh.renew.other
			mesh.heartbeat.self mesh.heartbeat.newcomer mesh.report.self.confirmed mesh.event.node.self mesh.event.node.newcomer mesh.api.self.fleet
			mesh.api.operator.fleet mesh.declaration.self mesh.declared.self $JS.API.INFO $JS.API.STREAM.INFO.EVENTS
			$JS.API.DIRECT.GET.DECLARATIONS.mesh.declared.self $JS.API.DIRECT.GET.OBJ_packages.$O.packages.M.x $KV.fleet.x $O.packages.M.x
			$SYS.REQ.SERVER.PING $SYS.REQ.USER.INFO _INBOX.door.self.x _INBOX.join.other.x _INBOX.x `+
			map[string]string{"invite": "mesh.return.newcomer", "returning node": "mesh.join.self"}[who]))...)
		rows = append(rows, subscribes(who, u, strings.Fields(`> mesh.> mesh.join.> mesh.return.> mesh.declaration.self mesh.event.> _INBOX.>
			_INBOX.join.> _INBOX.door.> _INBOX.door.other.> _INBOX.node.self.> _INBOX.user.operator.> $SYS.>`)...)...)
	}
	slices.SortStableFunc(rows, func(x, y attack) int { return strings.Compare(x.who, y.who) })
	words := hurdle{"the door's decoder", "does not read|behind its end|unknown field|no user's nkey|not by the key|machine id"}
	for _, c := range append([]hostileCase{
		{"a field too many", `{"public_key":"x","node":"other"}`},
		{"a public key of wildcards", `{"public_key":"mesh.>","signature":"x"}`},
		{"a public key of 3,000 bytes", `{"public_key":"` + strings.Repeat("U", 3000) + `"}`},
	}, hostile...) {
		payload := c.of("{}")
		payload = payload[:min(len(payload), events.MaxJoin)]
		rows = append(rows, attack{"invite", "joins with " + c.what, words, func(t *testing.T) error {
			return a.door(t, invite, events.JoinSubject(token.Invite), payload)
		}}, attack{"returning node", "comes back with " + c.what, words, func(t *testing.T) error {
			return a.door(t, back, events.ReturnSubject("self"), payload)
		}})
	}
	no := func(words string) hurdle { return hurdle{"the door: " + words, words} }
	notThisMesh := hurdle{"the machine: it trusts the CA in its token only", "failed to verify certificate|unknown authority"}
	knocks := func(what string, by hurdle, prepare func(t *testing.T) (events.Token, any)) attack {
		return attack{"invite", what, by, func(t *testing.T) error {
			token, q := prepare(t)
			r, err := knock(t, token, q)
			if err != nil {
				return err
			}
			if r.Link+r.Door != "" || r.Refused == "" {
				return nil
			}
			return errors.New(r.Refused)
		}}
	}
	foreign, err := LoadOrCreateIdentity(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	elsewhere := func(t *testing.T, id *Identity, invite string) events.Token {
		key := newKey(t)
		seed, err := key.Seed()
		if err != nil {
			t.Fatal(err)
		}
		tok := events.Token{URL: a.URL(), CA: a.broker.CA(), Invite: invite, Seed: string(seed)}
		if tok.JWT, err = id.InviteJWT(invite, machine{key: key}.public(), time.Hour); err != nil {
			t.Fatal(err)
		}
		return tok
	}
	return append(rows,
		knocks("joins with a token whose time is over", no("has expired at"), func(t *testing.T) (events.Token, any) {
			a.expect(&events.NodeInvited{}, 1)
			tok := a.expired(t, "late")
			return tok, signed(t, newKey(t), tok.Invite)
		}),
		knocks("joins with a token that was used", no("was used already"), func(t *testing.T) (events.Token, any) {
			tok := a.token(t, "used")
			a.expect(&events.NodeEnrolled{}, 1)
			if r, err := knock(t, tok, signed(t, newKey(t), tok.Invite)); err != nil || r.Link == "" {
				t.Fatal(r, err)
			}
			return tok, signed(t, newKey(t), tok.Invite)
		}),
		knocks("joins with a token that was replaced", no("a newer token was issued"), func(t *testing.T) (events.Token, any) {
			tok := a.token(t, "replaced")
			a.token(t, "replaced")
			return tok, signed(t, newKey(t), tok.Invite)
		}),
		knocks("joins with a token that this mesh never issued, signed by its key", no("knows no such token"), func(t *testing.T) (events.Token, any) {
			tok := elsewhere(t, a.api.identity, "unknown0000")
			return tok, signed(t, newKey(t), tok.Invite)
		}),
		knocks("joins with another mesh's token here", noEntry, func(t *testing.T) (events.Token, any) {
			tok := elsewhere(t, foreign, "foreign0000")
			return tok, signed(t, newKey(t), tok.Invite)
		}),
		knocks("joins with a token that names another mesh's CA", notThisMesh, func(t *testing.T) (events.Token, any) {
			tok := token
			tok.CA = strings.Repeat("0", 64)
			return tok, signed(t, newKey(t), tok.Invite)
		}),
		knocks("joins with another machine's signature", no("the signature is not by the key"), func(t *testing.T) (events.Token, any) {
			q := signed(t, newKey(t), token.Invite)
			q.PublicKey = machine{key: newKey(t)}.public()
			return token, q
		}),
		knocks("joins with a signature for another invite", no("the signature is not by the key"), func(t *testing.T) (events.Token, any) {
			return token, signed(t, newKey(t), "another0000")
		}),
		knocks("joins with another node's key", no("key was used before"), func(t *testing.T) (events.Token, any) {
			return token, signed(t, a.them.key, token.Invite)
		}),
		knocks("joins with an account's key", no("no user's nkey"), func(t *testing.T) (events.Token, any) {
			key, err := nkeys.CreateAccount()
			if err != nil {
				t.Fatal(err)
			}
			return token, signed(t, key, token.Invite)
		}),
		attack{"invite", "asks 500 times at once", hurdle{"the door: a refusal is recorded once in a minute; others come in meanwhile", "^bounded$"}, func(t *testing.T) error {
			answers, err := invite.SubscribeSync(events.InboxPrefix("join", token.Invite) + ".many")
			if err != nil {
				t.Fatal(err)
			}
			before := len(factsAbout[*events.NodeJoinRefused](t, a.whole, "newcomer"))
			begun := time.Now()
			for range 500 {
				if err := invite.PublishRequest(events.JoinSubject(token.Invite), answers.Subject, []byte("{}")); err != nil {
					t.Fatal(err)
				}
			}
			for range 500 {
				msg, err := answers.NextMsgWithContext(testContext(t))
				if err != nil {
					t.Fatal(err)
				}
				if r, err := events.DecodeDoorReply(msg.Data); err != nil || r.Link+r.Door != "" || r.Refused+r.Error == "" {
					return nil
				}
			}
			if n := len(factsAbout[*events.NodeJoinRefused](t, a.whole, "newcomer")) - before; n > 1+int(time.Since(begun)/refusalPause) {
				t.Logf("%d refusals were recorded", n)
				return nil
			}
			a.join(t, "meanwhile")
			return errors.New("bounded")
		}},
		attack{"invite", "fills the server's log by asking 300 times", fewLines, func(t *testing.T) error {
			return a.quiet(t, func() {
				for range 300 {
					if a.door(t, invite, events.JoinSubject(token.Invite), []byte("{}")) == nil {
						t.Fatal("it was not refused")
					}
				}
			})
		}},
		attack{"returning node", "asks for another's key", hurdle{"the door: the key on record only", "another machine joined as"}, func(t *testing.T) error {
			return a.door(t, back, events.ReturnSubject("self"), []byte(`{"public_key":"`+a.them.public()+`"}`))
		}})
}

// door asks at the door and gives the refusal.
func (a *arena) door(t *testing.T, u *user, subject string, payload []byte) error {
	t.Helper()
	msg, err := u.RequestWithContext(testContext(t), subject, payload)
	if err != nil {
		t.Fatal(err)
	}
	r, err := events.DecodeDoorReply(msg.Data)
	if err != nil {
		t.Fatal(err)
	}
	if r.Link+r.Door != "" || r.Refused == "" {
		t.Logf("the answer is %+v", r)
		return nil
	}
	return errors.New(r.Refused)
}
