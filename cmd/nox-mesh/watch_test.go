package main

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"noxmesh/events"
	"noxmesh/nodeagent/simnode"
	"noxmesh/projections"
	"noxmesh/rollout"
	"noxmesh/server"
)

func TestWatchTellsWhatIsNew(t *testing.T) {
	running := func() *rollout.Status {
		return reportOf(projections.Running, 3, map[projections.Outcome]int{"waiting": 1, "undeclared": 2})
	}
	var out strings.Builder
	w := watcher{out: &out, seen: map[string]projections.Outcome{}}
	said := func(s *rollout.Status) []string {
		out.Reset()
		w.show(s)
		var lines []string
		for line := range strings.Lines(out.String()) {
			lines = append(lines, strings.TrimSpace(line[len("15:04:05"):]))
		}
		return lines
	}
	expect := func(what string, s *rollout.Status, want ...string) {
		t.Helper()
		if got := said(s); !slices.Equal(got, want) {
			t.Errorf("%s: it says %q, want %q", what, got, want)
		}
	}
	s := running()
	s.Nodes = []rollout.NodeStatus{{Node: "a", Batch: 1, Outcome: projections.Waiting}, {Node: "b", Outcome: projections.Undeclared}}
	expect("a batch", s, "a: waiting", "batch 2 of 3, 1 waiting, 2 undeclared")
	expect("the same again", s)
	s = running()
	s.State, s.Paused = projections.Paused, &events.RolloutPaused{Because: events.ByOperator, Reason: "lunch"}
	expect("a pause", s, "paused: by an operator: lunch")
	expect("the same pause", s)
	s.Paused = &events.RolloutPaused{Because: events.ByOperator}
	expect("another pause", s, "paused: by an operator")
	expect("its end", running(), "goes on")
	s = running()
	s.Nodes = []rollout.NodeStatus{{Node: "a", Batch: 1, Outcome: "rolled-back", Detail: "3 starts failed"}}
	s.Counts = map[projections.Outcome]int{"rolled-back": 1, "undeclared": 2}
	expect("a failure", s, "a: rolled back, 3 starts failed", "batch 2 of 3, 1 rolled back, 2 undeclared")

	// Of many nodes only those that fail are told of one by one.
	large := reportOf(projections.Running, 500, map[projections.Outcome]int{"passed": 1, "silent": 1, "undeclared": 498})
	large.Nodes = []rollout.NodeStatus{{Node: "c", Batch: 1, Outcome: projections.Passed}, {Node: "d", Batch: 1, Outcome: "silent"}}
	expect("a large fleet", large, "d: silent", "batch 2 of 3, 1 passed, 1 silent, 498 undeclared")
}

// TestWatchGoesOnWhilePaused: a paused rollout may be resumed, so it is followed
// on; an aborted one has ended.
func TestWatchGoesOnWhilePaused(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	dir, c := served(t, ctx)
	pkg := filepath.Join(dir, "p.deb")
	f, err := os.Create(pkg)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(simnode.WriteDeb(f, events.HostPackage, "1.1.0", "amd64", nil), f.Close()); err != nil {
		t.Fatal(err)
	}
	key, err := server.ReadSigningKey(events.KeyRelease, server.ReleaseKeyFile(dir))
	if err != nil {
		t.Fatal(err)
	}
	_, added := c.AddRelease(ctx, pkg, key, false)
	enrolled := joinNode(ctx, c, "n1", t.TempDir())
	_, started := c.StartRollout(ctx, server.StartRequest{Version: "1.1.0"})
	_, paused := c.PauseRollout(ctx, "r1", "lunch")
	if err := errors.Join(added, enrolled, started, paused); err != nil {
		t.Fatal(err)
	}
	r, out := io.Pipe()
	type result struct {
		state projections.State
		err   error
	}
	ended := make(chan result, 1)
	go func() {
		s, err := watch(ctx, out, c, "latest")
		out.Close()
		if err != nil {
			ended <- result{err: err}
			return
		}
		ended <- result{state: s.State}
	}()
	// Each step is taken once the watcher has told of the one before.
	seen := ""
	steps := []struct {
		heard string
		do    func() error
	}{
		{"paused: by an operator: lunch", func() error { _, err := c.ResumeRollout(ctx, "r1", "", ""); return err }},
		{"goes on", func() error { _, err := c.AbortRollout(ctx, "r1", ""); return err }},
	}
	buf := make([]byte, 4096)
	for {
		n, err := r.Read(buf)
		seen += string(buf[:n])
		for len(steps) > 0 && strings.Contains(seen, steps[0].heard) {
			if err := steps[0].do(); err != nil {
				t.Fatal(err)
			}
			steps = steps[1:]
		}
		if err != nil {
			break
		}
	}
	if got := <-ended; got.err != nil || got.state != projections.Aborted || len(steps) > 0 {
		t.Errorf("watching ended %s, %v, with %d steps left, after\n%s", got.state, got.err, len(steps), seen)
	}
}

// served runs a server for a test and gives its data directory and its first
// operator.
func served(t *testing.T, ctx context.Context) (dir string, c *server.Client) {
	t.Helper()
	dir = t.TempDir()
	s, err := server.Start(ctx, server.Config{DataDir: dir, Listen: "127.0.0.1:0", Logger: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(s.Err(), s.Stop()); err != nil {
			t.Error(err)
		}
	})
	if c, err = server.Dial(s.URL(), server.OperatorCredsFile(dir), server.CAFile(dir)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return dir, c
}
