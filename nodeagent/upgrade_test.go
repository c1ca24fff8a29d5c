package nodeagent_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"noxmesh/events"
	"noxmesh/nodeagent"
)

// quick are timings for tests: everything soon.
var quick = nodeagent.Timings{
	Heartbeat: 100 * time.Millisecond, Refresh: time.Second, RetryLeast: 20 * time.Millisecond, RetryMost: 200 * time.Millisecond,
	Reconnect: 10 * time.Millisecond, ReconnectMax: 50 * time.Millisecond, Request: 2 * time.Second,
}

// box is a machine with a package manager that only notes what it was given.
type box struct {
	t         *testing.T
	dir       string
	mu        sync.Mutex
	installed string
	resets    int
	adopted   int
	fail      error
	hold      chan struct{} // Install says that it began, and waits for the end
	breaks    string        // a version that stays half-installed
	half      bool
}

func newBox(t *testing.T, version string) *box {
	return &box{t: t, dir: t.TempDir(), installed: version}
}

func (b *box) Mend(ctx context.Context, file string) (bool, error) {
	b.mu.Lock()
	half := b.half
	b.mu.Unlock()
	if !half {
		return false, nil
	}
	return true, b.Install(ctx, file)
}

func (b *box) Install(ctx context.Context, file string) error {
	if b.hold != nil {
		select {
		case b.hold <- struct{}{}:
		case <-b.t.Context().Done():
		}
		select {
		case <-b.hold:
		case <-b.t.Context().Done():
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.fail != nil {
		return b.fail
	}
	name := strings.TrimSuffix(filepath.Base(file), "_"+arch+".deb")
	b.installed = strings.TrimPrefix(name, events.HostPackage+"_")
	if b.half = b.installed == b.breaks; b.half {
		return errors.New("dpkg: error: its postinst fails")
	}
	return nil
}

func (b *box) Simulate(_ context.Context, file string) (nodeagent.PackageID, error) {
	name := strings.TrimSuffix(filepath.Base(file), "_"+arch+".deb")
	return nodeagent.PackageID{Name: events.HostPackage, Version: strings.TrimPrefix(name, events.HostPackage+"_"), Architecture: arch}, nil
}

func (b *box) AdoptKit(context.Context) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.adopted++
	return nil
}

func (b *box) ResetFailed(context.Context) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.resets++
	return nil
}

func (b *box) setFail(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.fail = err
}

// retain puts a package where an upgrade would have put it.
func (b *box) retain(raw []byte, version string) {
	b.t.Helper()
	s := must(nodeagent.OpenState(b.dir))
	tmp := filepath.Join(b.t.TempDir(), "x.deb")
	if err := os.WriteFile(tmp, raw, 0o644); err != nil {
		b.t.Fatal(err)
	}
	if err := s.Retain(tmp, version, arch); err != nil {
		b.t.Fatal(err)
	}
}

func (b *box) config(creds, url string) nodeagent.Config {
	log := zerolog.Nop()
	if testing.Verbose() {
		log = zerolog.New(zerolog.NewTestWriter(b.t))
	}
	return nodeagent.Config{StateDir: b.dir, URL: url, CredsFile: creds, Version: b.installed, Architecture: arch,
		Timings: quick, Packages: b, Supervisor: b, Logger: log}
}

// running is an agent at work.
type running struct {
	t      *testing.T
	cancel context.CancelFunc
	done   chan struct{}
	exit   nodeagent.Exit
	err    error
}

// start runs an agent and waits until it is ready.
func start(t *testing.T, cfg nodeagent.Config) *running {
	t.Helper()
	ready := make(chan struct{})
	cfg.Ready = func() { close(ready) }
	agent, err := nodeagent.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	r := &running{t: t, cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(r.done)
		r.exit, r.err = agent.Run(ctx)
	}()
	t.Cleanup(func() { cancel(); <-r.done })
	select {
	case <-ready:
	case <-r.done:
	case <-time.After(patience):
		t.Fatal("the agent is not ready")
	}
	return r
}

// wait waits until the agent ends by itself.
func (r *running) wait() nodeagent.Exit {
	r.t.Helper()
	select {
	case <-r.done:
	case <-time.After(patience):
		r.t.Fatal("the agent does not end")
	}
	if r.err != nil && !errors.Is(r.err, nodeagent.ErrHalted) {
		r.t.Fatal(r.err)
	}
	return r.exit
}

func (r *running) stop() nodeagent.Exit {
	r.cancel()
	return r.wait()
}

func (b *box) file(name string) string {
	raw, err := os.ReadFile(filepath.Join(b.dir, name))
	if err != nil {
		return "(" + name + " is missing)"
	}
	return strings.TrimSpace(string(raw))
}

func (b *box) has(name string) bool {
	_, err := os.Lstat(filepath.Join(b.dir, name))
	return err == nil
}

func TestUpgradeOverTheLink(t *testing.T) {
	m := newMesh(t, nodeGrants())
	b := newBox(t, "1.0.0")
	b.retain(aPackage(t, "1.0.0"), "1.0.0")
	old := start(t, b.config(m.creds("n1"), m.url()))
	h := m.heartbeat("n1", func(events.Heartbeat) bool { return true })
	if !h.Confirmed() || h.Version != "1.0.0" || !h.Retained || h.Revision != 0 || h.Architecture != arch {
		t.Errorf("first heartbeat: %+v", h)
	}
	raw := aBigPackage(t, "1.1.0")
	m.declare("n1", 1, host(events.HostSpec{Release: m.add(raw, "1.1.0")}))
	if old.wait() != nodeagent.ExitUpgraded {
		t.Fatal("the agent ended without an upgrade")
	}
	if b.installed != "1.1.0" || b.resets != 1 {
		t.Errorf("installed %s, %d resets", b.installed, b.resets)
	}
	kept := must(os.ReadFile(filepath.Join(b.dir, "packages", "nox-mesh-host_1.1.0_amd64.deb")))
	if string(kept) != string(raw) {
		t.Error("the retained package is not the one of the release")
	}
	if b.file("known-good") != "1.0.0" || !strings.Contains(b.file("installing"), "version=1.1.0\n") || !strings.HasSuffix(b.file("installing"), "revision=1") {
		t.Errorf("before the new version ran: known-good %s, installing %s", b.file("known-good"), b.file("installing"))
	}

	start(t, b.config(m.creds("n1"), m.url()))
	h = m.heartbeat("n1", func(h events.Heartbeat) bool { return h.Version == "1.1.0" })
	if !h.Confirmed() || h.Revision != 1 || !h.Retained || len(h.Problems) > 0 {
		t.Errorf("heartbeat of the new version: %+v", h)
	}
	m.report("n1", events.ReportConfirmed) // of the old one
	if _, f := m.report("n1", events.ReportConfirmed); f.(*events.NodeConfirmed).Version != "1.1.0" || f.(*events.NodeConfirmed).Revision != 1 {
		t.Errorf("report: %+v", f)
	}
	if b.has("installing") || b.file("known-good.previous") != "1.0.0" || !b.has("packages/nox-mesh-host_1.0.0_amd64.deb") {
		t.Error("after the confirmation: the note of the installation is there, or the way back is not")
	}
}

func TestNoParachuteNoJump(t *testing.T) {
	m := newMesh(t, nodeGrants())
	b := newBox(t, "1.0.0")
	creds := m.creds("n1")
	first := start(t, b.config(creds, m.url()))
	next := m.add(aPackage(t, "1.1.0"), "1.1.0")
	m.declare("n1", 1, host(events.HostSpec{Release: next}))
	_, f := m.report("n1", events.ReportRefused)
	if r := f.(*events.NodeRefused); r.Version != "1.1.0" || r.Revision != 1 || !strings.Contains(r.Reason, "no parachute") {
		t.Errorf("report: %+v", r)
	}
	h := m.heartbeat("n1", func(h events.Heartbeat) bool { return len(h.Problems) > 0 })
	if h.Retained || h.Revision != 0 || !strings.Contains(h.Problems[0], "no parachute") {
		t.Errorf("heartbeat: %+v", h)
	}
	// A fallback of another version is no way back.
	wrong := releaseOf(aPackage(t, "0.9.0"), "0.9.0")
	m.declare("n1", 2, host(events.HostSpec{Release: next, Fallback: &wrong}))
	if _, f := m.report("n1", events.ReportRefused); f.(*events.NodeRefused).Revision != 2 {
		t.Errorf("report: %+v", f)
	}
	fallback := m.add(aPackage(t, "1.0.0"), "1.0.0")
	m.declare("n1", 3, host(events.HostSpec{Release: next, Fallback: &fallback}))
	if first.wait() != nodeagent.ExitUpgraded || b.installed != "1.1.0" {
		t.Fatalf("installed %s", b.installed)
	}
	if _, err := must(nodeagent.OpenState(b.dir)).Retained("1.0.0", arch); err != nil {
		t.Errorf("the fallback is not retained: %v", err)
	}
	if n := len(m.kept(events.ReportRefused)); n != 2 {
		t.Errorf("%d refusals were reported, not one for each revision", n)
	}
}

func TestDamagedParachute(t *testing.T) {
	m := newMesh(t, nodeGrants())
	b := newBox(t, "1.0.0")
	b.retain(aPackage(t, "1.0.0"), "1.0.0")
	if err := os.WriteFile(filepath.Join(b.dir, "packages", "nox-mesh-host_1.0.0_amd64.deb"), []byte("rot"), 0o644); err != nil {
		t.Fatal(err)
	}
	start(t, b.config(m.creds("n1"), m.url()))
	m.declare("n1", 1, host(events.HostSpec{Release: m.add(aPackage(t, "1.1.0"), "1.1.0")}))
	if _, f := m.report("n1", events.ReportRefused); !strings.Contains(f.(*events.NodeRefused).Reason, "does not match its checksum") {
		t.Errorf("report: %+v", f)
	}
}

func TestUpgradeThatCannotBe(t *testing.T) {
	good := aPackage(t, "1.1.0")
	for _, c := range []struct {
		name string
		spec func(m *mesh) events.HostSpec
		cfg  func(*nodeagent.Config)
		kind string
		want string
	}{
		{"another architecture", func(m *mesh) events.HostSpec {
			r := m.add(good, "1.1.0")
			r.Architecture = "arm64"
			return events.HostSpec{Release: r}
		}, nil, events.ReportRefused, "is for arm64 and this machine is amd64"},
		{"wrong checksum", func(m *mesh) events.HostSpec {
			r := m.add(good, "1.1.0")
			bad := append([]byte{}, good...)
			bad[len(bad)-1] ^= 1
			// The store holds other bytes under the declared name.
			m.putPart(r.SHA256, bad)
			return events.HostSpec{Release: r}
		}, nil, events.ReportFailedToApply, "has sha256"},
		{"a part of another size", func(m *mesh) events.HostSpec {
			r := m.add(good, "1.1.0")
			r.Size--
			return events.HostSpec{Release: r}
		}, nil, events.ReportFailedToApply, "add the release again"},
		{"not in the store", func(*mesh) events.HostSpec {
			return events.HostSpec{Release: releaseOf(good, "1.1.0")}
		}, nil, events.ReportFailedToApply, "the mesh has nothing there"},
		{"no space", func(m *mesh) events.HostSpec { return events.HostSpec{Release: m.add(good, "1.1.0")} },
			func(c *nodeagent.Config) { c.FreeSpace = func(string) (int64, error) { return 1 << 20, nil } },
			events.ReportFailedToApply, "has 1 MiB free"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			m := newMesh(t, nodeGrants())
			b := newBox(t, "1.0.0")
			b.retain(aPackage(t, "1.0.0"), "1.0.0")
			cfg := b.config(m.creds("n1"), m.url())
			if c.cfg != nil {
				c.cfg(&cfg)
			}
			r := start(t, cfg)
			m.declare("n1", 1, host(c.spec(m)))
			if _, f := m.report("n1", c.kind); !strings.Contains(asJSON(f), c.want) {
				t.Errorf("the report is %s and should say %q", asJSON(f), c.want)
			}
			h := m.heartbeat("n1", func(h events.Heartbeat) bool { return len(h.Problems) > 0 })
			if h.Revision != 0 {
				t.Errorf("it says that revision %d is applied", h.Revision)
			}
			if r.stop() != nodeagent.ExitStopped || b.installed != "1.0.0" {
				t.Errorf("installed %s", b.installed)
			}
		})
	}
}

func TestFailingInstallationIsTriedAgain(t *testing.T) {
	m := newMesh(t, nodeGrants())
	b := newBox(t, "1.0.0")
	b.retain(aPackage(t, "1.0.0"), "1.0.0")
	b.setFail(errors.New("dpkg: error processing archive"))
	r := start(t, b.config(m.creds("n1"), m.url()))
	m.declare("n1", 1, host(events.HostSpec{Release: m.add(aPackage(t, "1.1.0"), "1.1.0")}))
	if _, f := m.report("n1", events.ReportFailedToApply); !strings.Contains(f.(*events.NodeFailedToApply).Error, "dpkg: error processing archive") {
		t.Errorf("report: %+v", f)
	}
	b.setFail(nil)
	if r.wait() != nodeagent.ExitUpgraded {
		t.Error("it was not tried again")
	}
	if n := len(m.kept(events.ReportFailedToApply)); n != 1 {
		t.Errorf("one error of one revision was reported %d times", n)
	}
}

func TestARecallEndsADownload(t *testing.T) {
	grants := nodeGrants()
	grants.Pub.Allow.Remove("$JS.API.DIRECT.GET.OBJ_packages.$O.packages.C.>")
	m := newMesh(t, grants)
	b := newBox(t, "1.0.0")
	b.retain(aPackage(t, "1.0.0"), "1.0.0")
	cfg := b.config(m.creds("n1"), m.url())
	cfg.Timings.Request = 10 * time.Minute // the chunk never comes
	start(t, cfg)
	m.declare("n1", 1, host(events.HostSpec{Release: m.add(aPackage(t, "1.1.0"), "1.1.0")}))
	m.heartbeat("n1", hasProblem("OBJ_packages.$O.packages.C."))
	m.declare("n1", 2, host(events.HostSpec{Release: releaseOf(aPackage(t, "1.0.0"), "1.0.0")}))
	m.heartbeat("n1", func(h events.Heartbeat) bool { return h.Revision == 2 })
}

func TestARecallDoesNotCutAnInstallationOff(t *testing.T) {
	m := newMesh(t, nodeGrants())
	b := newBox(t, "1.0.0")
	b.retain(aPackage(t, "1.0.0"), "1.0.0")
	b.hold = make(chan struct{})
	creds := m.creds("n1")
	r := start(t, b.config(creds, m.url()))
	m.declare("n1", 1, host(events.HostSpec{Release: m.add(aPackage(t, "1.1.0"), "1.1.0")}))
	select {
	case <-b.hold:
	case <-time.After(patience):
		t.Fatal("nothing is installed")
	}
	m.declare("n1", 2, host(events.HostSpec{Release: releaseOf(aPackage(t, "1.0.0"), "1.0.0")}))
	b.awaitStatus(creds, func(o nodeagent.Overview) bool { return o.Declared != nil && o.Declared.Revision == 2 })
	b.hold <- struct{}{}
	if r.wait() != nodeagent.ExitUpgraded {
		t.Fatal("no upgrade")
	}
	// The new version hears of the recall and goes back.
	close(b.hold)
	b.hold = nil
	r = start(t, b.config(creds, m.url()))
	if r.wait() != nodeagent.ExitUpgraded || b.installed != "1.0.0" {
		t.Errorf("installed %s", b.installed)
	}
}

func (m *mesh) putPart(sum string, raw []byte) {
	m.t.Helper()
	ctx, cancel := context.WithTimeout(m.t.Context(), patience)
	defer cancel()
	store := must(m.js.ObjectStore(ctx, events.BucketPackages))
	if _, err := store.PutBytes(ctx, events.PackagePart(sum, 0), raw); err != nil {
		m.t.Fatal(err)
	}
}
