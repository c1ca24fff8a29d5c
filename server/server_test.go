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
	if w.client, err = Dial(s.URL(), OperatorCredsFile(dir)); err != nil {
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

// node enrols a node and connects as it.
func (w *whole) node(t *testing.T, name string, labels map[string]string) *nats.Conn {
	t.Helper()
	r, err := w.client.Enroll(testContext(t), EnrollRequest{Node: name, Labels: labels})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), name+".creds")
	if err := os.WriteFile(file, []byte(r.Creds), 0o600); err != nil {
		t.Fatal(err)
	}
	nc, err := nats.Connect(w.URL(), nats.UserCredentials(file), nats.CustomInboxPrefix(events.InboxPrefix("node", name)))
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
			if n.Node == name && n.Running == version {
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

// report sends a report and waits for the broker to have it.
func report(t *testing.T, nc *nats.Conn, node, kind string, raw []byte) {
	t.Helper()
	if _, err := nc.RequestWithContext(testContext(t), events.ReportSubject(node, kind), raw); err != nil {
		t.Fatal(err)
	}
}

func confirmed(t *testing.T, id, version string) []byte {
	t.Helper()
	raw, err := json.Marshal(events.NewReport(id, time.Unix(0, 0), &events.NodeConfirmed{Version: version, StartID: "s"}))
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// nodeEvents gives the types and summaries of the events about a node.
func (w *whole) nodeEvents(t *testing.T, name string) []events.Fact {
	t.Helper()
	var out []events.Fact
	err := w.client.Log().Read(testContext(t), events.ReadOptions{Subjects: []string{events.EventSubject(events.AggregateNode, name)}},
		func(rec events.Record) error {
			fact, err := rec.Event.Fact()
			out = append(out, fact)
			return err
		})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func (w *whole) waitFacts(t *testing.T, name string, n int) []events.Fact {
	t.Helper()
	var facts []events.Fact
	w.until(t, fmt.Sprintf("%d events about %s", n, name), func() (bool, string) {
		facts = w.nodeEvents(t, name)
		return len(facts) >= n, fmt.Sprint(facts)
	})
	if len(facts) != n {
		t.Fatalf("%d events about %s, want %d: %v", len(facts), name, n, facts)
	}
	return facts
}

func TestReportBecomesOneEvent(t *testing.T) {
	dir := t.TempDir()
	w := startServer(t, dir)
	nc := w.node(t, "n1", nil)
	report(t, nc, "n1", events.ReportConfirmed, confirmed(t, "a", "1.0.0"))
	report(t, nc, "n1", events.ReportConfirmed, confirmed(t, "a", "1.0.0")) // sent again: its answer was lost
	report(t, nc, "n1", events.ReportConfirmed, confirmed(t, "b", "1.1.0"))
	facts := w.waitFacts(t, "n1", 3) // enrolled, a, b
	first, ok := facts[1].(*events.NodeConfirmed)
	if !ok || first.Version != "1.0.0" || first.ReportID != "a" || first.ReportSeq != 1 {
		t.Errorf("the first report became %#v", facts[1])
	}
	// After a restart nothing is recorded again, and a repeat is still known.
	w.stop(t)
	w = startServer(t, dir)
	nc, err := nats.Connect(w.URL(), nats.UserCredentials(credsOf(t, w, "n1")), nats.CustomInboxPrefix(events.InboxPrefix("node", "n1")))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	report(t, nc, "n1", events.ReportConfirmed, confirmed(t, "b", "1.1.0"))
	report(t, nc, "n1", events.ReportConfirmed, confirmed(t, "c", "1.2.0"))
	facts = w.waitFacts(t, "n1", 5) // and enrolled again, c
	if f, ok := facts[4].(*events.NodeConfirmed); !ok || f.ReportID != "c" {
		t.Errorf("the last event is %#v", facts[4])
	}
}

func credsOf(t *testing.T, w *whole, node string) string {
	t.Helper()
	r, err := w.client.Enroll(testContext(t), EnrollRequest{Node: node, Again: true})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "again.creds")
	if err := os.WriteFile(file, []byte(r.Creds), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestBadReportsAreRejectedOnceAndHarmNobody(t *testing.T) {
	w := startServer(t, t.TempDir())
	nc, other := w.node(t, "n1", nil), w.node(t, "n2", nil)
	for _, bad := range []struct{ kind, payload string }{
		{events.ReportConfirmed, "\x00\xff garbage"},
		{events.ReportConfirmed, `{"id":"x"}`},
		{events.ReportConfirmed, `{"id":"x","data":{"version":"* \u001b[2J","start_id":"s"}}`},
		{events.ReportRolledBack, `{"id":"x","data":[]}`},
		{"no-such-kind", `{"id":"x","data":{}}`},
		{events.ReportConfirmed, `{"id":"` + strings.Repeat("x", 100) + `","data":{}}`},
	} {
		report(t, nc, "n1", bad.kind, []byte(bad.payload))
	}
	report(t, nc, "n1", events.ReportConfirmed, confirmed(t, "good", "1.0.0"))
	report(t, other, "n2", events.ReportConfirmed, confirmed(t, "good", "1.0.0"))
	facts := w.waitFacts(t, "n1", 3) // enrolled, one rejection for all the bad ones, the good one
	rejected, ok := facts[1].(*events.NodeReportRejected)
	if !ok || !strings.Contains(rejected.Reason, "does not read") || rejected.ReportSeq != 1 {
		t.Errorf("the rejection is %#v", facts[1])
	}
	if f, ok := facts[2].(*events.NodeConfirmed); !ok || f.ReportID != "good" {
		t.Errorf("the good report became %#v", facts[2])
	}
	w.waitFacts(t, "n2", 2)

	// A bad heartbeat is counted against its node, and the next good one counts.
	if err := nc.Publish(events.HeartbeatSubject("n1"), []byte(`{"version":"nonsense"}`)); err != nil {
		t.Fatal(err)
	}
	w.beat(t, nc, "n1", "1.0.0")
	f, err := w.client.Fleet(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	if p := fmt.Sprint(f.Nodes[0].Problems); !strings.Contains(p, "1 of its heartbeats did not read") || !strings.Contains(p, "report was rejected") {
		t.Errorf("the fleet shows these problems: %s", p)
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
		{"enrolled twice", func() error { _, err := w.client.Enroll(ctx, EnrollRequest{Node: "n1"}); return err }, "enrolled already"},
		{"bad name", func() error { _, err := w.client.Enroll(ctx, EnrollRequest{Node: "*"}); return err }, "is no node name"},
		{"bad label", func() error {
			_, err := w.client.Enroll(ctx, EnrollRequest{Node: "n9", Labels: map[string]string{"a b": "c"}})
			return err
		}, "label"},
		{"no package", func() error { _, err := w.client.AddRelease(ctx, garbage, false); return err }, "x.deb"},
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
		{"unknown command", func() error {
			_, err := ask[struct{}](ctx, w.client, patience, "no.such", struct{}{})
			return err
		}, `knows no command "no.such"`},
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
	r, err := w.client.AddRelease(testContext(t), path, false)
	if err != nil || r.Already {
		t.Fatalf("adding %s: already %v, %v", version, r.Already, err)
	}
	if r, err = w.client.AddRelease(testContext(t), path, false); err != nil || !r.Already {
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
