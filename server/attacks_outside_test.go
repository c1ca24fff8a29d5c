package server

import (
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"

	"noxmesh/events"
)

// fromOutside: strangers, stolen and forged credentials, and who sits in between.
func (a *arena) fromOutside(t *testing.T) []attack {
	id := a.api.identity
	pub, err := id.publicKeys()
	if err != nil {
		t.Fatal(err)
	}
	foreign, err := LoadOrCreateIdentity(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	silent := a.plain(t)
	if err := silent.secure(t, a.tls(t)); err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	gone, sold := a.join(t, "stolen"), a.join(t, "sold")

	login := func(who, what string, by hurdle, auth func(t *testing.T) nats.Option) attack {
		return attack{who, what, by, func(t *testing.T) error {
			nc, err := nats.Connect(a.URL(), nats.RootCAs(CAFile(a.dir)), nats.NoReconnect(), auth(t))
			if err == nil {
				nc.Close()
			}
			return err
		}}
	}
	// bearer connects with a JWT as it is made for a fresh key, and that key.
	bearer := func(what string, sign func(key string) (string, error)) attack {
		return login("stranger", "comes with "+what, noEntry, func(t *testing.T) nats.Option {
			h := newHolder(t)
			token, err := sign(h.pub)
			if err != nil {
				t.Fatal(err)
			}
			return nats.UserJWT(func() (string, error) { return token, nil }, h.key.Sign)
		})
	}
	claims := func(key, account string, by nkeys.KeyPair, change func(c *jwt.UserClaims)) (string, error) {
		c := jwt.NewUserClaims(key)
		c.Name, c.IssuerAccount = "self", account
		c.SetScoped(true)
		if change != nil {
			change(c)
		}
		return c.Encode(by)
	}
	nodes := pub[id.nodes]
	none := func(*testing.T) nats.Option { return nats.Name("x") }
	rows := []attack{
		login("stranger", "comes with nothing", noEntry, none),
		login("stranger", "comes with a password", noEntry, func(*testing.T) nats.Option { return nats.UserInfo("operator", "operator") }),
		login("stranger", "comes with a token", noEntry, func(*testing.T) nats.Option { return nats.Token("x") }),
		login("stranger", "comes with a key that nobody signed", noEntry, func(t *testing.T) nats.Option { h := newHolder(t); return nats.Nkey(h.pub, h.key.Sign) }),
		login("stranger", "comes with a stolen JWT and no key", noEntry, func(t *testing.T) nats.Option {
			return nats.UserJWT(func() (string, error) { return a.me.reply.Link, nil }, newHolder(t).key.Sign)
		}),
		login("stranger", "comes with a stolen JWT and a signature from another connection", noEntry, func(t *testing.T) nats.Option {
			return nats.UserJWT(func() (string, error) { return a.me.reply.Link, nil }, func([]byte) ([]byte, error) { return a.me.key.Sign([]byte("an older nonce")) })
		}),
		login("stranger", "comes with a stolen JWT that was changed", noEntry, func(t *testing.T) nats.Option {
			parts := strings.Split(a.me.reply.Link, ".")
			raw, err := base64.RawURLEncoding.DecodeString(parts[1])
			if err != nil {
				t.Fatal(err)
			}
			parts[1] = base64.RawURLEncoding.EncodeToString([]byte(strings.Replace(string(raw), `"name":"self"`, `"name":"*"`, 1)))
			return nats.UserJWT(func() (string, error) { return strings.Join(parts, "."), nil }, a.me.key.Sign)
		}),
		login("stranger", "comes with a JWT of algorithm none", noEntry, func(t *testing.T) nats.Option {
			parts := strings.Split(a.me.reply.Link, ".")
			token := base64.RawURLEncoding.EncodeToString([]byte(`{"typ":"JWT","alg":"none"}`)) + "." + parts[1] + "."
			return nats.UserJWT(func() (string, error) { return token, nil }, a.me.key.Sign)
		}),
		bearer("a JWT that has expired", func(k string) (string, error) {
			return scopedJWT("self", k, id.nodes, id.roleNode, time.Now().Add(-time.Minute))
		}),
		bearer("a JWT that is good from tomorrow on", func(k string) (string, error) {
			return claims(k, nodes, id.roleNode, func(c *jwt.UserClaims) { c.NotBefore = time.Now().Add(24 * time.Hour).Unix() })
		}),
		bearer("a node's JWT of another mesh", func(k string) (string, error) { return foreign.NodeJWT("self", k, time.Hour) }),
		bearer("an operator's JWT of another mesh", func(k string) (string, error) {
			return scopedJWT("operator", k, foreign.people, foreign.roleOperator, time.Time{})
		}),
		bearer("a JWT for this mesh's nodes, signed by another mesh", func(k string) (string, error) { return claims(k, nodes, foreign.roleNode, nil) }),
		bearer("a JWT for this mesh's nodes, signed by the role of viewers", func(k string) (string, error) { return claims(k, nodes, id.roleViewer, nil) }),
		bearer("a JWT for the mesh's own account, signed by the role of nodes", func(k string) (string, error) { return claims(k, pub[id.mesh], id.roleNode, nil) }),
		bearer("a JWT for the system's account, signed by the role of operators", func(k string) (string, error) { return claims(k, pub[id.system], id.roleOperator, nil) }),
		bearer("a JWT of the role of nodes that gives itself more rights", func(k string) (string, error) {
			return claims(k, nodes, id.roleNode, func(c *jwt.UserClaims) { c.SetScoped(false); c.Permissions.Pub.Allow.Add(">") })
		}),
		bearer("a JWT signed by an account that nobody knows", func(k string) (string, error) {
			key, err := nkeys.CreateAccount()
			if err != nil {
				return "", err
			}
			return claims(k, nodes, key, nil)
		}),
		login("stranger", "comes over the network as the mesh itself, with its account's key", noEntry, func(t *testing.T) nats.Option {
			auth, err := id.service()
			if err != nil {
				t.Fatal(err)
			}
			return auth
		}),
		login("revoked node", "connects with its JWT", noEntry, func(t *testing.T) nats.Option {
			a.expect(&events.NodeRevoked{}, 1)
			if _, err := a.client.RevokeNode(testContext(t), RevokeRequest{Node: "stolen"}); err != nil {
				t.Fatal(err)
			}
			return gone.creds(gone.reply.Link)
		}),
		login("decommissioned node", "connects with its JWT", noEntry, func(t *testing.T) nats.Option {
			a.expect(&events.NodeDecommissioned{}, 1)
			if _, err := a.client.Decommission(testContext(t), DecommissionRequest{Node: "sold"}); err != nil {
				t.Fatal(err)
			}
			return sold.creds(sold.reply.Link)
		}),
	}
	for _, x := range []struct {
		who string
		machine
	}{{"revoked node", gone}, {"decommissioned node", sold}} {
		rows = append(rows, attack{x.who, "comes back at the door", hurdle{"the door: told why, once", "the node was (revoked|decommissioned)"}, func(t *testing.T) error {
			r, err := a.comesBack(t, x.machine)
			if err == nil && r.Link+r.Door == "" && r.Refused != "" {
				return errors.New(r.Refused)
			}
			return err
		}}, attack{x.who, "comes back at the door again", noEntry, func(t *testing.T) error {
			var err error
			a.until(t, "the door is shut", func() (bool, string) {
				_, err = a.comesBack(t, x.machine)
				return errors.Is(err, nats.ErrAuthorization), fmt.Sprint(err)
			})
			return err
		}}, attack{x.who, "has a JWT signed anew", noEntry, func(t *testing.T) error {
			token, err := id.NodeJWT(x.node, x.public(), time.Hour)
			if err != nil {
				t.Fatal(err)
			}
			nc, err := nats.Connect(a.URL(), nats.RootCAs(CAFile(a.dir)), nats.NoReconnect(), x.creds(token))
			if err == nil {
				nc.Close()
			}
			return err
		}})
	}
	return append(append(rows, a.onTheWire(t)...), attack{"stranger", "connects and says nothing", hurdle{"the broker: closed within seconds", "Authentication Timeout|closed"}, func(t *testing.T) error {
		err := silent.ends("")
		t.Logf("closed %s after the handshake: %v", time.Since(begun), err)
		return err
	}})
}
