package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"noxmesh/events"
)

func declare(t testing.TB, m *mesh, node string, revision, expected uint64) uint64 {
	t.Helper()
	e := events.New(node, &events.Declared{Node: node, Revision: revision}, events.Origin{Source: "test", Actor: "test"}, time.Now())
	seq, err := events.NewLog(m.js).Append(testContext(t), e, expected)
	if err != nil {
		t.Fatal(err)
	}
	return seq
}

func readAll(t testing.TB, m *mesh, stream string) []events.Message {
	t.Helper()
	var all []events.Message
	err := events.ReadStream(testContext(t), m.js, stream, events.ReadOptions{}, func(msg events.Message) error {
		all = append(all, msg)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// waitDeclared waits until the broker has derived the nodes' declarations: it
// does that a moment after the event is in the log, also across a restart.
func waitDeclared(t testing.TB, m *mesh, nodes ...string) {
	t.Helper()
	wanted := make(map[string]bool)
	for _, n := range nodes {
		wanted[events.DeclaredSubject(n)] = true
	}
	all := errors.New("all there")
	err := events.ReadStream(testContext(t), m.js, events.StreamDeclarations, events.ReadOptions{Follow: true}, func(msg events.Message) error {
		delete(wanted, msg.Subject)
		if len(wanted) == 0 {
			return all
		}
		return nil
	})
	if !errors.Is(err, all) {
		t.Fatalf("waiting for %v: %v", wanted, err)
	}
}

func wantError(t testing.TB, err error, parts ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error, want one with %q", parts)
	}
	for _, p := range parts {
		if !strings.Contains(err.Error(), p) {
			t.Errorf("error %q does not say %q", err, p)
		}
	}
}

func TestRestartKeepsEverything(t *testing.T) {
	dir := t.TempDir()
	m := startMesh(t, dir)
	ctx := testContext(t)
	for i := range uint64(20) {
		declare(t, m, fmt.Sprintf("node-%d", i), 1, 0)
	}
	node := connectNode(t, m, "node-1")
	if err := node.Publish(events.HeartbeatSubject("node-1"), []byte("beat")); err != nil {
		t.Fatal(err)
	}
	if _, err := m.js.Publish(ctx, events.ReportSubject("node-1", "confirmed"), []byte("report")); err != nil {
		t.Fatal(err)
	}
	creds, _, err := m.identity.NodeCreds("node-2")
	if err != nil {
		t.Fatal(err)
	}
	before := readAll(t, m, events.StreamEvents)
	m.stop(t)

	m = startMesh(t, dir)
	if after := readAll(t, m, events.StreamEvents); !reflect.DeepEqual(before, after) {
		t.Errorf("the log was\n%v\nand is\n%v", before, after)
	}
	if n := len(readAll(t, m, events.StreamReports)); n != 1 {
		t.Errorf("%d reports, want 1", n)
	}
	// A credential from before is good after, and so is the derived stream.
	waitDeclared(t, m, "node-2")
	old := connectUser(t, m, creds, events.InboxPrefix("node", "node-2"))
	msg, err := old.RequestWithContext(ctx, directGet(events.StreamDeclarations, events.DeclaredSubject("node-2")), nil)
	if err != nil || len(msg.Data) == 0 {
		t.Errorf("Direct Get of the declaration after a restart: %v %v", msg, err)
	}
}

func TestSecondServerIsRefused(t *testing.T) {
	m := startMesh(t, t.TempDir())
	config := BrokerConfig{DataDir: m.dir, Listen: "127.0.0.1:0", Identity: m.identity, Logger: testLog(t)}
	_, err := StartBroker(config)
	wantError(t, err, m.dir, "in use by another server", fmt.Sprintf("process %d", os.Getpid()), "--data-dir")
	if err := m.broker.Healthy(); err != nil {
		t.Error("the first server suffered:", err)
	}
	m.stop(t)
	b, err := StartBroker(config)
	if err != nil {
		t.Fatal("the directory is not free after the first server stopped:", err)
	}
	if err := b.Shutdown(testContext(t)); err != nil {
		t.Error(err)
	}
}

func TestStartRefusals(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	id, err := LoadOrCreateIdentity(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name   string
		config BrokerConfig
		want   []string
	}{
		{"port in use", BrokerConfig{DataDir: dir, Listen: taken.Addr().String()}, []string{taken.Addr().String(), "port is in use", "--listen"}},
		{"foreign address", BrokerConfig{DataDir: dir, Listen: "192.0.2.1:0"}, []string{"192.0.2.1:0", "--listen"}},
		{"no port", BrokerConfig{DataDir: dir, Listen: "127.0.0.1"}, []string{"127.0.0.1", "--listen HOST:PORT"}},
		{"bad port", BrokerConfig{DataDir: dir, Listen: "127.0.0.1:nats"}, []string{`"nats" is no port`}},
		{"no directory", BrokerConfig{DataDir: "", Listen: "127.0.0.1:0"}, []string{"--data-dir"}},
		{"directory cannot be made", BrokerConfig{DataDir: filepath.Join(file, "data"), Listen: "127.0.0.1:0"}, []string{file, "make it writable"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.config.Identity, tt.config.Logger = id, testLog(t)
			b, err := StartBroker(tt.config)
			if err == nil {
				_ = b.Shutdown(testContext(t))
			}
			wantError(t, err, tt.want...)
		})
	}
	// A refused start leaves the directory free.
	lock, err := lockDataDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := lock.release(); err != nil {
		t.Error(err)
	}
}

// A stream that is on the disk and does not load must not come back empty.
func TestDamagedStreamIsRefused(t *testing.T) {
	dir := t.TempDir()
	m := startMesh(t, dir)
	declare(t, m, "a", 1, 0)
	m.stop(t)
	metas, err := filepath.Glob(filepath.Join(dir, "jetstream", "*", "streams", events.StreamEvents, "meta.inf"))
	if err != nil || len(metas) != 1 {
		t.Fatalf("description of the log on the disk: %v %v", metas, err)
	}
	if err := os.WriteFile(metas[0], []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = StartBroker(BrokerConfig{DataDir: dir, Listen: "127.0.0.1:0", Identity: m.identity, Logger: testLog(t).Level(6)})
	wantError(t, err, events.StreamEvents, "backup")
}

func TestShutdownIsQuickAndRepeatable(t *testing.T) {
	m := startMesh(t, t.TempDir())
	for i := range 20 {
		name := fmt.Sprintf("node-%d", i)
		node := connectNode(t, m, name)
		if _, err := node.SubscribeSync(events.DeclarationSubject(name)); err != nil {
			t.Fatal(err)
		}
		declare(t, m, name, 1, 0)
	}
	follow, stopFollowing := context.WithCancel(t.Context())
	caught, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		_ = events.ReadStream(follow, m.js, events.StreamEvents, events.ReadOptions{Follow: true, CaughtUp: func() { close(caught) }},
			func(events.Message) error { return nil })
	}()
	<-caught
	begin := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if err := m.broker.Shutdown(ctx); err != nil {
		t.Error(err)
	}
	t.Logf("stopped after %s", time.Since(begin))
	if err := m.broker.Shutdown(ctx); err != nil {
		t.Error("stopping twice:", err)
	}
	stopFollowing()
	<-done
}

func TestShutdownIsBounded(t *testing.T) {
	m := startMesh(t, t.TempDir())
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := m.broker.Shutdown(ctx); err != nil {
		wantError(t, err, "still stopping") // it may also have been quicker than the select
	}
}

func TestConnectWithoutTime(t *testing.T) {
	m := startMesh(t, t.TempDir())
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := m.broker.Connect(ctx)
	wantError(t, err, "connecting to the broker", "canceled")
}
