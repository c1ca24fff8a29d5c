package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"noxmesh/events"
	"noxmesh/nodeagent"
)

// do runs the program in this process.
func do(ctx context.Context, args ...string) (string, error) {
	var out bytes.Buffer
	c := command()
	c.SetOut(&out)
	c.SetErr(&out)
	c.SetArgs(args)
	err := c.ExecuteContext(ctx)
	return out.String(), err
}

func TestVersion(t *testing.T) {
	if out, err := do(t.Context(), "version"); err != nil || out != version+"\n" {
		t.Errorf("got %q, %v", out, err)
	}
}

// TestRunTellsTheServiceManager runs the host without credentials and without
// an address, which is how a machine is before it joins.
func TestRunTellsTheServiceManager(t *testing.T) {
	dir := t.TempDir()
	socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: filepath.Join(dir, "notify"), Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	t.Setenv("NOTIFY_SOCKET", filepath.Join(dir, "notify"))
	t.Setenv("NOX_MESH_URL", "")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := do(ctx, "run", "--state-dir", filepath.Join(dir, "state"), "--config-dir", dir)
		done <- err
	}()
	hear := func(want string) {
		t.Helper()
		buf := make([]byte, 4096)
		for deadline := time.Now().Add(20 * time.Second); ; {
			if err := socket.SetReadDeadline(deadline); err != nil {
				t.Fatal(err)
			}
			n, err := socket.Read(buf)
			if err != nil {
				t.Fatalf("the service manager never heard %q: %v", want, err)
			}
			if strings.Contains(string(buf[:n]), want) {
				return
			}
		}
	}
	hear("READY=1")
	hear("STATUS=running " + version + ", link down: no address of the mesh")
	out, err := do(t.Context(), "status", "--state-dir", filepath.Join(dir, "state"), "--config-dir", dir)
	for _, want := range []string{"unknown: no credentials", "version " + version + " runs since", ", confirmed", "NOX_MESH_URL=", "nox-mesh node invite", "nox-mesh-host join TOKEN"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is not in the status:\n%s", want, out)
		}
	}
	if !errors.Is(err, errNotWell) {
		t.Errorf("status ended with %v", err)
	}
	cancel()
	hear("STOPPING=1")
	if err := <-done; err != nil {
		t.Errorf("it ended with %v", err)
	}
}

func TestStatusOfADeadHost(t *testing.T) {
	out, err := do(t.Context(), "status", "--json", "--state-dir", filepath.Join(t.TempDir(), "none"), "--config-dir", "/nonexistent")
	var o nodeagent.Overview
	if jsonErr := json.Unmarshal([]byte(out), &o); jsonErr != nil || o.Running || len(o.Findings) == 0 || !errors.Is(err, errNotWell) {
		t.Errorf("got %s, %v, %v", out, jsonErr, err)
	}
}

func TestStatusText(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	well := nodeagent.Overview{StateDir: "/s", Node: "n1", Running: true, Installed: "1.1.0", KnownGood: "1.1.0", Parachute: "retained",
		Host:     &nodeagent.Status{At: at, Started: at, Version: "1.1.0", Confirmed: true, Applied: 3, Pins: &events.Pins{Delivery: "nox-mesh-delivery+1", Release: "nox-mesh-release+2"}, Link: nodeagent.LinkStatus{Up: true, Since: at, URL: "tls://m:4222"}},
		Declared: &nodeagent.DeclaredSummary{Revision: 3, Version: "1.1.0", Actor: "stager", At: at, Because: events.DeclarationCause{Kind: events.CauseBatch, Rollout: "r7", Batch: 2}}}
	want := `node         n1
host         version 1.1.0 runs since 2026-01-02 03:04:05Z, confirmed
installed    1.1.0
known-good   1.1.0
parachute    the package of 1.1.0 is kept here and its checksum is right
drill        not made yet for this version; "nox-mesh-host drill" makes one now
declared     1.1.0, revision 3, by rollout r7, batch 2, by stager at 2026-01-02 03:04:05Z
applied      revision 3
link         up since 2026-01-02 03:04:05Z, to tls://m:4222
keys         declarations are verified by nox-mesh-delivery+1
             releases by nox-mesh-release+2
outbox       0 waiting for the mesh

All is well.
`
	if got := text(well); got != want {
		t.Errorf("got:\n%s", got)
	}
	ill := well
	ill.Running, ill.Parachute = false, "it is rotten"
	ill.Refused = []nodeagent.Refusal{{Version: "1.2.0", Reason: "it crashed", At: at}}
	ill.Pending = &nodeagent.RollbackRecord{From: "1.2.0", To: "1.1.0", At: "then", Status: "done", Reason: "it crashed", Journal: []string{"a", "b", "c", "panic: no"}}
	ill.Findings = []nodeagent.Finding{{What: "the host does not run", Next: []string{"systemctl start nox-mesh-host"}}}
	got := text(ill)
	for _, want := range []string{"does not run; version 1.1.0 did last", "DAMAGED: it is rotten", "refused      1.2.0 since 2026-01-02 03:04:05Z: it crashed",
		"ROLLBACK     1.2.0 to 1.1.0 at then (done): it crashed", "panic: no", "Not well:\n  - the host does not run\n      next: systemctl start nox-mesh-host\n"} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is not in:\n%s", want, got)
		}
	}
}

// TestJoinIsRefusedBeforeTheTokenIsUsed: what can be known to be in the way is
// said first.
func TestJoinIsRefusedBeforeTheTokenIsUsed(t *testing.T) {
	dir := t.TempDir()
	for _, c := range []struct {
		name, stdin string
		args        []string
		want        string
	}{
		{"no token", "", []string{"hello", "--no-start"}, "this is no token"},
		{"nothing to read", "", []string{"-", "--no-start"}, "there is no token on standard input"},
		{"a line of many", "web-01 nmj1.x\nweb-02 nmj1.y\n", []string{"-", "--no-start"}, "the token is damaged"},
		{"no service", "", []string{"hello"}, "no systemd runs here|is not installed here|run it as root"},
	} {
		t.Run(c.name, func(t *testing.T) {
			cmd := command()
			cmd.SetIn(strings.NewReader(c.stdin))
			cmd.SetArgs(append([]string{"join", "--config-dir", filepath.Join(dir, "etc")}, c.args...))
			err := cmd.ExecuteContext(t.Context())
			if err == nil || !regexp.MustCompile(c.want).MatchString(err.Error()) {
				t.Errorf("got %v, want %s", err, c.want)
			}
		})
	}
}
