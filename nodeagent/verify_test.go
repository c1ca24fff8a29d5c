package nodeagent

import (
	"bytes"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"golang.org/x/mod/sumdb/note"
	"pgregory.net/rapid"

	"noxmesh/events"
)

// keyOf makes the same key for the same seed, so that what a fuzzer finds in
// one process holds in another.
func keyOf(role string, seed byte) *events.SigningKey {
	name := "nox-mesh-" + role
	secret := bytes.Repeat([]byte{seed}, ed25519.SeedSize)
	public, err := note.NewEd25519VerifierKey(name, ed25519.NewKeyFromSeed(secret).Public().(ed25519.PublicKey))
	if err != nil {
		panic(err)
	}
	hash := strings.Split(public, "+")[1]
	key, err := events.ParseSigningKey(role, fmt.Appendf(nil, "PRIVATE+KEY+%s+%s+%s", name, hash, base64.StdEncoding.EncodeToString(append([]byte{1}, secret...))))
	if err != nil {
		panic(err)
	}
	return key
}

var (
	delivery1, delivery2, delivery3 = keyOf(events.KeyDelivery, 1), keyOf(events.KeyDelivery, 2), keyOf(events.KeyDelivery, 3)
	release1, release2              = keyOf(events.KeyRelease, 1), keyOf(events.KeyRelease, 2)
	thiefD, thiefR                  = keyOf(events.KeyDelivery, 66), keyOf(events.KeyRelease, 66)
)

func signedRelease(key *events.SigningKey, version string) events.Release {
	r := events.Release{Version: version, Architecture: "amd64", File: events.PackageFile(version, "amd64"), Size: 1000, SHA256: strings.Repeat("ab", 32)}
	if key != nil {
		r.Signature = mustSign(key, events.ReleaseText(r))
	}
	return r
}

func mustSign(key *events.SigningKey, text string) string {
	s, err := key.Sign(text)
	if err != nil {
		panic(err)
	}
	return s
}

func rotated(old, next *events.SigningKey) events.Rotation {
	r, err := events.NewRotation(old, next.Public)
	if err != nil {
		panic(err)
	}
	return r
}

func signedBy(key *events.SigningKey, d events.Declared) *events.Declared {
	text, err := events.DeclarationText(&d)
	if err != nil {
		panic(err)
	}
	d.Signature = mustSign(key, text)
	return &d
}

// order is a declaration of a host version with its fallback, and of a file.
func order(revision uint64, release, fallback *events.SigningKey) events.Declared {
	back := signedRelease(fallback, "1.0.0")
	return events.Declared{Node: "n1", Revision: revision, Resources: []events.Resource{
		events.ResourceFromSpec(events.ResourceFile, "/etc/motd", events.FileSpec{Mode: "0644", Content: "<hello> & \u2028 welcome, \u00e9\n"}),
		events.ResourceFromSpec(events.ResourceHost, events.HostPackage, events.HostSpec{Release: signedRelease(release, "1.1.0"), Fallback: &back}),
	}}
}

func freshTrust() trust {
	return trustIn(events.Pins{Delivery: delivery1.Public, Release: release1.Public}, "n1", trust{})
}

// onTheWire is a declaration as a node gets it.
func onTheWire(d *events.Declared) []byte {
	return events.New(d.Node, d, events.Origin{Source: "mesh", Actor: "stager"}, time.Now()).Encode()
}

// received reads it as a node does.
func received(raw []byte) (*events.Declared, error) {
	d, err := parseDeclaration(raw, "")
	return &d.Declared, err
}

func TestVerify(t *testing.T) {
	good := signedBy(delivery1, order(5, release1, release1))
	change := func(fn func(d *events.Declared)) *events.Declared {
		d := *good
		d.Resources = append([]events.Resource{}, good.Resources...)
		fn(&d)
		return &d
	}
	spec := func(d *events.Declared, fn func(*events.HostSpec)) {
		var s events.HostSpec
		if err := events.DecodeSpec(d.Resources[1], &s); err != nil {
			t.Fatal(err)
		}
		fn(&s)
		d.Resources[1] = events.ResourceFromSpec(events.ResourceHost, events.HostPackage, s)
	}
	resign := func(key *events.SigningKey, d *events.Declared) *events.Declared { return signedBy(key, *d) }
	after := func(d *events.Declared) trust {
		next, err := freshTrust().verify(d)
		if err != nil {
			t.Fatal(err)
		}
		return next
	}
	withRotations := func(key, rel *events.SigningKey, rs ...events.Rotation) *events.Declared {
		d := order(6, rel, rel)
		d.Rotations = rs
		return signedBy(key, d)
	}
	for _, c := range []struct {
		name string
		in   trust
		d    *events.Declared
		want string // in the refusal; empty: accepted
	}{
		{"good", freshTrust(), good, ""},
		{"the same again", after(good), good, ""},
		{"a later one", after(good), signedBy(delivery1, order(6, release1, release1)), ""},
		{"no resources", freshTrust(), signedBy(delivery1, events.Declared{Node: "n1", Revision: 1}), ""},

		{"unsigned", freshTrust(), change(func(d *events.Declared) { d.Signature = "" }), "not signed"},
		{"signed by a thief", freshTrust(), resign(thiefD, good), "another key"},
		{"signed by the release key", freshTrust(), change(func(d *events.Declared) {
			text, _ := events.DeclarationText(d)
			d.Signature = mustSign(release1, text)
		}), "another key"},
		{"signature of another text", freshTrust(), change(func(d *events.Declared) { d.Signature = mustSign(delivery1, "nox-mesh declaration v1\n") }), "does not belong"},
		{"signature of another declaration", freshTrust(), change(func(d *events.Declared) { d.Signature = signedBy(delivery1, order(4, release1, release1)).Signature }), "does not belong"},

		{"another node's", freshTrust(), resign(delivery1, change(func(d *events.Declared) { d.Node = "n2" })), `for node "n2"`},
		{"another node's, renamed", freshTrust(), func() *events.Declared {
			d := *resign(delivery1, change(func(d *events.Declared) { d.Node = "n2" }))
			d.Node = "n1"
			return &d
		}(), "does not belong"},
		{"another revision", freshTrust(), change(func(d *events.Declared) { d.Revision = 6 }), "does not belong"},
		{"no revision", freshTrust(), resign(delivery1, change(func(d *events.Declared) { d.Revision = 0 })), "no revision"},

		{"a resource changed", freshTrust(), change(func(d *events.Declared) {
			d.Resources[0] = events.ResourceFromSpec(events.ResourceFile, "/etc/motd", events.FileSpec{Mode: "0644", Content: "hi"})
		}), "does not belong"},
		{"a resource renamed", freshTrust(), change(func(d *events.Declared) { d.Resources[0].Name = "/etc/shadow" }), "does not belong"},
		{"a resource dropped", freshTrust(), change(func(d *events.Declared) { d.Resources = d.Resources[:1] }), "does not belong"},
		{"a resource added", freshTrust(), change(func(d *events.Declared) { d.Resources = append(d.Resources, d.Resources[0]) }), "does not belong"},
		{"resources in another order", freshTrust(), change(func(d *events.Declared) { d.Resources[0], d.Resources[1] = d.Resources[1], d.Resources[0] }), "does not belong"},
		{"all resources dropped", freshTrust(), change(func(d *events.Declared) { d.Resources = nil }), "does not belong"},
		{"retry put in", freshTrust(), change(func(d *events.Declared) { spec(d, func(s *events.HostSpec) { s.Retry = true }) }), "does not belong"},

		{"release unsigned", freshTrust(), signedBy(delivery1, order(5, nil, release1)), "version 1.1.0 is refused: it is not signed"},
		{"release signed by a thief", freshTrust(), signedBy(delivery1, order(5, thiefR, release1)), "version 1.1.0 is refused: it is signed by another key"},
		{"fallback unsigned", freshTrust(), signedBy(delivery1, order(5, release1, nil)), "version 1.0.0, to fall back to, is refused"},
		{"fallback signed by a thief", freshTrust(), signedBy(delivery1, order(5, release1, thiefR)), "version 1.0.0, to fall back to, is refused"},
		{"other content under a release's signature", freshTrust(), resign(delivery1, change(func(d *events.Declared) {
			spec(d, func(s *events.HostSpec) { s.SHA256 = strings.Repeat("cd", 32) })
		})), "does not belong"},
		{"another version under a release's signature", freshTrust(), resign(delivery1, change(func(d *events.Declared) {
			spec(d, func(s *events.HostSpec) { s.Version = "1.0.9" })
		})), "does not belong"},
		{"another size under a release's signature", freshTrust(), resign(delivery1, change(func(d *events.Declared) {
			spec(d, func(s *events.HostSpec) { s.Size++ })
		})), "does not belong"},
		{"a second host resource unsigned", freshTrust(), resign(delivery1, change(func(d *events.Declared) {
			d.Resources = append(d.Resources, events.ResourceFromSpec(events.ResourceHost, "again", events.HostSpec{Release: signedRelease(nil, "9")}))
		})), "version 9 is refused"},
		{"a host version that brings lines", freshTrust(), resign(delivery1, change(func(d *events.Declared) {
			spec(d, func(s *events.HostSpec) { s.Version = "1.1.0\namd64" })
		})), "no package version"},

		{"a replay", after(signedBy(delivery1, order(6, release1, release1))), good, "replay"},
		{"the same revision, other content", after(good), signedBy(delivery1, order(5, release1, thiefR)), "another declaration"},
		{"the same revision, other content, all signed", after(good), resign(delivery1, change(func(d *events.Declared) { d.Resources = d.Resources[:1] })), "another declaration"},

		{"delivery key rotated", after(good), withRotations(delivery2, release1, rotated(delivery1, delivery2)), ""},
		{"delivery key rotated twice", after(good), withRotations(delivery3, release1, rotated(delivery1, delivery2), rotated(delivery2, delivery3)), ""},
		{"both keys rotated", after(good), withRotations(delivery2, release2, rotated(delivery1, delivery2), rotated(release1, release2)), ""},
		{"the old key signs after its rotation", after(good), withRotations(delivery1, release1, rotated(delivery1, delivery2)), "another key"},
		{"the old key signs after the node followed", after(withRotations(delivery2, release1, rotated(delivery1, delivery2))), signedBy(delivery1, order(7, release1, release1)), "another key"},
		{"a release of the old key after its rotation", after(good), withRotations(delivery1, release1, rotated(release1, release2)), "version 1.1.0 is refused"},
		{"rotated without a word", after(good), withRotations(delivery2, release1), "another key"},
		{"rotation by a thief", after(good), withRotations(thiefD, release1, rotated(thiefD, thiefD)), "is not one"},
		{"rotation unsigned", after(good), withRotations(thiefD, release1, events.Rotation{Role: events.KeyDelivery, Key: thiefD.Public}), "is not one"},
		{"rotations out of order", after(good), withRotations(delivery3, release1, rotated(delivery2, delivery3), rotated(delivery1, delivery2)), "is not one"},
		{"rotation of the release key by the delivery key", after(good), withRotations(delivery1, thiefR, func() events.Rotation {
			r := events.Rotation{Role: events.KeyRelease, Key: thiefR.Public}
			r.Signature = mustSign(delivery1, events.RotationText(r))
			return r
		}()), "is not one"},
	} {
		t.Run(c.name, func(t *testing.T) {
			d, err := received(onTheWire(c.d))
			if err != nil {
				if c.want != "" && strings.Contains(err.Error(), c.want) {
					return // refused before it came to keys
				}
				t.Fatal(err)
			}
			next, err := c.in.verify(d)
			switch {
			case c.want == "" && err != nil:
				t.Errorf("refused: %v", err)
			case c.want != "" && err == nil:
				t.Error("accepted")
			case c.want != "" && !strings.Contains(err.Error(), c.want):
				t.Errorf("refused with %q, want %q", err, c.want)
			case c.want != "" && next != c.in:
				t.Errorf("a refusal changed what is trusted: %+v", next)
			case c.want == "" && (next.Revision != d.Revision || next.Sum == ""):
				t.Errorf("accepted and not kept: %+v", next)
			}
		})
	}
}

func TestVerifyFollowsRotations(t *testing.T) {
	d := order(1, release2, release2)
	d.Rotations = []events.Rotation{rotated(delivery1, delivery2), rotated(release1, release2)}
	next, err := freshTrust().verify(signedBy(delivery2, d))
	want := events.Pins{Delivery: delivery2.Public, Release: release2.Public}
	if err != nil || next.Pins != want || next.Joined != freshTrust().Joined {
		t.Errorf("trusts %+v, %v", next, err)
	}
}

// What a later mesh adds beside the resources is not signed, and does nothing
// here. What it adds to a resource is part of what was signed: this host cannot
// check it, and refuses. In a spec it is checked, and refused by the handler.
func TestVerifyOfALaterMesh(t *testing.T) {
	good := onTheWire(signedBy(delivery1, order(5, release1, release1)))
	for _, c := range []struct {
		name, old, new string
		accepted       bool
	}{
		{"beside the resources", `"resources":[`, `"urgent":true,"resources":[`, true},
		{"in the event", `"specversion"`, `"trace":"x","specversion"`, true},
		{"why it was declared", `"because":{"kind":""}`, `"because":{"kind":"operator"}`, true},
		{"in a spec", `"spec":{"version"`, `"spec":{"when":"now","version"`, false},
		{"in a spec, a second time", `"spec":{"mode":"0644"`, `"spec":{"mode":"0644","mode":"4755"`, false},
		{"a second list", `"signature"`, `"resources":[],"signature"`, false},
		{"in other letters, which is another field", `"signature"`, `"RESOURCES":[],"signature"`, true},
	} {
		raw := strings.Replace(string(good), c.old, c.new, 1)
		if c.name == "a second list" || strings.HasPrefix(c.name, "in other letters") { // the declaration's own, behind all others
			i := strings.LastIndex(string(good), c.old)
			raw = string(good[:i]) + c.new + string(good[i+len(c.old):])
		}
		if raw == string(good) {
			t.Fatalf("%s: nothing to change in %s", c.name, good)
		}
		d, err := received([]byte(raw))
		if err == nil {
			_, err = freshTrust().verify(d)
		}
		if (err == nil) != c.accepted {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	// Signed with a field in the spec that this host does not know: nothing of
	// it is installed, by the handler's own rule.
	d := order(5, release1, release1)
	d.Resources[1].Spec = json.RawMessage(`{"version":"6.6.6","when":"now"}`)
	got, err := received(onTheWire(signedBy(delivery1, d)))
	if err == nil {
		_, err = freshTrust().verify(got)
	}
	var spec events.HostSpec
	if err != nil || events.DecodeSpec(got.Resources[1], &spec) == nil {
		t.Errorf("%v; the spec of a later mesh reads as %+v", err, spec)
	}
}

func sameOrder(a, b *events.Declared) bool {
	x, errX := events.DeclarationText(a)
	y, errY := events.DeclarationText(b)
	return errX == nil && errY == nil && x == y
}

// Any change of one byte on the way is refused, or changes nothing.
func TestOneByteLaw(t *testing.T) {
	d := order(5, release1, release1)
	d.Rotations = []events.Rotation{rotated(delivery1, delivery2)}
	good := signedBy(delivery2, d)
	raw := onTheWire(good)
	check := func(changed []byte) error {
		got, err := received(changed)
		if err != nil {
			return nil
		}
		next, err := freshTrust().verify(got)
		if err == nil && (!sameOrder(got, good) || next.Pins.Delivery != delivery2.Public || next.Pins.Release != release1.Public) {
			return fmt.Errorf("accepted: %s", changed)
		}
		return nil
	}
	// Each place with one bit flipped, and then any byte anywhere.
	for i := range raw {
		changed := bytes.Clone(raw)
		changed[i] ^= 1
		if err := check(changed); err != nil {
			t.Fatal(err)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		i := rapid.IntRange(0, len(raw)-1).Draw(t, "at")
		changed := bytes.Clone(raw)
		switch b := rapid.Byte().Draw(t, "byte"); rapid.IntRange(0, 2).Draw(t, "how") {
		case 0:
			changed[i] = b
		case 1:
			changed = append(changed[:i], changed[i+1:]...)
		case 2:
			changed = append(changed[:i], append([]byte{b}, changed[i:]...)...)
		}
		if err := check(changed); err != nil {
			t.Fatal(err)
		}
	})
}

// FuzzVerify: whatever bytes come, nothing is accepted but what a key in force
// signed, and reading it never fails otherwise than with an error.
func FuzzVerify(f *testing.F) {
	plain := signedBy(delivery1, order(5, release1, release1))
	d := order(6, release2, release2)
	d.Rotations = []events.Rotation{rotated(delivery1, delivery2), rotated(release1, release2)}
	moved := signedBy(delivery2, d)
	f.Add(onTheWire(plain))
	f.Add(onTheWire(moved))
	f.Add(onTheWire(signedBy(thiefD, order(7, thiefR, thiefR))))
	f.Add([]byte(`{"specversion":"1.0","id":"x","type":"mesh.declaration.declared.v1","source":"s","subject":"n1","time":"2026-01-02T03:04:05Z","actor":"a","data":{"node":"n1","revision":1,"resources":[{"type":"host"}],"rotations":[{}]}}`))
	before, err := freshTrust().verify(signedBy(delivery1, events.Declared{Node: "n1", Revision: 5}))
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		got, err := received(raw)
		if err != nil {
			return
		}
		for _, in := range []trust{freshTrust(), before} {
			next, err := in.verify(got)
			if err != nil {
				if next != in {
					t.Fatalf("a refusal changed what is trusted: %+v", next)
				}
				continue
			}
			if !sameOrder(got, plain) && !sameOrder(got, moved) {
				t.Fatalf("accepted: %s", raw)
			}
			if next.Revision < in.Revision {
				t.Fatalf("revision fell from %d to %d", in.Revision, next.Revision)
			}
		}
	})
}

func TestTrustIn(t *testing.T) {
	first := events.Pins{Delivery: delivery1.Public, Release: release1.Public}
	second := events.Pins{Delivery: delivery2.Public, Release: release1.Public}
	stranger := events.Pins{Delivery: thiefD.Public, Release: thiefR.Public}
	followed := trust{Joined: first, Pins: second, Node: "n1", Revision: 7, Sum: "x"}
	for _, c := range []struct {
		name   string
		pins   events.Pins
		node   string
		before trust
		want   trust
	}{
		{"nothing before", first, "n1", trust{}, trust{Joined: first, Pins: first, Node: "n1"}},
		{"the new keys could not be written", first, "n1", followed, followed},
		{"the new keys were written", second, "n1", followed, trust{Joined: second, Pins: second, Node: "n1", Revision: 7, Sum: "x"}},
		{"no name known", first, "", followed, followed},
		{"joined another mesh", stranger, "n1", followed, trust{Joined: stranger, Pins: stranger, Node: "n1"}},
		{"joined under another name", second, "n2", followed, trust{Joined: second, Pins: second, Node: "n2"}},
	} {
		if got := trustIn(c.pins, c.node, c.before); got != c.want {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
	}
}
