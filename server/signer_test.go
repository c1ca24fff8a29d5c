package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"noxmesh/events"
	"noxmesh/nodeagent"
	"noxmesh/nodeagent/simnode"
	"noxmesh/projections"
)

func (w *whole) keys(t *testing.T) (chain map[string][]string) {
	t.Helper()
	list, err := w.client.Keys(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	chain = map[string][]string{}
	for _, k := range list.Keys {
		chain[k.Role] = append(chain[k.Role], k.Key)
	}
	for _, k := range list.Keys {
		if last := chain[k.Role]; k.InForce != (k.Key == last[len(last)-1]) {
			t.Errorf("in force: %+v", list.Keys)
		}
	}
	return chain
}

func last(list []string) string { return list[len(list)-1] }

// stored is a node's newest declaration as a node gets it from the broker.
func (w *whole) stored(t *testing.T, node string, revision uint64) *events.Declared {
	t.Helper()
	js, err := jetstream.New(w.nc)
	if err != nil {
		t.Fatal(err)
	}
	stream, err := js.Stream(testContext(t), events.StreamDeclarations)
	if err != nil {
		t.Fatal(err)
	}
	var d *events.Declared
	w.until(t, "the declaration is derived", func() (bool, string) {
		msg, err := stream.GetLastMsgForSubject(testContext(t), events.DeclaredSubject(node))
		if err != nil {
			return false, err.Error()
		}
		e, err := events.Decode(msg.Data)
		if err != nil {
			t.Fatal(err)
		}
		f, err := e.Fact()
		if err != nil {
			t.Fatal(err)
		}
		d = f.(*events.Declared)
		return d.Revision >= revision, fmt.Sprint(d.Revision)
	})
	return d
}

func (w *whole) declareFile(t *testing.T, node, content string) *events.Declared {
	t.Helper()
	// As a person writes it, not as Go's encoder does.
	spec := json.RawMessage("{\n  \"mode\": \"0644\",   \"content\" : " + content + "}")
	r, err := w.client.Declare(testContext(t), DeclareRequest{Node: node, Resources: []events.Resource{{Type: events.ResourceFile, Name: "/etc/<&>é", Spec: spec}}})
	if err != nil {
		t.Fatal(err)
	}
	return w.stored(t, node, r.Revision)
}

// verified checks a declaration as a node does that pinned the first key.
func verified(t *testing.T, pinned string, d *events.Declared) {
	t.Helper()
	key, err := events.FollowRotations(events.KeyDelivery, pinned, d.Rotations)
	if err == nil {
		err = events.VerifyDeclaration(key, d)
	}
	if err != nil {
		t.Errorf("revision %d of %s: %v", d.Revision, d.Node, err)
	}
}

func TestEveryDeclarationIsSigned(t *testing.T) {
	w := startServer(t, t.TempDir())
	first := w.keys(t)
	w.fleetOf(t, "n1", "n2", "n3")
	contents := []string{
		`"plain"`, `"<b>&amp;</b> \u003c \u2028 é 😀"`, "\"\u2028\u2029 \u007f \ufffd\"", `"\ud83d\ude00 \/ \" \\ \u0000"`, `"\ud800"`,
	}
	for _, content := range contents {
		verified(t, first[events.KeyDelivery][0], w.declareFile(t, "n1", content))
	}
	// Those of a rollout, too, with the release in them signed.
	if _, err := w.client.StartRollout(testContext(t), StartRequest{Version: "1.1.0", Policy: twoByOne}); err != nil {
		t.Fatal(err)
	}
	for _, node := range w.batch(t, "r1", 1).Nodes {
		revision := uint64(1)
		if node == "n1" {
			revision += uint64(len(contents))
		}
		d := w.stored(t, node, revision)
		verified(t, first[events.KeyDelivery][0], d)
		if err := events.VerifyRelease(first[events.KeyRelease][0], d.Host().Release); err != nil {
			t.Error(err)
		}
	}
	// And what is taken back when it is aborted.
	if _, err := w.client.AbortRollout(testContext(t), "r1", "test"); err != nil {
		t.Fatal(err)
	}
	for _, rec := range w.record(t) {
		if f, err := rec.Event.Fact(); err != nil {
			t.Fatal(err)
		} else if d, ok := f.(*events.Declared); ok {
			verified(t, first[events.KeyDelivery][0], d)
		}
	}
}

// record is the log as it is now.
func (w *whole) record(t *testing.T) (all []events.Record) {
	t.Helper()
	js, err := jetstream.New(w.nc)
	if err != nil {
		t.Fatal(err)
	}
	err = events.NewLog(js).Read(testContext(t), events.ReadOptions{}, func(r events.Record) error {
		all = append(all, r)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestKeysOfAFirstStart(t *testing.T) {
	dir := t.TempDir()
	w := startServer(t, dir)
	first := w.keys(t)
	for role, file := range map[string]string{events.KeyDelivery: DeliveryKeyFile(dir), events.KeyRelease: ReleaseKeyFile(dir)} {
		info, err := os.Stat(file)
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", file, info, err)
		}
		key, err := ReadSigningKey(role, file)
		if err != nil || !slices.Equal(first[role], []string{key.Public}) {
			t.Errorf("%s: %v, the chain is %v", file, err, first[role])
		}
	}
	w.stop(t)
	w.client = nil
	// The release key is moved away, as it should be.
	if err := os.Rename(ReleaseKeyFile(dir), filepath.Join(t.TempDir(), "release.key")); err != nil {
		t.Fatal(err)
	}
	again := startServer(t, dir)
	if got := again.keys(t); !slices.Equal(got[events.KeyRelease], first[events.KeyRelease]) || !slices.Equal(got[events.KeyDelivery], first[events.KeyDelivery]) {
		t.Errorf("a second start has keys %v, the first %v", got, first)
	}
	if _, err := os.Stat(ReleaseKeyFile(dir)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a release key was made anew: %v", err)
	}
	again.stop(t)
	again.client = nil
	// Without the delivery key, or with another, nothing starts.
	kept, err := os.ReadFile(DeliveryKeyFile(dir))
	if err != nil {
		t.Fatal(err)
	}
	_, other, err := events.NewKey(events.KeyDelivery)
	if err != nil {
		t.Fatal(err)
	}
	for name, put := range map[string]func() error{
		"gone":    func() error { return os.Remove(DeliveryKeyFile(dir)) },
		"another": func() error { return os.WriteFile(DeliveryKeyFile(dir), other, 0o600) },
		"damaged": func() error { return os.WriteFile(DeliveryKeyFile(dir), kept[:30], 0o600) },
	} {
		if err := put(); err != nil {
			t.Fatal(err)
		}
		_, err := Start(testContext(t), Config{DataDir: dir, Listen: "127.0.0.1:0", Logger: zerolog.Nop()})
		refused(t, "a start with the delivery key "+name, err, "restore "+DeliveryKeyFile(dir)+" from the backup")
	}
	if err := os.WriteFile(DeliveryKeyFile(dir), kept, 0o600); err != nil {
		t.Fatal(err)
	}
	startServer(t, dir)
}

// TestRotationStopsAnywhere: after each step of a rotation the server stops, and
// the next one signs with the key that the log says.
func TestRotationStopsAnywhere(t *testing.T) {
	for _, c := range []struct {
		step    string
		rotated bool
	}{{"made", false}, {"recorded", true}, {"replaced", true}} {
		t.Run(c.step, func(t *testing.T) {
			dir := t.TempDir()
			w := startServer(t, dir)
			w.node(t, "n1", nil)
			pinned := w.keys(t)[events.KeyDelivery][0]
			errStopped := errors.New("the power fails")
			w.api.signer.afterStep = func(step string) error {
				if step == c.step {
					return errStopped
				}
				return nil
			}
			_, err := w.client.RotateDelivery(testContext(t))
			refused(t, "the rotation", err, errStopped.Error())
			// The server goes on for a while, before the power is really gone.
			verified(t, pinned, w.declareFile(t, "n1", `"one"`))
			w.stop(t)
			w.client = nil

			again := startServer(t, dir)
			chain := again.keys(t)[events.KeyDelivery]
			if (len(chain) == 2) != c.rotated {
				t.Errorf("chain %v", chain)
			}
			verified(t, pinned, again.declareFile(t, "n1", `"two"`))
			if r, err := again.client.RotateDelivery(testContext(t)); err != nil || r.Key == last(chain) {
				t.Errorf("the next rotation: %+v, %v", r, err)
			}
			d := again.declareFile(t, "n1", `"three"`)
			verified(t, pinned, d)
			if err := events.VerifyDeclaration(pinned, d); !errors.Is(err, events.ErrOtherKey) {
				t.Errorf("the old key signs on: %v", err)
			}
			if _, err := os.Stat(nextKeyFile(dir)); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("a next key is left: %v", err)
			}
			key, err := ReadSigningKey(events.KeyDelivery, DeliveryKeyFile(dir))
			if err != nil || key.Public != last(again.keys(t)[events.KeyDelivery]) {
				t.Errorf("the file holds another key: %v", err)
			}
		})
	}
}

// The key stays what it is from the moment a declaration is signed until it is
// in the log, or was given up.
func TestKeyIsHeldWhileADeclarationIsWritten(t *testing.T) {
	w := startServer(t, t.TempDir())
	s := w.api.signer
	e := events.New("n1", &events.Declared{Node: "n1", Revision: 1}, events.Origin{Source: "t", Actor: "t"}, time.Now())
	written, err := s.seal(&e)
	if err != nil {
		t.Fatal(err)
	}
	if s.mu.TryLock() {
		t.Error("the key can be replaced before the declaration is written")
	}
	written()
	if !s.mu.TryLock() {
		t.Error("the key is held for ever")
	}
	s.mu.Unlock()
	bad := e
	bad.Data = json.RawMessage(`{"node":"n1","revision":1,"resources":[{"type":"host","name":"h","spec":{"unknown":1}}]}`)
	if _, err := s.seal(&bad); err == nil {
		t.Error("what no node could read was signed")
	}
	if !s.mu.TryLock() {
		t.Error("the key is held for ever after a failure")
	}
	s.mu.Unlock()
}

// A rotation among declarations: none that the old key signed follows it.
func TestRotationWhileDeclaring(t *testing.T) {
	w := startServer(t, t.TempDir())
	w.node(t, "n1", nil)
	pinned := w.keys(t)[events.KeyDelivery][0]
	done := make(chan error, 1)
	go func() {
		var err error
		for range 5 {
			_, one := w.client.RotateDelivery(context.Background())
			err = errors.Join(err, one)
		}
		done <- err
	}()
	rotating := true
	for i := 0; rotating; i++ {
		w.declareFile(t, "n1", fmt.Sprintf(`"%d"`, i))
		select {
		case err := <-done:
			if err != nil {
				t.Fatal(err)
			}
			rotating = false
		default:
		}
	}
	key := pinned
	for _, rec := range w.record(t) {
		f, err := rec.Event.Fact()
		if err != nil {
			t.Fatal(err)
		}
		switch f := f.(type) {
		case *events.KeyTrusted:
			if f.Role == events.KeyDelivery {
				key = f.Key
			}
		case *events.Declared:
			if err := events.VerifyDeclaration(key, f); err != nil {
				t.Errorf("event %d: %v", rec.Seq, err)
			}
			verified(t, pinned, f)
		}
	}
}

func TestReleasesMustBeSigned(t *testing.T) {
	w := startServer(t, t.TempDir())
	ctx := testContext(t)
	path := filepath.Join(t.TempDir(), "p.deb")
	if err := os.WriteFile(path, debSpec{control: goodControl, comp: "gz"}.build(t), 0o600); err != nil {
		t.Fatal(err)
	}
	old := w.releaseKey()
	other, _, err := events.NewKey(events.KeyRelease)
	if err != nil {
		t.Fatal(err)
	}
	_, err = w.client.AddRelease(ctx, path, nil, false)
	refused(t, "an unsigned release", err, "it is not signed")
	_, err = w.client.AddRelease(ctx, path, other, false)
	refused(t, "a release signed by a stranger", err, "it is signed by another key")
	w.once(t, &events.ReleaseAdded{}, 0)
	for i := range 2 {
		if r, err := w.client.AddRelease(ctx, path, old, false); err != nil || r.Already != (i == 1) || r.Signed {
			t.Fatalf("add %d: %+v, %v", i+1, r, err)
		}
	}
	w.once(t, &events.ReleaseAdded{}, 1)
	if _, err := w.client.Hold(ctx, "1.2.3", "leaks"); err != nil {
		t.Fatal(err)
	}

	// A new key, as after a theft: nothing is signed anew.
	next, _, err := events.NewKey(events.KeyRelease)
	if err != nil {
		t.Fatal(err)
	}
	_, err = w.client.RotateRelease(ctx, other, next, false)
	refused(t, "a rotation by a stranger", err, "is not introduced by the one in force")
	r, err := w.client.RotateRelease(ctx, old, next, false)
	if err != nil || r.Key != next.Public || r.Signed != 0 || len(r.Unsigned) != 1 {
		t.Fatalf("rotation: %+v, %v", r, err)
	}
	if r, err = w.client.RotateRelease(ctx, old, next, false); err != nil || r.Key != next.Public {
		t.Errorf("the same again: %+v, %v", r, err)
	}
	_, err = w.client.RotateRelease(ctx, next, old, false)
	refused(t, "going back to the old key", err, "was replaced before")
	if _, err := w.client.Lift(ctx, "1.2.3", ""); err != nil {
		t.Fatal(err)
	}
	nc := w.node(t, "n1", nil)
	w.beat(t, nc, "n1", "1.0.0")
	_, err = w.client.StartRollout(ctx, StartRequest{Version: "1.2.3"})
	refused(t, "a rollout of what the key in force has not signed", err, "Sign it with nox-mesh release add FILE.deb --sign-key FILE")
	if _, err := w.client.Hold(ctx, "1.2.3", "leaks still"); err != nil {
		t.Fatal(err)
	}
	_, err = w.client.AddRelease(ctx, path, old, false)
	refused(t, "the old key", err, "it is signed by another key")
	if a, err := w.client.AddRelease(ctx, path, next, false); err != nil || !a.Already || !a.Signed || a.Held == "" {
		t.Errorf("signed anew: %+v, %v", a, err)
	}
	list, err := w.client.Releases(ctx)
	if err != nil || len(list.Releases) != 1 || list.Releases[0].Held != "leaks still" || list.Releases[0].Unsigned != "" {
		t.Errorf("the hold or the signature is lost: %+v, %v", list.Releases, err)
	}

	// An orderly rotation signs all of it anew.
	third, _, err := events.NewKey(events.KeyRelease)
	if err != nil {
		t.Fatal(err)
	}
	if r, err = w.client.RotateRelease(ctx, next, third, true); err != nil || r.Signed != 1 || len(r.Unsigned) != 0 {
		t.Errorf("rotation: %+v, %v", r, err)
	}
	if list, err = w.client.Releases(ctx); err != nil || list.Releases[0].Held != "leaks still" || events.VerifyRelease(third.Public, list.Releases[0].Release) != nil {
		t.Errorf("after the rotation: %+v, %v", list.Releases, err)
	}
}

// A release that was signed anew is declared with the signature of now, though
// the plan was made before; a fallback that the key has not signed is left out.
func TestDeclarationsTakeTheNewestSignature(t *testing.T) {
	old, next, delivery := newSigningKey(t, events.KeyRelease), newSigningKey(t, events.KeyRelease), newSigningKey(t, events.KeyDelivery)
	m := projections.NewMesh()
	seq := uint64(0)
	apply := func(subject string, f events.Fact) {
		seq++
		if err := m.ApplyEvent(events.Record{Seq: seq, Event: events.New(subject, f, events.Origin{Source: "t", Actor: "t"}, time.Now())}); err != nil {
			t.Fatal(err)
		}
	}
	signedWith := func(k *events.SigningKey, version string) events.Release {
		r := events.Release{Version: version, Architecture: "amd64", File: "f", Size: 1, SHA256: strings.Repeat("a", 64)}
		var err error
		if r.Signature, err = k.Sign(events.ReleaseText(r)); err != nil {
			t.Fatal(err)
		}
		return r
	}
	planned, fallback := signedWith(old, "1.1.0"), signedWith(old, "1.0.0")
	apply("delivery", &events.KeyTrusted{Rotation: events.Rotation{Role: events.KeyDelivery, Key: delivery.Public}})
	apply("release", &events.KeyTrusted{Rotation: events.Rotation{Role: events.KeyRelease, Key: old.Public}})
	apply(planned.Key(), &events.ReleaseAdded{Release: planned})
	apply(fallback.Key(), &events.ReleaseAdded{Release: fallback})
	r, err := events.NewRotation(old, next.Public)
	if err != nil {
		t.Fatal(err)
	}
	apply("release", &events.KeyTrusted{Rotation: r})
	apply(planned.Key(), &events.ReleaseAdded{Release: signedWith(next, "1.1.0")})

	d := &events.Declared{Node: "n1", Revision: 1, Resources: []events.Resource{
		events.ResourceFromSpec(events.ResourceHost, events.HostPackage, events.HostSpec{Release: planned, Fallback: &fallback, Retry: true}),
	}}
	if err := complete(m, d); err != nil {
		t.Fatal(err)
	}
	h := d.Host()
	if err := events.VerifyRelease(next.Public, h.Release); err != nil || h.Fallback != nil || !h.Retry || !slices.Equal(d.Rotations, []events.Rotation{r}) {
		t.Errorf("%v: %+v, %+v", err, h, d.Rotations)
	}
	// Keys that somebody else wrote into the log count for nothing.
	thief := newSigningKey(t, events.KeyDelivery)
	apply("delivery", &events.KeyTrusted{Rotation: events.Rotation{Role: events.KeyDelivery, Key: thief.Public}})
	self, err := events.NewRotation(thief, thief.Public)
	if err != nil {
		t.Fatal(err)
	}
	apply("delivery", &events.KeyTrusted{Rotation: self})
	apply("release", &events.KeyTrusted{Rotation: self})
	elsewhere, err := events.NewRotation(delivery, thief.Public)
	if err != nil {
		t.Fatal(err)
	}
	apply("release", &events.KeyTrusted{Rotation: elsewhere})
	if m.Key(events.KeyDelivery) != delivery.Public || m.KeySeq[events.KeyDelivery] != seq-2 || len(m.Rotations()) != 1 {
		t.Errorf("delivery key %s, rotations %v", m.Key(events.KeyDelivery), m.Rotations())
	}
}

func newSigningKey(t *testing.T, role string) *events.SigningKey {
	t.Helper()
	k, _, err := events.NewKey(role)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// TestOwningTheBrokerInstallsNothing: real server, real broker, real agent. The
// thief has the mesh's own connection and the store, and not the keys.
func TestOwningTheBrokerInstallsNothing(t *testing.T) {
	w := startServer(t, t.TempDir())
	ctx := testContext(t)
	arch := nodeagent.DebianArchitecture(runtime.GOARCH)
	add := func(version string) (string, []byte) {
		path := filepath.Join(t.TempDir(), "p.deb")
		f, err := os.Create(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(simnode.WriteDeb(f, events.HostPackage, version, arch, []byte(version)), f.Close()); err != nil {
			t.Fatal(err)
		}
		if _, err := w.client.AddRelease(ctx, path, w.releaseKey(), false); err != nil {
			t.Fatal(err)
		}
		raw, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return path, raw
	}
	_, first := add("1.0.0")
	add("1.1.0")
	invite, err := w.client.Invite(ctx, InviteRequest{Nodes: []string{"n1"}})
	if err != nil {
		t.Fatal(err)
	}
	machine, err := simnode.New(simnode.Config{Dir: t.TempDir(), Token: invite.Invites[0].Token, Version: "1.0.0", Package: first, Logger: testLog(t),
		Timings: nodeagent.Timings{Heartbeat: 100 * time.Millisecond, Refresh: time.Second, RetryLeast: 20 * time.Millisecond}})
	if err != nil {
		t.Fatal(err)
	}
	running, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- machine.Run(running) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	view := func() (v projections.NodeView) {
		f, err := w.client.Fleet(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range f.Nodes {
			if n.Node == "n1" {
				v = n
			}
		}
		return v
	}
	w.until(t, "the node is heard", func() (bool, string) { v := view(); return v.Running == "1.0.0", fmt.Sprint(v) })

	js, err := jetstream.New(w.nc)
	if err != nil {
		t.Fatal(err)
	}
	log := events.NewLog(js)
	list, err := w.client.Releases(ctx)
	if err != nil {
		t.Fatal(err)
	}
	evil := list.Releases[0].Release // 1.1.0 stands for a package of the thief's
	evil.Signature = ""
	thiefD, thiefR := newSigningKey(t, events.KeyDelivery), newSigningKey(t, events.KeyRelease)
	forge := func(revision uint64, key *events.SigningKey, rel events.Release) {
		d := &events.Declared{Node: "n1", Revision: revision, Resources: []events.Resource{
			events.ResourceFromSpec(events.ResourceHost, events.HostPackage, events.HostSpec{Release: rel})}}
		if key != nil {
			if err := sign(key, d); err != nil {
				t.Fatal(err)
			}
		}
		_, before, err := log.Last(ctx, events.EventSubject(events.AggregateDeclaration, "n1"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := log.Append(ctx, events.New("n1", d, events.Origin{Source: "thief", Actor: "thief"}, time.Now()), before); err != nil {
			t.Fatal(err)
		}
	}
	reported := func(want string) {
		t.Helper()
		w.until(t, "the node reports: "+want, func() (bool, string) {
			var said []string
			for _, rec := range w.record(t) {
				f, err := rec.Event.Fact()
				if err != nil {
					t.Fatal(err)
				}
				if r, ok := f.(*events.NodeFailedToApply); ok && r.Resource == "declaration" {
					said = append(said, r.Error)
				}
			}
			return len(said) > 0 && strings.Contains(said[len(said)-1], want), strings.Join(said, "\n")
		})
	}
	forge(1, nil, evil)
	reported("refused: it is not signed")
	signed := evil
	if signed.Signature, err = thiefR.Sign(events.ReleaseText(signed)); err != nil {
		t.Fatal(err)
	}
	forge(2, thiefD, signed)
	reported("refused: it is signed by another key")
	// The delivery key stolen as well: what the release key did not sign is
	// refused all the same.
	stolen, err := ReadSigningKey(events.KeyDelivery, DeliveryKeyFile(w.dir))
	if err != nil {
		t.Fatal(err)
	}
	forge(3, stolen, signed)
	reported("version 1.1.0 is refused: it is signed by another key")
	if v := view(); v.Running != "1.0.0" || machine.Installed() != "1.0.0" || !strings.Contains(v.Waiting, "version 1.1.0 is refused") {
		t.Errorf("the node: %+v", v)
	}

	// The mesh's own work goes on, over a rotation of both keys.
	if _, err := w.client.RotateDelivery(ctx); err != nil {
		t.Fatal(err)
	}
	next := newSigningKey(t, events.KeyRelease)
	if r, err := w.client.RotateRelease(ctx, w.releaseKey(), next, true); err != nil || len(r.Unsigned) > 0 {
		t.Fatalf("%+v, %v", r, err)
	}
	_, err = w.client.StartRollout(ctx, StartRequest{Version: "1.1.0", Policy: events.Policy{Batches: []string{"100%"},
		Window: events.Duration(20 * time.Second), Soak: events.Duration(200 * time.Millisecond), Presence: events.Duration(5 * time.Second)}})
	if err != nil {
		t.Fatal(err)
	}
	w.until(t, "the node runs 1.1.0", func() (bool, string) { v := view(); return v.Running == "1.1.0", fmt.Sprint(v) })
	if machine.Installed() != "1.1.0" {
		t.Errorf("installed: %s", machine.Installed())
	}
}
