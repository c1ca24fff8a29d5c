package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"github.com/rogpeppe/go-internal/testscript"

	"noxmesh/events"
	"noxmesh/nodeagent"
	"noxmesh/nodeagent/simnode"
	"noxmesh/projections"
	"noxmesh/server"
)

// TestScripts runs the command line as a person would, against a real server.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script",
		Setup: func(env *testscript.Env) error {
			env.Setenv("NOX_MESH_DATA_DIR", env.WorkDir+"/mesh")
			return nil
		},
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){
			"deb":    writeDeb,
			"served": waitServed,
			"joins":  joins,
			"heard":  heard,
			"told":   told,
			"fails":  fails,
			// moment NAME keeps the time of now in a variable, for --at.
			"moment": func(ts *testscript.TestScript, _ bool, args []string) {
				ts.Setenv(args[0], time.Now().UTC().Format(time.RFC3339Nano))
			},
			"tokens": tokens,
			"idof":   idOf,
			// terminate sends SIGTERM to what runs in the background.
			"terminate": func(ts *testscript.TestScript, _ bool, _ []string) {
				for _, cmd := range ts.BackgroundCmds() {
					ts.Check(cmd.Process.Signal(syscall.SIGTERM))
				}
			},
		},
	})
}

// deb FILE PACKAGE VERSION [PAYLOAD] writes a small package.
func writeDeb(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 3 {
		ts.Fatalf("usage: deb FILE PACKAGE VERSION [PAYLOAD]")
	}
	var buf bytes.Buffer
	ts.Check(simnode.WriteDeb(&buf, args[1], args[2], "amd64", []byte(fmt.Sprint(args[3:]))))
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), buf.Bytes(), 0o600))
}

// joins DIR TOKENFILE makes DIR the configuration directory of a node, as
// nox-mesh-host join does. With ! it must be refused, in words that a third
// argument matches.
func joins(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) != 2 && !neg || len(args) != 3 && neg {
		ts.Fatalf("usage: joins DIR TOKENFILE, or ! joins DIR TOKENFILE PATTERN")
	}
	j, err := nodeagent.Join(context.Background(), nodeagent.JoinConfig{Dir: ts.MkAbs(args[0]), Token: ts.ReadFile(args[1])})
	switch {
	case !neg:
		ts.Check(err)
		ts.Logf("joined as %s", j.Node)
	case err == nil:
		ts.Fatalf("it joined as %s", j.Node)
	case !regexp.MustCompile(args[2]).MatchString(err.Error()):
		ts.Fatalf("it is refused with %v", err)
	}
}

// joinNode has a machine join whose configuration is in dir.
func joinNode(ctx context.Context, c *server.Client, node, dir string) error {
	r, err := c.Invite(ctx, server.InviteRequest{Nodes: []string{node}})
	if err != nil {
		return err
	}
	_, err = nodeagent.Join(ctx, nodeagent.JoinConfig{Dir: dir, Token: r.Invites[0].Token})
	return err
}

// heard NODE VERSION has a node, whose configuration directory is NODE, say what
// it runs, and waits until the mesh has heard it.
func heard(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: heard NODE VERSION")
	}
	node, version := args[0], args[1]
	raw, err := json.Marshal(events.Heartbeat{StartID: node + version, Version: version, KnownGood: version, Architecture: "amd64", OS: "Debian 12", Retained: true})
	ts.Check(err)
	nc := connectNode(ts, node)
	defer nc.Close()
	// The broker answers once it has the heartbeat; the mesh then reads it.
	_, err = nc.Request(events.HeartbeatSubject(node), raw, 20*time.Second)
	ts.Check(err)
	untilNode(ts, node, func(n projections.NodeView) bool { return n.Running == version && n.LastHeard != nil })
}

// told NODE REVISION waits until a node has been declared a revision.
func told(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: told NODE REVISION")
	}
	untilNode(ts, args[0], func(n projections.NodeView) bool { return fmt.Sprint(n.Revision) == args[1] })
}

func untilNode(ts *testscript.TestScript, node string, ok func(projections.NodeView) bool) {
	c, err := dialScript(ts)
	ts.Check(err)
	defer c.Close()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	var last projections.NodeView
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); <-tick.C {
		f, err := c.Fleet(context.Background())
		ts.Check(err)
		for _, n := range f.Nodes {
			if n.Node == node && ok(n) {
				return
			} else if n.Node == node {
				last = n
			}
		}
	}
	ts.Fatalf("it does not become of %s what is waited for: %+v", node, last)
}

// fails NODE FROM TO has a node report that it rolled a version back.
func fails(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 3 {
		ts.Fatalf("usage: fails NODE FROM TO")
	}
	raw, err := json.Marshal(events.NewReport(uuid.NewString(), time.Now(),
		&events.NodeRolledBack{From: args[1], To: args[2], Reason: "3 starts failed", Restarts: 3}))
	ts.Check(err)
	nc := connectNode(ts, args[0])
	defer nc.Close()
	_, err = nc.Request(events.ReportSubject(args[0], events.ReportRolledBack), raw, 20*time.Second)
	ts.Check(err)
}

// tokens N issues so many tokens: each is an event.
func tokens(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: tokens N")
	}
	n, err := strconv.Atoi(args[0])
	ts.Check(err)
	c, err := dialScript(ts)
	ts.Check(err)
	defer c.Close()
	var nodes []string
	for i := range n {
		nodes = append(nodes, fmt.Sprint("spare-", i))
	}
	_, err = c.Invite(context.Background(), server.InviteRequest{Nodes: nodes})
	ts.Check(err)
}

// idof SEQ puts the id of an event into ID, without its end.
func idOf(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: idof SEQ")
	}
	seq, err := strconv.ParseUint(args[0], 10, 64)
	ts.Check(err)
	c, err := dialScript(ts)
	ts.Check(err)
	defer c.Close()
	page, err := c.LogPage(context.Background(), server.LogRequest{From: seq, To: seq})
	ts.Check(err)
	rec, err := page.Events[0].Decode()
	ts.Check(err)
	ts.Setenv("ID", rec.Event.ID[:30])
}

func connectNode(ts *testscript.TestScript, node string) *nats.Conn {
	url, err := os.ReadFile(server.URLFile(ts.Getenv("NOX_MESH_DATA_DIR")))
	ts.Check(err)
	nc, err := nats.Connect(string(bytes.TrimSpace(url)), nats.UserCredentials(nodeagent.NodeCredsFile(ts.MkAbs(node))), nats.RootCAs(nodeagent.CAFile(ts.MkAbs(node))),
		nats.CustomInboxPrefix(events.InboxPrefix("node", node)))
	ts.Check(err)
	return nc
}

func dialScript(ts *testscript.TestScript) (*server.Client, error) {
	dir := ts.Getenv("NOX_MESH_DATA_DIR")
	url, err := os.ReadFile(server.URLFile(dir))
	if err != nil {
		return nil, err
	}
	return server.Dial(string(bytes.TrimSpace(url)), server.OperatorCredsFile(dir), server.CAFile(dir))
}

// served waits until the server of this script answers. The server leaves its
// address once it listens.
func waitServed(ts *testscript.TestScript, _ bool, _ []string) {
	deadline := time.Now().Add(20 * time.Second)
	for tick := time.NewTicker(20 * time.Millisecond); ; <-tick.C {
		err := func() error {
			c, err := dialScript(ts)
			if err != nil {
				return err
			}
			defer c.Close()
			_, err = c.Fleet(context.Background())
			return err
		}()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			ts.Fatalf("no server answers: %v", err)
		}
	}
}
