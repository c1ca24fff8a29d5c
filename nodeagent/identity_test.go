package nodeagent

import (
	"crypto/x509"
	"strings"
	"testing"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nkeys"

	"noxmesh/events"
)

// TestAnAnswerThatIsNotForThisMachine: what the mesh answers is kept only if it
// is for this token, this key and one node.
func TestAnAnswerThatIsNotForThisMachine(t *testing.T) {
	user := func() nkeys.KeyPair {
		key, err := nkeys.CreateUser()
		if err != nil {
			t.Fatal(err)
		}
		return key
	}
	account, err := nkeys.CreateAccount()
	if err != nil {
		t.Fatal(err)
	}
	sign := func(key nkeys.KeyPair, name string) string {
		pub, err := key.PublicKey()
		if err != nil {
			t.Fatal(err)
		}
		claims := jwt.NewUserClaims(pub)
		claims.Name = name
		text, err := claims.Encode(account)
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	pin := func(role string) string {
		key, _, err := events.NewKey(role)
		if err != nil {
			t.Fatal(err)
		}
		return key.Public
	}
	key := user()
	good := events.DoorReply{Invite: "1nv1te00", Node: "n1", Link: sign(key, "n1"), Door: sign(key, "n1"),
		Pins: &events.Pins{Delivery: pin(events.KeyDelivery), Release: pin(events.KeyRelease)}}
	for _, c := range []struct {
		name, want string
		change     func(r *events.DoorReply, ca **x509.Certificate)
	}{
		{"it is", "", func(*events.DoorReply, **x509.Certificate) {}},
		{"another token's", "not for this token", func(r *events.DoorReply, _ **x509.Certificate) { r.Invite = "another0" }},
		{"no CA", "not for this token", func(_ *events.DoorReply, ca **x509.Certificate) { *ca = nil }},
		{"no pins", "no keys to trust", func(r *events.DoorReply, _ **x509.Certificate) { r.Pins = nil }},
		{"pins of the wrong roles", "key", func(r *events.DoorReply, _ **x509.Certificate) {
			r.Pins = &events.Pins{Delivery: r.Pins.Release, Release: r.Pins.Delivery}
		}},
		{"a link for another key", "another machine's key", func(r *events.DoorReply, _ **x509.Certificate) { r.Link = sign(user(), "n1") }},
		{"a link for another node", "another machine's key", func(r *events.DoorReply, _ **x509.Certificate) { r.Link = sign(key, "n2") }},
		{"a door for another key", "another machine's key", func(r *events.DoorReply, _ **x509.Certificate) { r.Door = sign(user(), "n1") }},
		{"no door", "damaged", func(r *events.DoorReply, _ **x509.Certificate) { r.Door = "" }},
		{"a name that is none", "no node name", func(r *events.DoorReply, _ **x509.Certificate) {
			r.Node, r.Link, r.Door = "*", sign(key, "*"), sign(key, "*")
		}},
	} {
		r, ca := good, &x509.Certificate{Raw: []byte("x")}
		c.change(&r, &ca)
		files, err := identityFiles(t.TempDir(), events.Token{URL: "tls://m:1", Invite: "1nv1te00"}, r, ca, key)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", c.name, err, c.want)
		}
		if err == nil && len(files) != len(joinFiles) {
			t.Errorf("%s: %d files", c.name, len(files))
		}
	}
}
