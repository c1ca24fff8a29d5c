package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"noxmesh/events"
	"noxmesh/projections"
	"noxmesh/rollout"
)

// whole is a whole server with an operator's client.
type whole struct {
	*Server
	dir    string
	client *Client
}

func startServer(t *testing.T, dir string) *whole {
	t.Helper()
	s, err := Start(testContext(t), Config{DataDir: dir, Listen: "127.0.0.1:0", Logger: testLog(t), PulseInterval: 50 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	w := &whole{Server: s, dir: dir}
	t.Cleanup(func() { w.stop(t) })
	if w.client, err = Dial(s.URL(), OperatorCredsFile(dir), CAFile(dir)); err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *whole) stop(t *testing.T) {
	t.Helper()
	if w.client != nil {
		w.client.Close()
	}
	if err := errors.Join(w.Err(), w.Stop()); err != nil {
		t.Error(err)
	}
}

// releaseKey is the mesh's first release key.
func (w *whole) releaseKey() *events.SigningKey {
	key, err := ReadSigningKey(events.KeyRelease, ReleaseKeyFile(w.dir))
	if err != nil {
		panic(err)
	}
	return key
}

// node has a node join and connects as it.
func (w *whole) node(t *testing.T, name string, labels map[string]string) *nats.Conn {
	t.Helper()
	nc, err := w.link(w.joined(t, name, labels))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc
}

// beat sends a heartbeat and waits until the fleet shows it.
func (w *whole) beat(t *testing.T, nc *nats.Conn, name, version string) {
	t.Helper()
	raw, err := json.Marshal(events.Heartbeat{StartID: name + version, Version: version, KnownGood: version, Architecture: "amd64", Retained: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := nc.Publish(events.HeartbeatSubject(name), raw); err != nil {
		t.Fatal(err)
	}
	w.until(t, name+" is heard", func() (bool, string) {
		f, err := w.client.Fleet(testContext(t))
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range f.Nodes {
			if n.Node == name && n.Running == version && n.LastHeard != nil {
				return true, ""
			}
		}
		return false, fmt.Sprint(f.Nodes)
	})
}

func (w *whole) until(t *testing.T, what string, ok func() (bool, string)) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	ctx := testContext(t)
	for {
		yes, state := ok()
		if yes {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("never came true: %s (%s)", what, state)
		}
	}
}

func TestCommandsAreRefusedInWords(t *testing.T) {
	w := startServer(t, t.TempDir())
	ctx := testContext(t)
	nc := w.node(t, "n1", map[string]string{"site": "ams"})
	w.beat(t, nc, "n1", "1.0.0")
	w.addRelease(t, "1.1.0")
	garbage := filepath.Join(t.TempDir(), "x.deb")
	if err := os.WriteFile(garbage, []byte("this is no package"), 0o600); err != nil {
		t.Fatal(err)
	}
	file := func(name, spec string) DeclareRequest {
		return DeclareRequest{Node: "n1", Resources: []events.Resource{{Type: events.ResourceFile, Name: name, Spec: json.RawMessage(spec)}}}
	}
	start := func(q StartRequest) error { _, err := w.client.StartRollout(ctx, q); return err }
	for _, c := range []struct {
		name string
		do   func() error
		want string // in the error
	}{
		{"unknown version", func() error { return start(StartRequest{Version: "9.9.9"}) }, `no release has version "9.9.9" (there are 1.1.0)`},
		{"empty cohort", func() error { return start(StartRequest{Version: "1.1.0", Selector: "site=lon"}) }, `no node matches "site=lon"`},
		{"malformed batches", func() error {
			return start(StartRequest{Version: "1.1.0", Policy: events.Policy{Batches: []string{"2", "many"}}})
		}, `batch "many" is neither`},
		{"negative window", func() error {
			return start(StartRequest{Version: "1.1.0", Policy: events.Policy{Window: events.Duration(-time.Second)}})
		}, "not positive"},
		{"no way back", func() error { return w.withoutParachute(t, nc, start) }, "retain no package of it"},
		{"no rollout yet", func() error { _, err := w.client.Rollout(ctx, "latest"); return err }, "there is no rollout yet"},
		{"bad name", func() error { _, err := w.client.Invite(ctx, InviteRequest{Nodes: []string{"*"}}); return err }, "is no node name"},
		{"bad label", func() error {
			_, err := w.client.Invite(ctx, InviteRequest{Nodes: []string{"n9"}, Labels: map[string]string{"a b": "c"}})
			return err
		}, "label"},
		{"no package", func() error { _, err := w.client.AddRelease(ctx, garbage, w.releaseKey(), false); return err }, "x.deb"},
		{"absent node", func() error { _, err := w.client.Declare(ctx, DeclareRequest{Node: "n7"}); return err }, `no node "n7" is enrolled`},
		{"relative path", func() error {
			_, err := w.client.Declare(ctx, file("etc/motd", `{"mode":"0644","content":""}`))
			return err
		}, "no clean absolute path"},
		{"unknown field", func() error {
			_, err := w.client.Declare(ctx, file("/etc/motd", `{"mode":"0644","content":"","immutable":true}`))
			return err
		}, `unknown field "immutable"`},
		{"host by hand", func() error {
			_, err := w.client.Declare(ctx, DeclareRequest{Node: "n1", Resources: []events.Resource{{Type: "host", Name: "x"}}})
			return err
		}, "cannot be declared by hand"},
		{"release never uploaded", func() error {
			_, err := ask[ReleaseAddReply](ctx, w.client, patience, cmdReleaseAdd, ReleaseAddRequest{Release: events.Release{
				Version: "3.0.0", Architecture: "amd64", File: "f", Size: 10, SHA256: strings.Repeat("0", 64)}})
			return err
		}, "is not whole in the store"},
		{"release that is another one", func() error {
			path := filepath.Join(t.TempDir(), "p.deb")
			if err := os.WriteFile(path, debSpec{comp: "gz"}.build(t), 0o600); err != nil {
				return err
			}
			r, err := ReadDeb(path)
			if err != nil {
				return err
			}
			r.Version = "9.0.0"
			r.File = events.PackageFile(r.Version, r.Architecture)
			if err := w.client.upload(ctx, path, r); err != nil {
				return err
			}
			_, err = ask[ReleaseAddReply](ctx, w.client, patience, cmdReleaseAdd, ReleaseAddRequest{Release: r})
			return err
		}, "it is 1.2.3 for amd64 in file nox-mesh-host_1.2.3_amd64.deb, and was said to be 9.0.0"},
		{"unknown command", func() error {
			_, err := ask[struct{}](ctx, w.client, patience, "no.such", struct{}{})
			return err
		}, "does not allow no.such"},
		{"field of a newer program", func() error {
			_, err := ask[struct{}](ctx, w.client, patience, cmdFleet, map[string]int{"new": 1})
			return err
		}, "another version"},
	} {
		err := c.do()
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: the answer is %v, want one with %q", c.name, err, c.want)
		}
	}
}

// withoutParachute starts a rollout while the node retains no package.
func (w *whole) withoutParachute(t *testing.T, nc *nats.Conn, start func(StartRequest) error) error {
	t.Helper()
	raw, err := json.Marshal(events.Heartbeat{StartID: "s", Version: "0.9.0", KnownGood: "0.9.0", Architecture: "amd64"})
	if err != nil {
		t.Fatal(err)
	}
	if err := nc.Publish(events.HeartbeatSubject("n1"), raw); err != nil {
		t.Fatal(err)
	}
	w.until(t, "the node is heard without a parachute", func() (bool, string) {
		f, err := w.client.Fleet(testContext(t))
		return err == nil && f.Nodes[0].Running == "0.9.0", fmt.Sprint(f.Nodes, err)
	})
	return start(StartRequest{Version: "1.1.0"})
}

func (w *whole) addRelease(t *testing.T, version string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "p.deb")
	if err := os.WriteFile(path, debSpec{control: strings.Replace(goodControl, "1.2.3", version, 1), comp: "gz"}.build(t), 0o600); err != nil {
		t.Fatal(err)
	}
	r, err := w.client.AddRelease(testContext(t), path, w.releaseKey(), false)
	if err != nil || r.Already {
		t.Fatalf("adding %s: already %v, %v", version, r.Already, err)
	}
	if r, err = w.client.AddRelease(testContext(t), path, w.releaseKey(), false); err != nil || !r.Already {
		t.Fatalf("adding %s again: already %v, %v", version, r.Already, err)
	}
}

func TestOneOfManyStartsWins(t *testing.T) {
	w := startServer(t, t.TempDir())
	w.beat(t, w.node(t, "n1", nil), "n1", "1.0.0")
	w.addRelease(t, "1.1.0")
	var (
		wg   sync.WaitGroup
		mu   sync.Mutex
		won  []*rollout.Status
		errs []error
	)
	for range 8 {
		wg.Go(func() {
			s, err := w.client.StartRollout(testContext(t), StartRequest{Version: "1.1.0"})
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				won = append(won, s)
			} else {
				errs = append(errs, err)
			}
		})
	}
	wg.Wait()
	if len(won) != 1 {
		t.Fatalf("%d of 8 starts won, want 1: %v", len(won), errs)
	}
	for _, err := range errs {
		if !strings.Contains(err.Error(), "is running over some of these nodes") {
			t.Errorf("a start was refused with: %v", err)
		}
	}
	s, err := w.client.AbortRollout(testContext(t), "r1", "test")
	if err != nil || s.State != projections.Aborted {
		t.Errorf("abort: %v, %v", s, err)
	}
	if _, err := w.client.StartRollout(testContext(t), StartRequest{Version: "1.1.0"}); err != nil {
		t.Errorf("a start after the abort is refused: %v", err)
	}
}

func TestDeclareKeepsTheHost(t *testing.T) {
	w := startServer(t, t.TempDir())
	nc := w.node(t, "n1", nil)
	sub, err := nc.SubscribeSync(events.DeclarationSubject("n1"))
	if err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	q := DeclareRequest{Node: "n1", Resources: []events.Resource{events.ResourceFromSpec(events.ResourceFile, "/etc/motd", events.FileSpec{Mode: "0644", Content: "hello\n"})}}
	r, err := w.client.Declare(testContext(t), q)
	if err != nil || r.Revision != 1 {
		t.Fatalf("declared revision %d, %v", r.Revision, err)
	}
	msg, err := sub.NextMsgWithContext(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	e, err := events.Decode(msg.Data)
	if err != nil {
		t.Fatal(err)
	}
	if e.Actor != FirstOperator || e.Cause == "" {
		t.Errorf("the event's actor is %q and its cause %q", e.Actor, e.Cause)
	}
	w.beat(t, nc, "n1", "1.0.0")
	w.addRelease(t, "1.1.0")
	if _, err := w.client.StartRollout(testContext(t), StartRequest{Version: "1.1.0"}); err != nil {
		t.Fatal(err)
	}
	if msg, err = sub.NextMsgWithContext(testContext(t)); err != nil {
		t.Fatal(err)
	}
	if e, err = events.Decode(msg.Data); err != nil {
		t.Fatal(err)
	}
	fact, err := e.Fact()
	if err != nil {
		t.Fatal(err)
	}
	d := fact.(*events.Declared)
	if d.Revision != 2 || len(d.Resources) != 2 || d.Resources[0].Type != events.ResourceFile || d.Host() == nil || d.Host().Version != "1.1.0" {
		t.Errorf("the rollout declared %+v", d)
	}
	if _, err := w.client.Declare(testContext(t), q); err == nil || !strings.Contains(err.Error(), "rollout r1 is running over") {
		t.Errorf("a declaration during a rollout is answered with %v", err)
	}
}

func TestServerStopsQuickly(t *testing.T) {
	w := startServer(t, t.TempDir())
	nc := w.node(t, "n1", nil)
	w.beat(t, nc, "n1", "1.0.0")
	begun := time.Now()
	if err := w.Stop(); err != nil {
		t.Error(err)
	}
	if took := time.Since(begun); took > 5*time.Second {
		t.Errorf("stopping took %s", took)
	}
	if _, err := w.client.Fleet(contextWithin(t, 2*time.Second)); err == nil {
		t.Error("a stopped server answers")
	}
}

func contextWithin(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// TestCommandGivenTwice: a client that had no answer gives its command again
// under the same id, and it is carried out once.
func TestCommandGivenTwice(t *testing.T) {
	w := startServer(t, t.TempDir())
	w.beat(t, w.node(t, "n1", nil), "n1", "1.0.0")
	w.addRelease(t, "1.1.0")
	msg := nats.NewMsg(events.APISubject(FirstOperator, cmdRolloutStart))
	msg.Header.Set(headerCommand, "the-same")
	msg.Data = []byte(`{"version":"1.1.0","policy":{"batches":null,"window":"0s","soak":"0s","presence":"0s","max_failed":0}}`)
	for range 2 {
		m, err := w.client.nc.RequestMsgWithContext(testContext(t), msg)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(m.Data), `"id":"r1"`) {
			t.Errorf("the answer is %s", m.Data)
		}
	}
	list, err := w.client.Rollouts(testContext(t))
	if err != nil || len(list.Rollouts) != 1 {
		t.Errorf("there are %d rollouts, %v", len(list.Rollouts), err)
	}
}
