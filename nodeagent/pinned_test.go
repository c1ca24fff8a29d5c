package nodeagent_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"noxmesh/events"
	"noxmesh/nodeagent"
)

// signing is a mesh's keys, and a node that pinned them.
type signing struct {
	t                 *testing.T
	delivery, release *events.SigningKey
	rotations         []events.Rotation
	pins              string // file
}

func newSigning(t *testing.T) *signing {
	t.Helper()
	s := &signing{t: t, delivery: newKey(t, events.KeyDelivery), release: newKey(t, events.KeyRelease), pins: filepath.Join(t.TempDir(), "pins.json")}
	s.pin()
	return s
}

func newKey(t *testing.T, role string) *events.SigningKey {
	t.Helper()
	key, _, err := events.NewKey(role)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func (s *signing) pin() {
	s.t.Helper()
	p := events.Pins{Delivery: s.delivery.Public, Release: s.release.Public}
	if err := os.WriteFile(s.pins, p.Encode(), 0o600); err != nil {
		s.t.Fatal(err)
	}
}

func (s *signing) pinned() events.Pins {
	s.t.Helper()
	p, err := events.LoadPins(s.pins)
	if err != nil {
		s.t.Fatal(err)
	}
	return p
}

// rotate has a new delivery key introduced by the old one.
func (s *signing) rotate() {
	next := newKey(s.t, events.KeyDelivery)
	s.rotations = append(s.rotations, must(events.NewRotation(s.delivery, next.Public)))
	s.delivery = next
}

func (s *signing) signed(r events.Release) events.Release {
	r.Signature = must(s.release.Sign(events.ReleaseText(r)))
	return r
}

func (s *signing) declared(node string, revision uint64, resources ...events.Resource) events.Event {
	d := &events.Declared{Node: node, Revision: revision, Because: events.DeclarationCause{Kind: events.CauseOperator},
		Resources: resources, Rotations: s.rotations}
	d.Signature = must(s.delivery.Sign(must(events.DeclarationText(d))))
	return events.New(node, d, events.Origin{Source: "test", Actor: "tester"}, time.Now())
}

func (s *signing) config(b *box, m *mesh) nodeagent.Config {
	cfg := b.config(m.creds("n1"), m.url())
	cfg.PinsFile = s.pins
	return cfg
}

// refusal waits for the report of a refused declaration.
func (m *mesh) refusal(want string) {
	m.t.Helper()
	_, f := m.report("n1", events.ReportFailedToApply)
	if r := f.(*events.NodeFailedToApply); r.Resource != "declaration" || !strings.Contains(r.Error, want) {
		m.t.Errorf("report %+v, want %q", r, want)
	}
}

// TestOwningTheBrokerInstallsNothing: somebody with all rights in the broker,
// who has every package in the store, does what the mesh does but for the keys.
func TestOwningTheBrokerInstallsNothing(t *testing.T) {
	m, s := newMesh(t, nodeGrants()), newSigning(t)
	b := newBox(t, "1.0.0")
	b.retain(aPackage(t, "1.0.0"), "1.0.0")
	file := filepath.Join(t.TempDir(), "f")
	r := start(t, s.config(b, m))
	m.append(s.declared("n1", 1, aFile(t, file, "one")))
	m.heartbeat("n1", func(h events.Heartbeat) bool { return h.Revision == 1 })

	thief := newSigning(t)
	evil := m.add(aPackage(t, "6.6.6"), "6.6.6")
	good := m.add(aPackage(t, "1.1.0"), "1.1.0")
	m.declare("n1", 2, host(events.HostSpec{Release: evil}))
	m.refusal("refused: it is not signed")
	m.append(thief.declared("n1", 3, host(events.HostSpec{Release: thief.signed(evil)})))
	m.refusal("refused: it is signed by another key")
	// Of a mesh that replaced its key, as the thief tells it.
	thief.rotations = []events.Rotation{must(events.NewRotation(thief.delivery, thief.delivery.Public))}
	m.append(thief.declared("n1", 4, aFile(t, file, "evil")))
	m.refusal("refused: the rotation")
	thief.rotations = nil
	// With the mesh's delivery key in hand, but not the release key.
	m.append(s.declared("n1", 5, aFile(t, file, "two"), host(events.HostSpec{Release: thief.signed(evil)})))
	m.refusal("version 6.6.6 is refused: it is signed by another key")
	m.append(s.declared("n1", 6, host(events.HostSpec{Release: s.signed(good), Fallback: &evil})))
	m.refusal("version 6.6.6, to fall back to, is refused: it is not signed")
	// What was meant for another node.
	other := s.declared("n2", 7, aFile(t, file, "other"))
	other.Subject = "n1"
	m.append(other)
	m.heartbeat("n1", hasProblem(`for node "n2"`))
	// The store has other content than was signed, under its name.
	swapped := s.signed(good)
	swapped.SHA256 = evil.SHA256
	m.append(s.declared("n1", 8, host(events.HostSpec{Release: swapped})))
	m.refusal("version 1.1.0 is refused: the signature does not belong to it")

	h := m.heartbeat("n1", func(events.Heartbeat) bool { return true })
	if h.Revision != 1 || h.Version != "1.0.0" || string(must(os.ReadFile(file))) != "one" {
		t.Errorf("the old declaration is not in force: %+v", h)
	}
	// Looked at again and again, each is reported once.
	for range 2 {
		start := time.Now()
		m.heartbeat("n1", func(events.Heartbeat) bool { return time.Since(start) > quick.Refresh })
	}
	sent := 0
	err := events.ReadStream(t.Context(), m.js, events.StreamReports, events.ReadOptions{Subjects: []string{events.ReportSubject("n1", events.ReportFailedToApply)}},
		func(events.Message) error { sent++; return nil })
	if err != nil || sent != 6 {
		t.Errorf("%d reports, %v: %s", sent, err, asJSON(m.kept(events.ReportFailedToApply)))
	}
	// And the mesh itself goes on.
	m.append(s.declared("n1", 9, host(events.HostSpec{Release: s.signed(good)})))
	if r.wait() != nodeagent.ExitUpgraded || b.installed != "1.1.0" {
		t.Errorf("installed %s", b.installed)
	}
}

func TestRefusalsAreBounded(t *testing.T) {
	m, s := newMesh(t, nodeGrants()), newSigning(t)
	b := newBox(t, "1.0.0")
	start(t, s.config(b, m))
	m.heartbeat("n1", func(events.Heartbeat) bool { return true })
	for i := range 60 {
		if err := m.nc.Publish(events.DeclarationSubject("n1"), declared("n1", uint64(i+1)).Encode()); err != nil {
			t.Fatal(err)
		}
	}
	m.heartbeat("n1", hasProblem("declaration 60 is refused"))
	file := filepath.Join(t.TempDir(), "f")
	m.append(s.declared("n1", 61, aFile(t, file, "x"), events.ResourceFromSpec("teapot", "t", 1)))
	for { // the last report in the outbox is about the teapot
		if _, f := m.report("n1", events.ReportFailedToApply); f.(*events.NodeFailedToApply).Resource == "teapot/t" {
			break
		}
	}
	if all := m.kept(events.ReportFailedToApply); len(all) > 21 {
		t.Errorf("%d reports of forged declarations", len(all)-1)
	}
}

func TestRotationIsFollowedAndKept(t *testing.T) {
	m, s := newMesh(t, nodeGrants()), newSigning(t)
	b := newBox(t, "1.0.0")
	file := filepath.Join(t.TempDir(), "f")
	r := start(t, s.config(b, m))
	old := *s
	m.append(s.declared("n1", 1, aFile(t, file, "one")))
	m.heartbeat("n1", func(h events.Heartbeat) bool { return h.Revision == 1 })
	s.rotate()
	m.append(s.declared("n1", 2, aFile(t, file, "two")))
	m.heartbeat("n1", func(h events.Heartbeat) bool { return h.Revision == 2 })
	if s.pinned().Delivery != s.delivery.Public {
		t.Error("the new key is not pinned")
	}
	if info := must(os.Stat(s.pins)); info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v", info.Mode())
	}
	m.append(old.declared("n1", 3, aFile(t, file, "old")))
	m.refusal("signed by another key")
	// A machine whose state is lost has the new key all the same.
	r.stop()
	b.dir = t.TempDir()
	start(t, s.config(b, m))
	m.refusal("signed by another key")
	s.rotate()
	m.append(s.declared("n1", 4, aFile(t, file, "four")))
	m.heartbeat("n1", func(h events.Heartbeat) bool { return h.Revision == 4 })
	if s.pinned().Delivery != s.delivery.Public {
		t.Error("the third key is not pinned")
	}
}

// Stopped after the declaration was kept and before the new keys were, the next
// start comes to the same end.
func TestRotationSurvivesAStop(t *testing.T) {
	s := newSigning(t)
	before := must(os.ReadFile(s.pins))
	b := newBox(t, "1.0.0")
	cfg := b.config(filepath.Join(t.TempDir(), "none.creds"), "")
	cfg.PinsFile = s.pins
	s.rotate()
	want := events.Pins{Delivery: s.delivery.Public, Release: s.release.Public}
	file := filepath.Join(t.TempDir(), "f")
	put := func(e events.Event) {
		if err := os.WriteFile(filepath.Join(b.dir, "declaration.json"), e.Encode(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	put(s.declared("n1", 2, aFile(t, file, "two")))
	start(t, cfg).stop()
	if s.pinned() != want || string(must(os.ReadFile(file))) != "two" {
		t.Errorf("pinned %+v", s.pinned())
	}
	// The file of pins was not written: the state directory knows better.
	if err := os.WriteFile(s.pins, before, 0o600); err != nil {
		t.Fatal(err)
	}
	start(t, cfg).stop()
	if s.pinned() != want {
		t.Errorf("pinned %+v", s.pinned())
	}
}

// What is on disk is verified when it is loaded, as what comes over the link.
func TestCachedDeclarationIsVerified(t *testing.T) {
	s := newSigning(t)
	file := filepath.Join(t.TempDir(), "f")
	good := s.declared("n1", 3, aFile(t, file, "three"))
	tampered := good
	tampered.Data = json.RawMessage(strings.Replace(string(good.Data), "three", "evil!", 1))
	for _, c := range []struct {
		name    string
		cached  events.Event
		applied string
	}{
		{"good", good, "three"},
		{"tampered", tampered, ""},
		{"unsigned", declared("n1", 4, aFile(t, file, "unsigned")), ""},
		{"older", s.declared("n1", 2, aFile(t, file, "two")), ""},
		{"another with the revision", s.declared("n1", 3, aFile(t, file, "third")), ""},
	} {
		b := newBox(t, "1.0.0")
		cfg := b.config(filepath.Join(t.TempDir(), "none.creds"), "")
		cfg.PinsFile = s.pins
		load := func(e events.Event) {
			_ = os.Remove(file)
			if err := os.WriteFile(filepath.Join(b.dir, "declaration.json"), e.Encode(), 0o644); err != nil {
				t.Fatal(err)
			}
			start(t, cfg).stop()
		}
		load(good) // revision 3 was verified here
		load(c.cached)
		raw, _ := os.ReadFile(file)
		if string(raw) != c.applied {
			t.Errorf("%s: the file holds %q", c.name, raw)
		}
		if b.has("declaration.json.corrupt") != (c.applied == "") {
			t.Errorf("%s: set aside: %v", c.name, b.has("declaration.json.corrupt"))
		}
	}
}

func TestNodeWithoutPins(t *testing.T) {
	m, s := newMesh(t, nodeGrants()), newSigning(t)
	if err := os.Remove(s.pins); err != nil {
		t.Fatal(err)
	}
	b := newBox(t, "1.0.0")
	file := filepath.Join(t.TempDir(), "f")
	cfg := s.config(b, m)
	r := start(t, cfg)
	m.declare("n1", 1, aFile(t, file, "one"))
	h := m.heartbeat("n1", func(h events.Heartbeat) bool { return h.Revision == 1 })
	if !hasProblem("declarations are not verified: join again with nox-mesh-host join TOKEN")(h) {
		t.Errorf("problems: %v", h.Problems)
	}
	// It joins, and believes no more what it believed.
	s.pin()
	m.declare("n1", 2, aFile(t, file, "two"))
	m.refusal("not signed")
	m.append(s.declared("n1", 3, aFile(t, file, "three")))
	h = m.heartbeat("n1", func(h events.Heartbeat) bool { return h.Revision == 3 })
	if len(h.Problems) > 0 {
		t.Errorf("problems: %v", h.Problems)
	}
	// A node that has verified once does not go back to believing, with its
	// pins damaged or gone.
	for _, damage := range []func() error{
		func() error { return os.WriteFile(s.pins, []byte("{}"), 0o600) },
		func() error { return os.Remove(s.pins) },
	} {
		if err := damage(); err != nil {
			t.Fatal(err)
		}
		m.declare("n1", 4, aFile(t, file, "four"))
		m.append(s.declared("n1", 4, aFile(t, file, "four")))
		h = m.heartbeat("n1", hasProblem("no declaration is accepted"))
		if h.Revision != 3 {
			t.Errorf("applied revision %d", h.Revision)
		}
	}
	r.stop()
	start(t, cfg)
	h = m.heartbeat("n1", func(h events.Heartbeat) bool { return hasProblem("are gone: join again")(h) })
	if string(must(os.ReadFile(file))) != "three" {
		t.Error("an unverified declaration was applied")
	}
	s.pin()
	m.heartbeat("n1", func(h events.Heartbeat) bool { return h.Revision == 4 && len(h.Problems) == 0 })
}

// A lost cache does not open the way for what was verified before.
func TestReplayAfterALostCache(t *testing.T) {
	m, s := newMesh(t, nodeGrants()), newSigning(t)
	b := newBox(t, "1.0.0")
	file := filepath.Join(t.TempDir(), "f")
	r := start(t, s.config(b, m))
	m.append(s.declared("n1", 1, aFile(t, file, "one")))
	m.append(s.declared("n1", 2, aFile(t, file, "two")))
	m.heartbeat("n1", func(h events.Heartbeat) bool { return h.Revision == 2 })
	r.stop()
	if err := os.Remove(filepath.Join(b.dir, "declaration.json")); err != nil {
		t.Fatal(err)
	}
	m.append(s.declared("n1", 1, aFile(t, file, "one")))
	start(t, s.config(b, m))
	m.refusal("replay: revision 2 was verified here before")
	if string(must(os.ReadFile(file))) != "two" {
		t.Error("the replay was applied")
	}
	m.append(s.declared("n1", 3, aFile(t, file, "three")))
	m.heartbeat("n1", func(h events.Heartbeat) bool { return h.Revision == 3 && string(must(os.ReadFile(file))) == "three" })
}

// What was accepted before the machine joined is not installed after it.
func TestPinnedWhileAnUpgradeWaits(t *testing.T) {
	m, s := newMesh(t, nodeGrants()), newSigning(t)
	if err := os.Remove(s.pins); err != nil {
		t.Fatal(err)
	}
	b := newBox(t, "1.0.0")
	b.retain(aPackage(t, "1.0.0"), "1.0.0")
	start(t, s.config(b, m))
	raw := aPackage(t, "6.6.6")
	m.declare("n1", 1, host(events.HostSpec{Release: releaseOf(raw, "6.6.6")})) // and is not in the store
	m.heartbeat("n1", hasProblem("fetching version 6.6.6"))
	s.pin()
	m.add(raw, "6.6.6")
	_, f := m.report("n1", events.ReportRefused)
	if r := f.(*events.NodeRefused); r.Version != "6.6.6" || !strings.Contains(r.Reason, "it is not signed") {
		t.Errorf("report %+v", r)
	}
	if b.installed != "1.0.0" {
		t.Errorf("installed %s", b.installed)
	}
}
