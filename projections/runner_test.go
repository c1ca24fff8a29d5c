package projections

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"noxmesh/events"
)

const patience = 20 * time.Second

// logged is a broker with a log in it that a runner reads.
type logged struct {
	t   *testing.T
	js  jetstream.JetStream
	dir string // of snapshots
}

// newLogged has the recorded log of a version in EVENTS, and heartbeats of which
// the stream keeps the last four only.
func newLogged(t *testing.T) *logged {
	t.Helper()
	s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: -1, JetStream: true, StoreDir: t.TempDir(), NoSigs: true, NoLog: true})
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	if !s.ReadyForConnections(patience) {
		t.Fatal("the broker does not answer")
	}
	nc, err := nats.Connect("", nats.InProcessServer(s))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	l := &logged{t: t, js: js, dir: t.TempDir()}
	l.stream(jetstream.StreamConfig{Name: events.StreamEvents, Subjects: []string{"mesh.event.>"}})
	l.stream(jetstream.StreamConfig{Name: events.StreamHeartbeats, Subjects: []string{"mesh.heartbeat.*"}, MaxMsgs: 4})
	raw, err := os.ReadFile("../testdata/logs/0.2.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range strings.Split(strings.TrimSpace(string(raw)), "\n") {
		l.event([]byte(line))
	}
	for i := range 12 {
		l.beat([]string{"a", "b"}[i%2], fmt.Sprint("start", i/6))
	}
	return l
}

func (l *logged) stream(c jetstream.StreamConfig) {
	l.t.Helper()
	if _, err := l.js.CreateStream(l.t.Context(), c); err != nil {
		l.t.Fatal(err)
	}
}

func (l *logged) event(raw []byte) {
	l.t.Helper()
	e, err := events.Decode(raw)
	if err != nil {
		l.t.Fatal(err)
	}
	subject, err := e.StreamSubject()
	if err != nil {
		subject = "mesh.event.node.unknown"
	}
	if _, err := l.js.Publish(l.t.Context(), subject, raw); err != nil {
		l.t.Fatal(err)
	}
}

func (l *logged) beat(node, start string) {
	l.t.Helper()
	raw, err := json.Marshal(events.Heartbeat{StartID: start, Version: "1.1.0", KnownGood: "1.1.0", Revision: 1, Architecture: "amd64"})
	if err == nil {
		_, err = l.js.Publish(l.t.Context(), events.HeartbeatSubject(node), raw)
	}
	if err != nil {
		l.t.Fatal(err)
	}
}

// run runs a runner until it has read everything, and stops it when asked.
func (l *logged) run(wait func(r *Runner) <-chan struct{}) (r *Runner, stop func() error) {
	l.t.Helper()
	return l.runWith(nil, wait)
}

// runWith is run, and lets a rebuild swap only once a channel is closed.
func (l *logged) runWith(swapWhen <-chan struct{}, wait func(r *Runner) <-chan struct{}) (r *Runner, stop func() error) {
	l.t.Helper()
	r = NewRunner(l.js, events.NewLog(l.js))
	r.Dir, r.swapWhen = l.dir, swapWhen
	ctx, cancel := context.WithCancel(l.t.Context())
	end := make(chan error, 1)
	go func() { end <- r.Run(ctx) }()
	stopped := false
	stop = func() error {
		if stopped {
			return nil
		}
		stopped = true
		cancel()
		if err := <-end; !errors.Is(err, context.Canceled) {
			return err
		}
		return nil
	}
	l.t.Cleanup(func() { _ = stop() })
	select {
	case <-wait(r):
	case err := <-end:
		end <- err
	case <-time.After(patience):
		l.t.Fatal("the runner does not get there")
	}
	return r, stop
}

// text is a state in a form in which equal states are equal.
func text(t *testing.T, m *Mesh) string {
	t.Helper()
	raw, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	// Lists that are empty and lists that are not there are the same.
	return strings.NewReplacer("[]", "null", "{}", "null").Replace(string(raw))
}

func stateOf(t *testing.T, r *Runner) (out string) {
	r.View(func(m *Mesh) { out = text(t, m) })
	return out
}

// TestSnapshotGoesOn: what a start makes of a snapshot and what came after it
// is what the runner before would have made of it, and knows what is in the
// streams no more.
func TestSnapshotGoesOn(t *testing.T) {
	l := newLogged(t)
	first, stop := l.run((*Runner).Settled)
	first.View(func(m *Mesh) {
		if len(m.Nodes["a"].Runs) != 1 {
			t.Fatalf("of the heartbeats that are kept, node a has runs %v", m.Nodes["a"].Runs)
		}
	})
	l.beat("a", "start2")
	until(t, first, func(m *Mesh) bool { return m.HeartbeatSeq == 13 })
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	for i := range 6 { // all that was kept before is gone
		l.beat("b", fmt.Sprint("start", 3+i))
	}
	second, stop := l.run((*Runner).Settled)
	second.View(func(m *Mesh) {
		if k := len(m.Nodes["a"].Runs); k != 2 || m.EventSeq != 38 || m.HeartbeatSeq != 19 {
			t.Errorf("node a has %d runs at event %d and heartbeat %d, want 2, 38 and 19", k, m.EventSeq, m.HeartbeatSeq)
		}
		if n := len(m.Rollouts["r1"].Members); n != 3 {
			t.Errorf("r1 has %d members, want 3", n)
		}
	})
	want := stateOf(t, second)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	third, _ := l.run((*Runner).Settled)
	if got := stateOf(t, third); got != want {
		t.Errorf("after another start the state is\n%s\nand was\n%s", got, want)
	}
}

// TestSnapshotLaw: a snapshot at any event, and the rest, is a full fold.
func TestSnapshotLaw(t *testing.T) {
	paths, err := filepath.Glob("../testdata/logs/*.jsonl")
	if err != nil || len(paths) < 2 {
		t.Fatalf("recorded logs: %v, %v", paths, err)
	}
	for _, path := range paths {
		raw, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		var log []events.Record
		for _, line := range strings.Split(strings.TrimSpace(string(raw)), "\n") {
			e, err := events.Decode([]byte(line))
			if err != nil {
				t.Fatal(err)
			}
			log = append(log, events.Record{Seq: uint64(len(log) + 1), Event: e})
		}
		fold := func(m *Mesh, log []events.Record) *Mesh {
			for _, rec := range log {
				if err := m.ApplyEvent(rec); err != nil {
					t.Fatal(err)
				}
			}
			return m
		}
		want := fold(NewMesh(), log)
		for cut := range log {
			var b strings.Builder
			if err := fold(NewMesh(), log[:cut]).Encode(&b); err != nil {
				t.Fatal(err)
			}
			m, err := DecodeMesh(strings.NewReader(b.String()))
			if err != nil {
				t.Fatal(err)
			}
			fold(m, log[cut:])
			if text(t, m) != text(t, want) {
				t.Fatalf("%s: a snapshot after event %d leads to\n%s\nand a full fold to\n%s", path, cut, text(t, m), text(t, want))
			}
			for id, r := range want.Rollouts {
				for node, member := range r.Members {
					a, b := member.Before(), m.Rollouts[id].Members[node].Before()
					if (a == nil) != (b == nil) || a != nil && a.Declared.Revision != b.Declared.Revision {
						t.Fatalf("%s: after event %d node %s had %v before %s, want %v", path, cut, node, b, id, a)
					}
				}
			}
		}
	}
}

// TestSnapshotDamaged: whatever became of the file, a start leads to the same
// state; it only takes longer.
func TestSnapshotDamaged(t *testing.T) {
	l := newLogged(t)
	first, stop := l.run((*Runner).Settled)
	want := stateOf(t, first)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(l.dir, snapshotFile)
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name  string
		write []byte
	}{
		{"empty", nil},
		{"cut off", whole[:len(whole)/2]},
		{"one byte short", whole[:len(whole)-1]},
		{"a byte changed", append(append(append([]byte{}, whole[:200]...), whole[200]^1), whole[201:]...)},
		{"something else", []byte(strings.Repeat("x", 4000))},
	} {
		if err := os.WriteFile(path, c.write, 0o600); err != nil {
			t.Fatal(err)
		}
		left := filepath.Join(l.dir, ".snapshot123456") // by a write that was killed
		if err := os.WriteFile(left, whole[:100], 0o600); err != nil {
			t.Fatal(err)
		}
		r, stop := l.run((*Runner).Settled)
		if got := stateOf(t, r); got != want {
			t.Errorf("%s: the state is\n%s\nwant\n%s", c.name, got, want)
		}
		if _, err := os.Stat(left); err == nil {
			t.Errorf("%s: what a killed write left is still there", c.name)
		}
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		if head, _, err := readSnapshot(l.dir); err != nil || head.Events.Seq != 38 {
			t.Errorf("%s: no whole snapshot was written: %v", c.name, err)
		}
	}
}

// TestSnapshotOfMoreThanTheLog: a log that lacks what was folded is an alarm; one
// that was made anew is folded anew.
func TestSnapshotOfMoreThanTheLog(t *testing.T) {
	l := newLogged(t)
	_, stop := l.run((*Runner).Settled)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	head, sections, err := readSnapshot(l.dir)
	if err != nil {
		t.Fatal(err)
	}
	shorter := head
	shorter.Events.Seq += 2
	other := head
	other.EventID = "another"
	for _, c := range []struct {
		name string
		head snapshotHead
		want string
	}{
		{"the log is shorter", shorter, "it ends with event 38, and had 40 on"},
		{"another event is there", other, "event 38 is not the one that it was"},
	} {
		if err := writeSnapshot(l.dir, c.head, sections...); err != nil {
			t.Fatal(err)
		}
		_, stop := l.run((*Runner).Settled)
		if err := stop(); !errors.Is(err, ErrTruncated) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: the runner ends with %v", c.name, err)
		}
	}
	head.Events.Created = head.Events.Created.Add(-time.Hour)
	if err := writeSnapshot(l.dir, head, sections...); err != nil {
		t.Fatal(err)
	}
	r, _ := l.run((*Runner).Settled)
	r.View(func(m *Mesh) {
		if m.EventSeq != 38 {
			t.Errorf("a log that is another one is folded to %d", m.EventSeq)
		}
	})
}

// TestNewVersionIsBuiltBeside: what another version of the program folded is
// shown until this one has folded the log, and not decided on.
func TestNewVersionIsBuiltBeside(t *testing.T) {
	l := newLogged(t)
	_, stop := l.run((*Runner).Settled)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	head, sections, err := readSnapshot(l.dir)
	if err != nil {
		t.Fatal(err)
	}
	m, err := DecodeMesh(strings.NewReader(string(sections[0])))
	if err != nil {
		t.Fatal(err)
	}
	m.Nodes["a"].Labels = map[string]string{"folded": "wrong"}
	var wrong strings.Builder
	if err := m.Encode(&wrong); err != nil {
		t.Fatal(err)
	}
	head.Version = Version - 1
	if err := writeSnapshot(l.dir, head, []byte(wrong.String()), sections[1]); err != nil {
		t.Fatal(err)
	}
	swap := make(chan struct{})
	r, stop := l.runWith(swap, (*Runner).Ready)
	l.beat("b", "meanwhile") // what is shown goes on, too
	until(t, r, func(m *Mesh) bool { return m.HeartbeatSeq == 13 && m.EventSeq == 38 })
	r.View(func(m *Mesh) {
		if m.Nodes["a"].Labels["folded"] != "wrong" || closed(r.Settled()) {
			t.Errorf("until the rebuild is done node a has labels %v", m.Nodes["a"].Labels)
		}
	})
	close(swap)
	select {
	case <-r.Settled():
	case <-time.After(patience):
		t.Fatal("the log is not folded anew")
	}
	r.View(func(m *Mesh) {
		if m.Nodes["a"].Labels["folded"] != "" || m.EventSeq != 38 {
			t.Errorf("after the rebuild node a has labels %v at event %d", m.Nodes["a"].Labels, m.EventSeq)
		}
	})
	l.beat("a", "later") // goes on
	until(t, r, func(m *Mesh) bool { return m.HeartbeatSeq == 14 })
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	if head, _, err := readSnapshot(l.dir); err != nil || head.Version != Version {
		t.Errorf("the snapshot after it is of version %d: %v", head.Version, err)
	}
}

// TestRebuildIsCutOff: a server that is stopped before the log is folded anew does
// not take what another version made of it for its own.
func TestRebuildIsCutOff(t *testing.T) {
	l := newLogged(t)
	_, stop := l.run((*Runner).Settled)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	head, sections, err := readSnapshot(l.dir)
	if err != nil {
		t.Fatal(err)
	}
	head.Version = Version - 1
	if err := writeSnapshot(l.dir, head, sections...); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		r, stop := l.runWith(make(chan struct{}), (*Runner).Ready)
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		if closed(r.Settled()) {
			t.Fatal("it settled before it had folded anything")
		}
		if left, _, err := readSnapshot(l.dir); err != nil || left.Version != Version-1 {
			t.Fatalf("it leaves a snapshot of version %d: %v", left.Version, err)
		}
	}
	_, stop = l.run((*Runner).Settled)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	if left, _, err := readSnapshot(l.dir); err != nil || left.Version != Version {
		t.Errorf("in the end there is a snapshot of version %d: %v", left.Version, err)
	}
}

// TestUnknownEvents: one that a newer program writes is left out while the log
// is followed, and refused when all is folded anew.
func TestUnknownEvents(t *testing.T) {
	l := newLogged(t)
	r, stop := l.run((*Runner).Settled)
	l.event([]byte(`{"specversion":"1.0","id":"x1","type":"mesh.node.teleported.v1","source":"s","subject":"a","time":"2026-11-29T12:00:00Z","actor":"o","cause":"c","data":{}}`))
	until(t, r, func(m *Mesh) bool { return m.EventSeq == 39 && m.Skipped == 1 })
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	_, stop = l.run((*Runner).Settled) // from the snapshot
	if err := stop(); err != nil {
		t.Errorf("a start from a snapshot with an unknown event in it: %v", err)
	}
	head, sections, err := readSnapshot(l.dir)
	if err != nil {
		t.Fatal(err)
	}
	head.Version = Version - 1
	for name, before := range map[string]func() error{
		"no snapshot":               func() error { return os.Remove(filepath.Join(l.dir, snapshotFile)) },
		"another version's rebuild": func() error { return writeSnapshot(l.dir, head, sections...) },
	} {
		if err := before(); err != nil {
			t.Fatal(err)
		}
		_, stop := l.run((*Runner).Settled)
		if err := stop(); !errors.Is(err, events.ErrUnknownType) || !strings.Contains(err.Error(), "event 39") {
			t.Errorf("%s: the runner ends with %v", name, err)
		}
	}
}

func until(t *testing.T, r *Runner, ok func(m *Mesh) bool) {
	t.Helper()
	timeout := time.After(patience)
	for {
		changed := r.Changed()
		var done bool
		r.View(func(m *Mesh) { done = ok(m) })
		if done {
			return
		}
		select {
		case <-changed:
		case <-timeout:
			t.Fatal("the state does not get there")
		}
	}
}
