package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"noxmesh/nodeagent/simnode"
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

// served waits until the server of this script answers. The server leaves its
// address once it listens.
func waitServed(ts *testscript.TestScript, _ bool, _ []string) {
	dir := ts.Getenv("NOX_MESH_DATA_DIR")
	deadline := time.Now().Add(20 * time.Second)
	for tick := time.NewTicker(20 * time.Millisecond); ; <-tick.C {
		err := func() error {
			url, err := os.ReadFile(server.URLFile(dir))
			if err != nil {
				return err
			}
			c, err := server.Dial(string(bytes.TrimSpace(url)), server.OperatorCredsFile(dir))
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
