package main

import (
	"bufio"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"noxmesh/server"
)

// TestToolOfTheDocs: the program of docs/tools.md can be copied, built and run, and
// goes on where it was.
func TestToolOfTheDocs(t *testing.T) {
	doc, err := os.ReadFile("../../docs/tools.md")
	if err != nil {
		t.Fatal(err)
	}
	_, program, _ := strings.Cut(string(doc), "```go\n")
	program, _, _ = strings.Cut(program, "```")
	dir := t.TempDir()
	source, tool := filepath.Join(dir, "main.go"), filepath.Join(dir, "tool")
	if err := os.WriteFile(source, []byte(program), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("go", "build", "-o", tool, source).CombinedOutput(); err != nil {
		t.Fatalf("it does not build: %v\n%s", err, out)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	data := filepath.Join(dir, "server")
	s, err := server.Start(ctx, server.Config{DataDir: data, Listen: "127.0.0.1:0", Logger: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := errors.Join(s.Err(), s.Stop()); err != nil {
			t.Error(err)
		}
	}()
	c, err := server.Dial(s.URL(), server.OperatorCredsFile(data), server.CAFile(data))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	user, err := c.AddUser(ctx, server.UserAddRequest{User: "wallboard", Role: server.RoleViewer})
	if err != nil {
		t.Fatal(err)
	}
	creds := filepath.Join(dir, "wallboard.creds")
	if err := os.WriteFile(creds, []byte(user.Creds), 0o600); err != nil {
		t.Fatal(err)
	}
	// run starts it, has do done once it caught up, and interrupts it after it
	// said last.
	run := func(do func() error, last string) (said string) {
		t.Helper()
		cmd := exec.CommandContext(ctx, tool)
		cmd.Dir, cmd.Stderr = dir, os.Stderr
		cmd.Env = append(os.Environ(), "NOX_MESH_URL="+s.URL(), "NOX_MESH_CREDS="+creds, "NOX_MESH_CA="+server.CAFile(data))
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		for lines := bufio.NewScanner(out); lines.Scan(); {
			said += lines.Text() + "\n"
			if lines.Text() == "that is how it is now" {
				if err := do(); err != nil {
					t.Error(err)
				}
			}
			if strings.Contains(lines.Text(), last) {
				if err := cmd.Process.Signal(os.Interrupt); err != nil {
					t.Error(err)
				}
			}
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("it ended with %v after\n%s", err, said)
		}
		return said
	}
	join := func(node string) func() error { return func() error { return joinNode(ctx, c, node, t.TempDir()) } }
	run(join("a"), "a is as it should be")
	if said := run(join("b"), "b is as it should be"); strings.Contains(said, "a is") {
		t.Errorf("started again, it says\n%s", said)
	}
	leave := func() error {
		_, err := c.Decommission(ctx, server.DecommissionRequest{Node: "a"})
		return err
	}
	run(leave, "a left the fleet")
}
