package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"noxmesh/events"
	"noxmesh/projections"
	"noxmesh/projections/client"
	"noxmesh/server"
)

func TestViewTellsWhatChanged(t *testing.T) {
	var out strings.Builder
	v := viewWatcher{out: &out, bucket: projections.BucketFleet, seen: map[string]viewFields{}}
	heard := time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
	node := func(running string, revision uint64, beat time.Duration) *json.RawMessage {
		at := heard.Add(beat)
		raw, err := json.Marshal(projections.NodeView{Node: "n1", Declared: "1.1.0", Running: running, Revision: revision, LastHeard: &at, Labels: map[string]string{"site": running}})
		if err != nil {
			t.Fatal(err)
		}
		return (*json.RawMessage)(&raw)
	}
	for _, c := range []struct {
		what string
		ch   client.Change[json.RawMessage]
		want string
	}{
		{"gone before anybody looked", client.Change[json.RawMessage]{Key: "n0"}, ""},
		{"first seen", client.Change[json.RawMessage]{Key: "n1", Value: node("1.0.0", 1, 0)}, "n1              runs 1.0.0, declared 1.1.0"},
		{"all is there", client.Change[json.RawMessage]{CaughtUp: true}, ""},
		{"heard again", client.Change[json.RawMessage]{Key: "n1", Value: node("1.0.0", 1, time.Minute)}, ""},
		{"changed", client.Change[json.RawMessage]{Key: "n1", Value: node("1.1.0", 2, time.Minute)},
			`n1              labels.site "1.0.0" -> "1.1.0", revision 1 -> 2, running "1.0.0" -> "1.1.0"`},
		{"gone", client.Change[json.RawMessage]{Key: "n1"}, "n1              gone"},
		{"back", client.Change[json.RawMessage]{Key: "n1", Value: node("", 1, 0)}, "n1              runs -, declared 1.1.0"},
		{"reset", client.Change[json.RawMessage]{Reset: true}, "the view was made anew; this is what there is:"},
		{"seen again", client.Change[json.RawMessage]{Key: "n1", Value: node("1.0.0", 1, 0)}, "n1              runs 1.0.0, declared 1.1.0"},
	} {
		out.Reset()
		if err := v.show(c.ch); err != nil {
			t.Fatal(err)
		}
		got := strings.TrimSuffix(out.String(), "\n")
		if c.ch.Key != "" && got != "" {
			got = strings.TrimLeft(got[len(time.TimeOnly):], " ")
		}
		if got != c.want {
			t.Errorf("%s: it says %q, want %q", c.what, got, c.want)
		}
	}
}

// TestWatchCommand: the command goes on until Ctrl-C, and from a token with what
// came after it.
func TestWatchCommand(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	dir, c := served(t, ctx)
	// watch runs the command, has do done once a line was printed, and
	// interrupts it once all of the last were there.
	watch := func(from client.Token, do map[string]func() error, last ...string) (keys []string, token client.Token) {
		t.Helper()
		one, interrupt := context.WithCancel(ctx)
		defer interrupt()
		r, w := io.Pipe()
		args := []string{"watch", "fleet", "--json", "--data-dir", dir, "--from", string(from)}
		ended := make(chan error, 1)
		go func() {
			cmd := newRoot()
			cmd.SetArgs(args)
			cmd.SetOut(w)
			ended <- cmd.ExecuteContext(one)
			w.Close()
		}()
		for lines := bufio.NewScanner(r); lines.Scan(); {
			var line viewLine
			if err := json.Unmarshal(lines.Bytes(), &line); err != nil || line.Token == "" {
				t.Fatalf("%s: %v", lines.Text(), err)
			}
			what := line.Key
			switch {
			case line.CaughtUp:
				what = "caught up"
			case line.Deleted:
				what += " gone"
			}
			keys, token = append(keys, what), line.Token
			if step := do[what]; step != nil {
				if err := step(); err != nil {
					t.Fatal(err)
				}
			}
			missing := func(key string) bool { return !slices.Contains(keys, key) }
			if !slices.ContainsFunc(last, missing) {
				interrupt()
			}
		}
		if err := <-ended; err != nil {
			t.Errorf("after Ctrl-C it ends with %v", err)
		}
		return keys, token
	}
	join := func(node string) func() error { return func() error { return joinNode(ctx, c, node, t.TempDir()) } }
	if err := join("a")(); err != nil {
		t.Fatal(err)
	}
	// A node's entry may be written anew after it, and comes last then.
	_, token := watch("", map[string]func() error{"caught up": join("b")}, "a", "b")
	_, declared := c.Declare(ctx, server.DeclareRequest{Node: "a", Resources: []events.Resource{}})
	_, gone := c.Decommission(ctx, server.DecommissionRequest{Node: "b"})
	if err := errors.Join(declared, gone); err != nil {
		t.Fatal(err)
	}
	if keys, _ := watch(token, nil, "b gone"); slices.Contains(keys, "b") {
		t.Errorf("behind the token it printed %v", keys)
	}
	cmd := newRoot()
	cmd.SetArgs([]string{"watch", "nodes", "--data-dir", dir})
	if err := cmd.ExecuteContext(ctx); err == nil || !strings.Contains(err.Error(), `"nodes"`) {
		t.Errorf("watching what there is not: %v", err)
	}
}
