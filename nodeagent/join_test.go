package nodeagent_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"

	"noxmesh/events"
	"noxmesh/events/anchor"
	"noxmesh/nodeagent"
	"noxmesh/projections"
	"noxmesh/server"
)

// doorMesh is a whole server, since joining is about both sides.
type doorMesh struct {
	*server.Server
	t      *testing.T
	dir    string
	client *server.Client
}

func newDoorMesh(t *testing.T, c server.Config) *doorMesh {
	t.Helper()
	c.DataDir, c.Logger = t.TempDir(), zerolog.Nop()
	if c.Listen == "" {
		c.Listen = "127.0.0.1:0"
	}
	s, err := server.Start(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	m := &doorMesh{Server: s, t: t, dir: c.DataDir}
	t.Cleanup(func() {
		if err := errors.Join(s.Err(), s.Stop()); err != nil {
			t.Error(err)
		}
	})
	if m.client, err = server.Dial(s.URL(), server.OperatorCredsFile(m.dir), server.CAFile(m.dir)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.client.Close)
	return m
}

func (m *doorMesh) invite(node string) string {
	m.t.Helper()
	r, err := m.client.Invite(m.t.Context(), server.InviteRequest{Nodes: []string{node}})
	if err != nil {
		m.t.Fatal(err)
	}
	return r.Invites[0].Token
}

func factsOf[T events.Fact](m *doorMesh, node string) []T {
	m.t.Helper()
	var out []T
	err := m.client.ReadLog(m.t.Context(), server.LogRequest{Node: node}, false, func(rec events.Record) error {
		fact, err := rec.Event.Fact()
		if f, ok := fact.(T); ok {
			out = append(out, f)
		}
		return err
	})
	if err != nil {
		m.t.Fatal(err)
	}
	return out
}

// waitFor waits for what does happen.
func (m *doorMesh) waitFor(what string, ok func() bool) {
	m.t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(patience); !ok(); <-tick.C {
		if time.Now().After(deadline) {
			m.t.Fatalf("never came true: %s", what)
		}
	}
}

func (m *doorMesh) heard(node string) bool {
	f, err := m.client.Fleet(m.t.Context())
	if err != nil {
		m.t.Fatal(err)
	}
	return slices.ContainsFunc(f.Nodes, func(n projections.NodeView) bool { return n.Node == node && n.LastHeard != nil })
}

// joinedBox is a machine that has joined.
func (m *doorMesh) joinedBox(node string) (*box, string) {
	m.t.Helper()
	b, dir := newBox(m.t, "1.0.0"), m.t.TempDir()
	if _, err := nodeagent.Join(m.t.Context(), nodeagent.JoinConfig{Dir: dir, Token: m.invite(node)}); err != nil {
		m.t.Fatal(err)
	}
	return b, dir
}

func (b *box) joinedConfig(dir string) nodeagent.Config {
	cfg := b.config(nodeagent.NodeCredsFile(dir), must(nodeagent.URLIn(dir)))
	cfg.DoorFile, cfg.CAFile, cfg.PinsFile = nodeagent.DoorCredsFile(dir), nodeagent.CAFile(dir), nodeagent.PinsFile(dir)
	return cfg
}

func TestJoinWritesTheIdentity(t *testing.T) {
	m := newDoorMesh(t, server.Config{})
	dir := filepath.Join(t.TempDir(), "etc") // is made
	id := filepath.Join(t.TempDir(), "machine-id")
	mustDo(os.WriteFile(id, []byte("0123456789abcdef0123456789abcdef\n"), 0o444))
	mustDo(os.Mkdir(dir, 0o755))
	mustDo(os.WriteFile(filepath.Join(dir, "environment"), []byte("HTTPS_PROXY=x\nNOX_MESH_URL=nats://old:4222\nA=b"), 0o644))
	j, err := nodeagent.Join(t.Context(), nodeagent.JoinConfig{Dir: dir, Token: " " + m.invite("n1") + "\n", MachineIDFile: id})
	if err != nil || j.Node != "n1" || j.URL != m.URL() {
		t.Fatalf("joined: %+v, %v", j, err)
	}
	var names []string
	for _, e := range must(os.ReadDir(dir)) {
		names = append(names, e.Name())
		if info := must(e.Info()); info.Mode() != 0o600 {
			t.Errorf("%s has mode %s", e.Name(), info.Mode())
		}
	}
	if want := []string{"ca.pem", "door.creds", "environment", "node.creds", "pins.json"}; !slices.Equal(names, want) {
		t.Errorf("there are %v, want %v", names, want)
	}
	if got := string(must(os.ReadFile(filepath.Join(dir, "environment")))); got != "HTTPS_PROXY=x\nA=b\nNOX_MESH_URL="+m.URL()+"\n" {
		t.Errorf("the environment is %q", got)
	}
	if string(must(os.ReadFile(nodeagent.CAFile(dir)))) != string(must(os.ReadFile(server.CAFile(m.dir)))) {
		t.Error("the CA is not the mesh's")
	}
	must(events.LoadPins(nodeagent.PinsFile(dir)))
	f := factsOf[*events.NodeEnrolled](m, "n1")
	if len(f) != 1 || f[0].MachineID != nodeagent.MachineID(id) || f[0].MachineID == "" || strings.Contains(f[0].MachineID, "01234567") {
		t.Errorf("recorded is %+v", f)
	}
}

// whose says of which node the identity in a directory is; it must be of one.
func whose(t *testing.T, dir string) string {
	t.Helper()
	node, err := nodeagent.NodeName(nodeagent.NodeCredsFile(dir))
	if err != nil {
		return ""
	}
	if door := must(nodeagent.NodeName(nodeagent.DoorCredsFile(dir))); door != node {
		t.Errorf("the link is %s's, the door %s's", node, door)
	}
	must(events.LoadPins(nodeagent.PinsFile(dir)))
	must(anchor.File(nodeagent.CAFile(dir)))
	if must(nodeagent.URLIn(dir)) == "" {
		t.Error("there is no address")
	}
	return node
}

// TestJoinCutOffAnywhere cuts the power after each step of a join: the machine
// has its old identity or the new one, whole, and the same token ends the join.
func TestJoinCutOffAnywhere(t *testing.T) {
	m := newDoorMesh(t, server.Config{})
	for at := 1; ; at++ {
		dir, node := t.TempDir(), fmt.Sprintf("n%d", at)
		if _, err := nodeagent.Join(t.Context(), nodeagent.JoinConfig{Dir: dir, Token: m.invite(fmt.Sprintf("old%d", at))}); err != nil {
			t.Fatal(err)
		}
		s := &stopper{at: at}
		c := nodeagent.JoinConfig{Dir: dir, Token: m.invite(node)}
		c.CutAfter(s.after)
		_, err := nodeagent.Join(t.Context(), c)
		if err == nil {
			if at < 12 {
				t.Errorf("a join has only the steps %q", s.steps)
			}
			break
		}
		step := s.steps[at-1]
		want := fmt.Sprintf("old%d", at)
		if strings.HasPrefix(step, "joined") || strings.HasPrefix(step, "placed") {
			want = node
		}
		if _, err := nodeagent.SettleJoin(dir); err != nil { // the host starts
			t.Errorf("after %s: %v", step, err)
		}
		if got := whose(t, dir); got != want {
			t.Errorf("after %s the machine is %s, want %s", step, got, want)
		}
		c.CutAfter(nil)
		if _, err := nodeagent.Join(t.Context(), c); err != nil && want != node {
			t.Errorf("after %s the join cannot be ended: %v", step, err)
		}
		if got := whose(t, dir); got != node {
			t.Errorf("after %s and once more the machine is %s", step, got)
		}
		if f := factsOf[*events.NodeEnrolled](m, node); len(f) != 1 {
			t.Errorf("after %s: %d machines joined as %s", step, len(f), node)
		}
	}
}

func TestJoinIsRefusedInWords(t *testing.T) {
	m := newDoorMesh(t, server.Config{Listen: "0.0.0.0:0"})
	other := newDoorMesh(t, server.Config{})
	parse := func(s string) events.Token { return must(events.ParseToken(s)) }
	used := m.invite("used")
	must(nodeagent.Join(t.Context(), nodeagent.JoinConfig{Dir: t.TempDir(), Token: used}))
	for _, c := range []struct{ name, token, want string }{
		{"no token", "hello", "this is no token"},
		{"cut", used[:len(used)/2], "the token is damaged"},
		{"used", used, "refuses: the token was used already"},
		{"another mesh's CA", func() string {
			k := parse(m.invite("a"))
			k.CA = parse(other.invite("a")).CA
			return k.Encode()
		}(), "is not the mesh that this token is from"},
		{"another mesh's token", func() string {
			k, foreign := parse(m.invite("b")), parse(other.invite("b"))
			foreign.URL, foreign.CA = k.URL, k.CA
			return foreign.Encode()
		}(), "refuses this token"},
		{"another name", func() string {
			k := parse(m.invite("c"))
			k.URL = strings.Replace(m.URL(), "127.0.0.1", "127.0.0.2", 1)
			return k.Encode()
		}(), "not for 127.0.0.2, but for .*--host 127.0.0.2"},
		{"no TLS address", func() string {
			k := parse(m.invite("d"))
			k.URL = "ws://127.0.0.1:1"
			return k.Encode()
		}(), "begins with tls://"},
		{"nobody there", func() string {
			k := parse(m.invite("e"))
			k.URL = "tls://127.0.0.1:1"
			return k.Encode()
		}(), "does not answer at tls://127.0.0.1:1: .*The token stays good"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			_, err := nodeagent.Join(t.Context(), nodeagent.JoinConfig{Dir: dir, Token: c.token, Patience: 500 * time.Millisecond})
			if err == nil || !regexp.MustCompile(c.want).MatchString(err.Error()) {
				t.Errorf("got %v, want %s", err, c.want)
			}
			if k, parseErr := events.ParseToken(c.token); err != nil && parseErr == nil && strings.Contains(err.Error(), k.Seed) {
				t.Error("the secret is in the error")
			}
			if _, err := os.Stat(nodeagent.NodeCredsFile(dir)); err == nil {
				t.Error("it has credentials now")
			}
		})
	}
}

// TestTheCredentialIsRenewedInTime: a node whose credential lives for seconds
// stays linked for longer than that.
func TestTheCredentialIsRenewedInTime(t *testing.T) {
	// Long enough that a busy machine does not miss the half of it: without a
	// door there is no way back.
	m := newDoorMesh(t, server.Config{LinkLife: 6 * time.Second})
	b, dir := m.joinedBox("n1")
	cfg := b.joinedConfig(dir)
	cfg.Timings.RenewFirst = time.Millisecond
	cfg.DoorFile = "" // it would get one there, too
	start(t, cfg)
	seen := map[string]bool{}
	m.waitFor("three credentials, the last of them in use", func() bool {
		seen[string(must(os.ReadFile(nodeagent.NodeCredsFile(dir))))] = true
		return len(seen) >= 3 && m.heard("n1")
	})
	if f := factsOf[*events.NodeJoinRefused](m, "n1"); len(f) != 0 {
		t.Errorf("refused: %+v", f)
	}
	if info := must(os.Stat(nodeagent.NodeCredsFile(dir))); info.Mode() != 0o600 {
		t.Errorf("node.creds has mode %s", info.Mode())
	}
}

// TestBackAfterALongAbsence: the credential has expired in a drawer.
func TestBackAfterALongAbsence(t *testing.T) {
	m := newDoorMesh(t, server.Config{LinkLife: time.Second})
	b, dir := m.joinedBox("n1")
	old := must(os.ReadFile(nodeagent.NodeCredsFile(dir)))
	m.waitFor("the credential has expired", func() bool {
		nc, err := nats.Connect(m.URL(), nats.RootCAs(server.CAFile(m.dir)), nats.UserCredentialBytes(old))
		if err == nil {
			nc.Close()
		}
		return errors.Is(err, nats.ErrAuthorization)
	})
	start(t, b.joinedConfig(dir))
	m.waitFor("it is back", func() bool { return m.heard("n1") })
	if string(must(os.ReadFile(nodeagent.NodeCredsFile(dir)))) == string(old) {
		t.Error("it has no new credential")
	}
}

// TestARevokedNodeSaysSo: its status has the mesh's reason, and it does not
// hammer at the door.
func TestARevokedNodeSaysSo(t *testing.T) {
	m := newDoorMesh(t, server.Config{})
	b, dir := m.joinedBox("n1")
	cfg := b.joinedConfig(dir)
	cfg.Timings.Refused, cfg.Timings.RefusedMax = time.Hour, time.Hour
	start(t, cfg)
	m.waitFor("it is heard", func() bool { return m.heard("n1") })
	if _, err := m.client.RevokeNode(context.Background(), server.RevokeRequest{Node: "n1"}); err != nil {
		t.Fatal(err)
	}
	b.awaitStatus(nodeagent.NodeCredsFile(dir), func(o nodeagent.Overview) bool {
		return o.Host != nil && !o.Host.Link.Up && strings.Contains(o.Host.Link.Reason, "the mesh refuses: the node was revoked") &&
			slices.ContainsFunc(o.Findings, func(f nodeagent.Finding) bool {
				return strings.Contains(f.What, "does not let this node in") && slices.Contains(f.Next, "nox-mesh-host join TOKEN")
			})
	})
	m.waitFor("the refusal is recorded", func() bool { return len(factsOf[*events.NodeJoinRefused](m, "n1")) == 1 })
}

// TestAnotherMeshAtTheSameAddress: the node talks to no server but the one that
// it joined, and a server that is not there is told from one that is another.
func TestAnotherMeshAtTheSameAddress(t *testing.T) {
	m, other := newDoorMesh(t, server.Config{}), newDoorMesh(t, server.Config{})
	b, dir := m.joinedBox("n1")
	cfg := b.joinedConfig(dir)
	cfg.URL = other.URL()
	start(t, cfg)
	b.awaitStatus(nodeagent.NodeCredsFile(dir), func(o nodeagent.Overview) bool {
		return o.Host != nil && strings.Contains(o.Host.Link.Reason, anchor.ErrNotThisMesh.Error()) && len(o.Findings) > 0
	})
}

// TestAServerThatSaysNothing: whoever is told to stop does so at once. A host
// that does not would be taken for a failed one.
func TestAServerThatSaysNothing(t *testing.T) {
	m := newDoorMesh(t, server.Config{})
	b, dir := m.joinedBox("n1")
	token := must(events.ParseToken(m.invite("n2")))
	silent := must(net.Listen("tcp", "127.0.0.1:0"))
	defer silent.Close()
	met := make(chan net.Conn, 2)
	go func() {
		for {
			conn, err := silent.Accept()
			if err != nil {
				return
			}
			met <- conn
		}
	}()
	stops := func(what string, stop func()) {
		t.Helper()
		select {
		case conn := <-met:
			defer conn.Close()
		case <-time.After(patience):
			t.Fatal("it does not connect")
		}
		begun := time.Now()
		stop()
		if took := time.Since(begun); took > 3*time.Second {
			t.Errorf("%s takes %s to stop", what, took)
		}
	}
	cfg := b.joinedConfig(dir)
	cfg.URL = "tls://" + silent.Addr().String()
	r := start(t, cfg)
	stops("the host", func() { r.stop() })

	token.URL = cfg.URL
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := nodeagent.Join(ctx, nodeagent.JoinConfig{Dir: t.TempDir(), Token: token.Encode()})
		done <- err
	}()
	stops("a join", func() {
		cancel()
		if err := <-done; err == nil {
			t.Error("it joined")
		}
	})
}
