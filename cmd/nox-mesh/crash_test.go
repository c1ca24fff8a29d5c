package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sort"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/rs/zerolog"

	"noxmesh/events"
	"noxmesh/nodeagent"
	"noxmesh/nodeagent/simnode"
	"noxmesh/projections"
	"noxmesh/rollout"
	"noxmesh/server"
)

// The test binary is also the server that is killed: with these variables set
// it runs one, and kills itself with SIGKILL right after the broker has stored
// a given event. That is kill -9 at a named moment.
const (
	envServeDir    = "NOX_MESH_TEST_SERVE_DIR"
	envServeListen = "NOX_MESH_TEST_SERVE_LISTEN"
	envKillAt      = "NOX_MESH_TEST_KILL_AT"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(envServeDir); dir != "" {
		if err := serveUntilKilled(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	testscript.Main(m, map[string]func(){"nox-mesh": main})
}

func serveUntilKilled(dir string) error {
	killAt, err := strconv.ParseUint(os.Getenv(envKillAt), 10, 64)
	if err != nil {
		return err
	}
	s, err := server.Start(context.Background(), server.Config{
		DataDir: dir, Listen: os.Getenv(envServeListen), PulseInterval: 100 * time.Millisecond,
		Logger: zerolog.New(os.Stderr).Level(zerolog.WarnLevel),
		Appended: func(seq uint64, _ events.Event) {
			if seq == killAt {
				_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			}
		},
	})
	if err != nil {
		return err
	}
	fmt.Println("ready")
	<-s.Failed()
	return s.Err()
}

var record = flag.String("record", "", "write the log of the uninterrupted run to this file, for testdata/logs, and stop there")

// crashRun is one fleet of three nodes and two rollouts: a good release and a
// broken one.
type crashRun struct {
	t      *testing.T
	dir    string
	listen string
	client *server.Client
	server *exec.Cmd
	exited chan struct{}
}

func (c *crashRun) serve(killAt uint64) {
	c.t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), envServeDir+"="+filepath.Join(c.dir, "server"), envServeListen+"="+c.listen,
		envKillAt+"="+strconv.FormatUint(killAt, 10))
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		c.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	exited := make(chan struct{})
	c.server, c.exited = cmd, exited
	if line, err := bufio.NewReader(out).ReadString('\n'); killAt != 0 && errors.Is(err, io.EOF) {
		_ = cmd.Wait() // killed at one of the events of its start
		c.serve(0)
		return
	} else if err != nil || line != "ready\n" {
		c.t.Fatalf("the server did not start: %q %v", line, err)
	}
	go func() { _ = cmd.Wait(); close(exited) }()
}

// command sends a command. The server may die under it; the client gives it
// again, under the same id, once the server is back.
func (c *crashRun) command(ctx context.Context, do func(ctx context.Context) error) {
	c.t.Helper()
	done := make(chan error, 1)
	go func() { done <- do(ctx) }()
	for {
		select {
		case err := <-done:
			if err != nil {
				c.t.Fatal(err)
			}
			return
		case <-c.exited:
			c.serve(0)
		}
	}
}

// attempt bounds one call; it ends when the server dies under it.
func (c *crashRun) attempt(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	go func(exited chan struct{}) {
		select {
		case <-exited:
			cancel()
		case <-ctx.Done():
		}
	}(c.exited)
	return ctx, cancel
}

func (c *crashRun) restartIfDead() {
	c.t.Helper()
	select {
	case <-c.exited:
		c.serve(0)
	default:
	}
}

// run plays the story, with the server killed right after event killAt (0:
// never), and gives everything that is in the log afterwards.
func (c *crashRun) run(ctx context.Context, killAt uint64) []events.Record {
	t := c.t
	c.chooseAddress()
	c.serve(killAt)
	defer func() {
		_ = c.server.Process.Kill()
		<-c.exited
	}()
	c.client = c.dial()
	defer c.client.Close()

	key, err := server.ReadSigningKey(events.KeyRelease, server.ReleaseKeyFile(filepath.Join(c.dir, "server")))
	if err != nil {
		t.Fatal(err)
	}
	var first []byte
	for _, v := range []string{"1.0.0", "1.1.0", "1.2.0"} {
		path := filepath.Join(c.dir, events.PackageFile(v, "amd64"))
		f, err := os.Create(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(simnode.WriteDeb(f, events.HostPackage, v, "amd64", []byte(v)), f.Close()); err != nil {
			t.Fatal(err)
		}
		if first == nil {
			if first, err = os.ReadFile(path); err != nil {
				t.Fatal(err)
			}
		}
		c.command(ctx, func(ctx context.Context) error { _, err := c.client.AddRelease(ctx, path, key, false); return err })
	}
	machines, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer func() { stop(); wg.Wait() }()
	for _, name := range []string{"a", "b", "c"} {
		var reply server.InviteReply
		c.command(ctx, func(ctx context.Context) (err error) {
			reply, err = c.client.Invite(ctx, server.InviteRequest{Nodes: []string{name}})
			return err
		})
		m := c.machine(name, reply.Invites[0].Token, first)
		wg.Go(func() {
			if err := m.Run(machines); err != nil {
				t.Error(err)
			}
		})
	}
	c.wait(ctx, "three nodes are heard", func(ctx context.Context) (bool, error) {
		f, err := c.client.Fleet(ctx)
		return len(f.Nodes) == 3 && !slices.ContainsFunc(f.Nodes, func(n projections.NodeView) bool { return n.LastHeard == nil }), err
	})
	for _, v := range []string{"1.1.0", "1.2.0"} {
		policy := events.Policy{Batches: []string{"2", "100%"}, Window: events.Duration(20 * time.Second),
			Soak: events.Duration(300 * time.Millisecond), Presence: events.Duration(15 * time.Second)}
		c.command(ctx, func(ctx context.Context) error {
			_, err := c.client.StartRollout(ctx, server.StartRequest{Version: v, Policy: policy, Seed: 7})
			return err
		})
		c.wait(ctx, v+" ends", func(ctx context.Context) (bool, error) {
			s, err := c.client.Rollout(ctx, "latest")
			return err == nil && s.Version == v && s.State != projections.Running &&
				s.Counts[projections.Waiting] == 0, err
		})
	}
	// What is read here is read from a server that started onto the data, also
	// if the last event was the one to die at.
	var all []events.Record
	c.wait(ctx, "the log is read", func(ctx context.Context) (bool, error) {
		all = nil
		err := c.client.ReadLog(ctx, server.LogRequest{}, false, func(rec events.Record) error {
			all = append(all, rec)
			return nil
		})
		return err == nil, err
	})
	c.wait(ctx, "the log is audited", func(ctx context.Context) (bool, error) { return c.audit(ctx, killAt == 0) })
	return all
}

// audit looks whether every decision is borne out, and was recomputed if the
// server was never killed: heartbeats are lost with it, as they may be.
func (c *crashRun) audit(ctx context.Context, whole bool) (bool, error) {
	a := rollout.NewAudit("")
	if err := auditMesh(ctx, c.client, a, io.Discard); err != nil {
		return false, err
	}
	res, err := a.Result()
	if err != nil {
		return false, err
	}
	for _, f := range res.Findings {
		c.t.Errorf("event %d %s %s: recorded %s; the policy says %s", f.Event, f.Type, f.Node, f.Recorded, f.Policy)
	}
	again, rest := 0, 0
	for _, r := range res.Rollouts {
		again, rest = again+r.Recomputed, rest+r.Checked
	}
	if again+rest < 10 || whole && rest > 0 {
		c.t.Errorf("%d decisions were recomputed, %d only checked", again, rest)
	}
	c.t.Logf("%d decisions were recomputed, %d only checked; heartbeats %+v", again, rest, res.Heartbeats)
	return true, nil
}

// chooseAddress takes a free port, which the server keeps when it is started again.
func (c *crashRun) chooseAddress() {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		c.t.Fatal(err)
	}
	c.listen = l.Addr().String()
	if err := l.Close(); err != nil {
		c.t.Fatal(err)
	}
}

// dial connects as the first operator.
func (c *crashRun) dial() *server.Client {
	c.t.Helper()
	dir := filepath.Join(c.dir, "server")
	client, err := server.Dial("tls://"+c.listen, server.OperatorCredsFile(dir), server.CAFile(dir))
	if err != nil {
		c.t.Fatal(err)
	}
	return client
}

// machine is one that runs 1.0.0, whose package is given, and that 1.2.0 breaks.
func (c *crashRun) machine(name, token string, first []byte) *simnode.Machine {
	c.t.Helper()
	disk := filepath.Join(c.dir, name)
	if err := os.Mkdir(disk, 0o700); err != nil {
		c.t.Fatal(err)
	}
	m, err := simnode.New(simnode.Config{
		Dir: disk, Token: token, Version: "1.0.0", Architecture: "amd64", Package: first,
		RestartDelay: 50 * time.Millisecond, Crashes: func(v string) bool { return v == "1.2.0" }, Logger: zerolog.Nop(),
		Timings: nodeagent.Timings{Heartbeat: 100 * time.Millisecond, Reconnect: 50 * time.Millisecond, ReconnectMax: 200 * time.Millisecond,
			Request: time.Second, Refresh: time.Second, RetryLeast: 100 * time.Millisecond, RetryMost: time.Second},
	})
	if err != nil {
		c.t.Fatal(err)
	}
	return m
}

// wait asks until something is true; the server may die meanwhile.
func (c *crashRun) wait(ctx context.Context, what string, ok func(ctx context.Context) (bool, error)) {
	c.t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		attempt, cancel := c.attempt(ctx)
		yes, err := ok(attempt)
		cancel()
		if yes {
			return
		}
		c.restartIfDead()
		select {
		case <-tick.C:
		case <-ctx.Done():
			c.t.Fatalf("waiting until %s: %v (last error: %v)", what, ctx.Err(), err)
		}
	}
}

// story is what a log tells, without times, ids and what depends on who was
// faster: the halt comes with the first rollback, and the other canary then
// reports its own, or is recalled before it got that far.
func story(t *testing.T, log []events.Record) []string {
	t.Helper()
	var out []string
	rolledBack := 0
	ids, declared := map[string]bool{}, map[string]bool{}
	for i, rec := range log {
		if rec.Seq != uint64(i+1) {
			t.Errorf("event %d is missing", i+1)
		}
		if ids[rec.Event.ID] {
			t.Errorf("event id %s is there twice", rec.Event.ID)
		}
		ids[rec.Event.ID] = true
		fact, err := rec.Event.Fact()
		if err != nil {
			t.Fatal(err)
		}
		switch f := fact.(type) {
		case *events.Declared:
			key := fmt.Sprint(f.Node, f.Because)
			if declared[key] {
				t.Errorf("%s is declared twice", key)
			}
			declared[key] = true
			if f.Because.Kind == events.CauseBatch {
				out = append(out, "declared "+key)
			}
		case *events.BatchOpened:
			out = append(out, fmt.Sprint(rec.Event.Subject, " opened ", f.Batch, f.Nodes))
		case *events.BatchPassed:
			out = append(out, fmt.Sprint(rec.Event.Subject, " passed ", f.Batch, len(f.Passed)))
		case *events.RolloutStarted:
			out = append(out, fmt.Sprint(rec.Event.Subject, " started ", f.Version, f.Cohort))
		case *events.RolloutHalted:
			out = append(out, fmt.Sprint(rec.Event.Subject, " halted ", f.Batch, f.Diagnosis, f.Undeclared))
		case *events.RolloutCompleted:
			out = append(out, fmt.Sprint(rec.Event.Subject, " completed ", f.Passed, f.Failed, f.Tail))
		case *events.NodeRolledBack:
			rolledBack++
		}
	}
	if rolledBack == 0 {
		t.Error("no node reported a rollback")
	}
	sort.Strings(out)
	return out
}

// TestKilledAtEveryEvent records a good and a bad rollout, then plays them again
// once for each of their events, with the server killed right after it is
// stored and started again. Each time the end must be the same: nothing is
// lost, nothing is declared twice.
func TestKilledAtEveryEvent(t *testing.T) {
	if testing.Short() {
		t.Skip("takes a minute")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 12*time.Minute)
	defer cancel()
	play := func(t *testing.T, killAt uint64) []events.Record {
		c := &crashRun{t: t, dir: t.TempDir()}
		one, cancel := context.WithTimeout(ctx, 90*time.Second)
		defer cancel()
		return c.run(one, killAt)
	}
	recorded := play(t, 0)
	want := story(t, recorded)
	if *record != "" {
		var out []byte
		for _, rec := range recorded {
			out = append(append(out, rec.Event.Encode()...), '\n')
		}
		if err := os.WriteFile(*record, out, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	t.Logf("recorded %d events", len(recorded))
	if len(want) < 14 {
		t.Fatalf("the recorded story is too short:\n%s", strings.Join(want, "\n"))
	}
	// They wait more than they work: more at a time than there are processors.
	slots := make(chan struct{}, 4)
	var runs sync.WaitGroup
	for at := 1; at <= len(recorded); at++ {
		runs.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			t.Run(fmt.Sprintf("killed after event %d", at), func(t *testing.T) {
				if got := story(t, play(t, uint64(at))); !slices.Equal(got, want) {
					t.Errorf("the story ended differently:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
				}
			})
		})
	}
	runs.Wait()
}
