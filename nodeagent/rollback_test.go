package nodeagent_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"noxmesh/events"
	"noxmesh/nodeagent"
	"noxmesh/nodeagent/simnode"
)

// TestABadReleaseOnOneMachine is the whole way of a bad version on a machine:
// up, down, back, reported, refused, and up again once it is told to retry.
func TestABadReleaseOnOneMachine(t *testing.T) {
	m := newMesh(t, nodeGrants())
	var mu sync.Mutex
	bad := true
	var lines []string
	dir := t.TempDir()
	mustDo(os.Mkdir(filepath.Join(dir, "etc"), 0o700))
	mustDo(os.Rename(m.creds("n1"), filepath.Join(dir, "etc", "node.creds")))
	mustDo(os.WriteFile(filepath.Join(dir, "etc", "environment"), []byte("NOX_MESH_URL="+m.url()+"\n"), 0o600))
	machine, err := simnode.New(simnode.Config{Dir: dir, Version: "1.0.0",
		Package: aPackage(t, "1.0.0"), Architecture: arch, Timings: quick, RestartDelay: time.Millisecond,
		Crashes: func(v string) bool { mu.Lock(); defer mu.Unlock(); return bad && v == "1.2.0" },
		Event:   func(l string) { mu.Lock(); defer mu.Unlock(); lines = append(lines, l) }})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- machine.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		mu.Lock()
		defer mu.Unlock()
		t.Log(strings.Join(lines, "\n"))
	}()

	m.declare("n1", 1, host(events.HostSpec{Release: m.add(aPackage(t, "1.1.0"), "1.1.0")}))
	m.heartbeat("n1", func(h events.Heartbeat) bool { return h.Version == "1.1.0" && h.Confirmed() && h.Revision == 1 })

	release := m.add(aPackage(t, "1.2.0"), "1.2.0")
	m.declare("n1", 2, host(events.HostSpec{Release: release}))
	_, f := m.report("n1", events.ReportRolledBack)
	back := f.(*events.NodeRolledBack)
	if back.From != "1.2.0" || back.To != "1.1.0" || back.SHA256 != release.SHA256 || back.Revision != 2 || len(back.Journal) != 1 || back.Restarts != 3 {
		t.Errorf("report: %+v", back)
	}
	if _, f := m.report("n1", events.ReportRefused); f.(*events.NodeRefused).Revision != 2 || f.(*events.NodeRefused).Version != "1.2.0" {
		t.Errorf("report: %+v", f)
	}
	h := m.heartbeat("n1", hasProblem("rolled 1.2.0 back"))
	if h.Version != "1.1.0" || !h.Confirmed() || h.Revision != 1 || !h.Retained {
		t.Errorf("heartbeat after the rollback: %+v", h)
	}

	// The same version, declared anew: refused again. With retry it is tried
	// once, and not twice for one declaration.
	m.declare("n1", 3, host(events.HostSpec{Release: release}))
	if _, f := m.report("n1", events.ReportRefused); f.(*events.NodeRefused).Revision != 3 {
		t.Errorf("report: %+v", f)
	}
	m.declare("n1", 4, host(events.HostSpec{Release: release, Retry: true}))
	if _, f := m.report("n1", events.ReportRolledBack); f.(*events.NodeRolledBack).Revision != 4 {
		t.Errorf("report: %+v", f)
	}
	if _, f := m.report("n1", events.ReportRefused); f.(*events.NodeRefused).Revision != 4 {
		t.Errorf("report: %+v", f)
	}
	mu.Lock()
	bad = false // whatever was wrong on the machine is mended
	mu.Unlock()
	m.declare("n1", 5, host(events.HostSpec{Release: release, Retry: true}))
	m.heartbeat("n1", func(h events.Heartbeat) bool { return h.Version == "1.2.0" && h.Confirmed() && h.Revision == 5 })
	if refused := nodeagent.LookAtState(machine.StateDir()).Refused(); len(refused) != 0 {
		t.Errorf("a version that works is still refused: %+v", refused)
	}
	if n := len(m.kept(events.ReportRolledBack)); n != 2 {
		t.Errorf("%d rollbacks were reported", n)
	}
}
