package nodeagent_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nkeys"

	"noxmesh/events"
	"noxmesh/nodeagent"
)

// aFile is a file resource that the test's own user can make.
func aFile(t *testing.T, path, content string) events.Resource {
	t.Helper()
	return events.ResourceFromSpec(events.ResourceFile, path, events.FileSpec{Mode: "0644", Owner: me(), Content: content})
}

func hasProblem(part string) func(events.Heartbeat) bool {
	return func(h events.Heartbeat) bool { return strings.Contains(strings.Join(h.Problems, "\n"), part) }
}

func TestADeclarationMadeWhileTheNodeWasAway(t *testing.T) {
	m := newMesh(t, nodeGrants())
	b := newBox(t, "1.0.0")
	file := filepath.Join(t.TempDir(), "f")
	start(t, b.config(m.creds("n1"), m.url()))
	m.declare("n1", 1, aFile(t, file, "one"))
	m.heartbeat("n1", func(h events.Heartbeat) bool { return h.Revision == 1 })

	m.stop()
	m.start(false) // nobody can reach it
	m.declare("n1", 2, aFile(t, file, "two"))
	m.declare("n1", 3, aFile(t, file, "three"))
	m.awaitDeclared("n1", 3)
	m.stop()
	m.start(true)
	m.heartbeat("n1", func(h events.Heartbeat) bool { return h.Revision == 3 })
	if got := string(must(os.ReadFile(file))); got != "three" {
		t.Errorf("the file holds %q", got)
	}
}

func TestWhatIsNoDeclarationChangesNothing(t *testing.T) {
	m := newMesh(t, nodeGrants())
	b := newBox(t, "1.0.0")
	file := filepath.Join(t.TempDir(), "f")
	start(t, b.config(m.creds("n1"), m.url()))
	m.declare("n1", 5, aFile(t, file, "five"))
	m.heartbeat("n1", func(h events.Heartbeat) bool { return h.Revision == 5 })
	other := events.New("n1", &events.NodeConfirmed{Version: "1.0.0", StartID: "x"}, events.Origin{Source: "t", Actor: "t"}, must(parseTime("2026-01-01T00:00:00Z")))
	unknown := declared("n1", 6)
	unknown.Type = "mesh.declaration.declared.v9"
	for _, c := range []struct {
		name, want string
		raw        []byte
	}{
		{"garbage", "malformed event", []byte("\x00\xff garbage")},
		{"another type", "no declaration", other.Encode()},
		{"an unknown type", "unknown event type", unknown.Encode()},
		{"another node's", `for node \"n2\"`, declared("n2", 7).Encode()},
		{"no revision", "has no revision", declared("n1", 0).Encode()},
	} {
		// Pushed at the node it is nobody's word: any node can have an answer of
		// the broker sent there.
		if err := m.nc.Publish(events.DeclarationSubject("n1"), c.raw); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		h := m.heartbeat("n1", func(events.Heartbeat) bool { return time.Since(began) > 2*quick.Heartbeat })
		if len(h.Problems) > 0 {
			t.Errorf("%s, pushed, is a problem: %v", c.name, h.Problems)
		}
		// Held by the mesh it is a problem to be shown.
		if _, err := m.js.Publish(t.Context(), events.EventSubject(events.AggregateDeclaration, "n1"), c.raw); err != nil {
			t.Fatal(err)
		}
		m.heartbeat("n1", hasProblem(strings.ReplaceAll(c.want, `\"`, `"`)))
		m.declare("n1", 5, aFile(t, file, "five"))
		m.heartbeat("n1", func(h events.Heartbeat) bool { return len(h.Problems) == 0 })
	}
	// Older ones are ignored, though the one below would apply.
	for _, revision := range []uint64{4, 5} {
		if err := m.nc.Publish(events.DeclarationSubject("n1"), declared("n1", revision, aFile(t, file, "old")).Encode()); err != nil {
			t.Fatal(err)
		}
	}
	second := filepath.Join(t.TempDir(), "g")
	m.declare("n1", 8, aFile(t, second, "eight"))
	h := m.heartbeat("n1", func(h events.Heartbeat) bool { return h.Revision == 8 })
	if got := string(must(os.ReadFile(file))); got != "five" {
		t.Errorf("the file holds %q", got)
	}
	if len(h.Problems) > 0 {
		t.Errorf("a good declaration leaves the problem of a bad one: %v", h.Problems)
	}
}

func TestResourcesThatDoNotApply(t *testing.T) {
	m := newMesh(t, nodeGrants())
	b := newBox(t, "1.0.0")
	dir := t.TempDir()
	start(t, b.config(m.creds("n1"), m.url()))
	own := releaseOf(aPackage(t, "1.0.0"), "1.0.0")
	m.declare("n1", 1,
		host(events.HostSpec{Release: own}), // first in the list, last in turn
		events.ResourceFromSpec("teapot", "t", map[string]int{"cups": 2}),
		events.ResourceFromSpec(events.ResourceFile, filepath.Join(dir, "a"), map[string]string{"mode": "0644", "content": "a", "colour": "red"}),
		aFile(t, filepath.Join(dir, "b"), "b"))
	got := map[string]string{}
	for range 2 {
		_, f := m.report("n1", events.ReportFailedToApply)
		r := f.(*events.NodeFailedToApply)
		got[r.Resource] = r.Error
	}
	if !strings.Contains(got["teapot/t"], `no resources of type "teapot"`) || !strings.Contains(got["file/"+filepath.Join(dir, "a")], "colour") {
		t.Errorf("reports: %v", got)
	}
	h := m.heartbeat("n1", func(h events.Heartbeat) bool { return h.Revision == 1 })
	if len(h.Problems) != 2 {
		t.Errorf("problems: %v", h.Problems)
	}
	if string(must(os.ReadFile(filepath.Join(dir, "b")))) != "b" {
		t.Error("a resource behind failing ones was not applied")
	}
	m.declare("n1", 2, host(events.HostSpec{Release: own}))
	h = m.heartbeat("n1", func(h events.Heartbeat) bool { return h.Revision == 2 })
	if len(h.Problems) > 0 {
		t.Errorf("problems of resources that are not declared any more: %v", h.Problems)
	}
}

func TestADeniedPermissionIsShown(t *testing.T) {
	grants := nodeGrants()
	grants.Pub.Allow.Remove("mesh.report.{{name()}}.*")
	m := newMesh(t, grants)
	b := newBox(t, "1.0.0")
	creds := m.creds("n1")
	cfg := b.config(creds, m.url())
	start(t, cfg)
	m.heartbeat("n1", hasProblem(`Publish to "mesh.report.n1.confirmed"`))
	b.awaitStatus(creds, func(o nodeagent.Overview) bool {
		return strings.Contains(strings.Join(o.Problems, "\n"), "the broker denies this node") && o.Outbox == 1
	})
}

func TestCredentialsThatComeLater(t *testing.T) {
	m := newMesh(t, nodeGrants())
	b := newBox(t, "1.0.0")
	creds := filepath.Join(t.TempDir(), "node.creds")
	// What another node left there must not stand in the way of this one.
	b.write("declaration.json", string(declared("n0", 9).Encode()))
	m.declare("n1", 1)
	start(t, b.config(creds, m.url()))
	b.awaitStatus(creds, func(o nodeagent.Overview) bool {
		return o.Running && o.Host != nil && o.Host.Confirmed && strings.Contains(o.Host.Link.Reason, "nox-mesh-host join TOKEN")
	})
	if err := os.Rename(m.creds("n1"), creds); err != nil {
		t.Fatal(err)
	}
	m.heartbeat("n1", func(h events.Heartbeat) bool { return h.Confirmed() && h.Revision == 1 })
	m.report("n1", events.ReportConfirmed)
}

func TestAMachineThatIsEnrolledAnew(t *testing.T) {
	m := newMesh(t, nodeGrants())
	b := newBox(t, "1.0.0")
	dir := t.TempDir()
	r := start(t, b.config(m.creds("n1"), m.url()))
	m.declare("n1", 9, aFile(t, filepath.Join(dir, "f"), "n1"))
	m.heartbeat("n1", func(h events.Heartbeat) bool { return h.Revision == 9 })
	r.stop()
	// Its revisions begin anew, so the old node's must not stand in the way.
	m.declare("n2", 1, aFile(t, filepath.Join(dir, "f"), "n2"))
	start(t, b.config(m.creds("n2"), m.url()))
	m.heartbeat("n2", func(h events.Heartbeat) bool { return h.Revision == 1 })
	if got := string(must(os.ReadFile(filepath.Join(dir, "f")))); got != "n2" {
		t.Errorf("the file holds %q", got)
	}
}

func TestCredentialsOfAnotherNodePutInTheirPlace(t *testing.T) {
	m := newMesh(t, nodeGrants())
	b := newBox(t, "1.0.0")
	creds := m.creds("n1")
	start(t, b.config(creds, m.url()))
	m.heartbeat("n1", events.Heartbeat.Confirmed)
	mustDo(os.Rename(m.creds("n2"), creds))
	m.stop() // the next connection is made with them
	m.start(true)
	m.declare("n2", 1)
	m.heartbeat("n2", func(h events.Heartbeat) bool { return h.Revision == 1 })
}

func TestHeartbeatsComeAtOnceWhenSomethingIsNew(t *testing.T) {
	m := newMesh(t, nodeGrants())
	b := newBox(t, "1.0.0")
	cfg := b.config(m.creds("n1"), m.url())
	cfg.Timings.Heartbeat = time.Hour
	start(t, cfg)
	m.heartbeat("n1", events.Heartbeat.Confirmed)
	m.declare("n1", 1)
	m.heartbeat("n1", func(h events.Heartbeat) bool { return h.Revision == 1 })
	m.stop()
	m.start(true)
	m.heartbeat("n1", func(h events.Heartbeat) bool { return h.Revision == 1 })
}

func TestReportsWaitForTheMesh(t *testing.T) {
	m := newMesh(t, nodeGrants())
	creds := m.creds("n1")
	m.stop()
	b := newBox(t, "1.0.0")
	for range 2 { // two starts with nobody to tell
		start(t, b.config(creds, m.url())).stop()
	}
	if o := nodeagent.Look(b.dir, creds, nodeagent.Installed{}); o.Outbox != 2 {
		t.Fatalf("%d reports wait", o.Outbox)
	}
	m.start(true)
	start(t, b.config(creds, m.url()))
	b.awaitStatus(creds, func(o nodeagent.Overview) bool { return o.Outbox == 0 })
	ids := map[string]bool{}
	for _, f := range m.kept(events.ReportConfirmed) {
		ids[f.(*events.NodeConfirmed).StartID] = true
	}
	if len(ids) != 3 {
		t.Errorf("the mesh has reports of %d starts and not of 3", len(ids))
	}
}

func TestAReportThatIsNeverTakenHoldsUpNothing(t *testing.T) {
	m := newMesh(t, nodeGrants())
	cfg := must(m.js.Stream(t.Context(), events.StreamReports)).CachedInfo().Config
	cfg.MaxMsgSize = 450
	must(m.js.UpdateStream(t.Context(), cfg))
	b := newBox(t, "1.0.0")
	creds := m.creds("n1")
	start(t, b.config(creds, m.url()))
	m.report("n1", events.ReportConfirmed)
	m.declare("n1", 1, events.ResourceFromSpec(strings.Repeat("x", 300), "t", struct{}{}))
	b.awaitStatus(creds, func(o nodeagent.Overview) bool {
		return o.Outbox == 0 && strings.Contains(strings.Join(o.Problems, "\n"), "a report was not taken and is kept in outbox/rejected")
	})
	m.declare("n1", 2, events.ResourceFromSpec("x", "t", struct{}{}))
	for len(m.kept(events.ReportFailedToApply)) == 0 {
		m.report("n1", events.ReportFailedToApply)
	}
	if n := len(must(os.ReadDir(filepath.Join(b.dir, "outbox", "rejected")))); n != 1 {
		t.Errorf("%d reports were set aside", n)
	}
}

func TestCredentialsThatTheMeshDoesNotTake(t *testing.T) {
	m := newMesh(t, nodeGrants())
	b := newBox(t, "1.0.0")
	creds := filepath.Join(t.TempDir(), "node.creds")
	if err := os.WriteFile(creds, nodeCreds(must(nkeys.CreateAccount()), must(nkeys.CreateAccount()), "n1"), 0o600); err != nil {
		t.Fatal(err)
	}
	downFor := func(why string) func(nodeagent.Overview) bool {
		return func(o nodeagent.Overview) bool {
			return o.Host != nil && !o.Host.Link.Up && strings.Contains(strings.ToLower(o.Host.Link.Reason), why)
		}
	}
	m.stop()
	start(t, b.config(creds, m.url()))
	b.awaitStatus(creds, downFor("refused"))
	m.start(true)
	b.awaitStatus(creds, downFor("authorization"))
	// They are read again for each try.
	good := must(os.ReadFile(m.creds("n1")))
	mustDo(os.WriteFile(creds+".new", good, 0o600))
	mustDo(os.Rename(creds+".new", creds))
	m.heartbeat("n1", events.Heartbeat.Confirmed)
	// And it is the same once the link was up before.
	mustDo(os.WriteFile(creds, nodeCreds(must(nkeys.CreateAccount()), must(nkeys.CreateAccount()), "n1"), 0o600))
	m.stop()
	m.start(true)
	b.awaitStatus(creds, downFor("authorization"))
}
