package nodeagent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"noxmesh/events"
)

// nothing is a package manager and supervisor that are not asked.
type nothing struct{ t *testing.T }

func (n nothing) Install(context.Context, string) error {
	n.t.Error("something is installed")
	return errors.New("no")
}

func (nothing) Mend(context.Context, string) (bool, error) { return false, nil }

func (n nothing) Simulate(context.Context, string) (PackageID, error) {
	return PackageID{}, errors.New("no")
}

func (n nothing) ResetFailed(context.Context) error { return nil }
func (n nothing) AdoptKit(context.Context) error    { return nil }

func offlineConfig(t *testing.T, version string) Config {
	return Config{StateDir: t.TempDir(), CredsFile: "/nonexistent/creds", Version: version, Architecture: "amd64", Packages: nothing{t}, Supervisor: nothing{t}}
}

// live runs an agent with no link for a time, and gives its end.
func live(t *testing.T, cfg Config, d time.Duration) *Agent {
	t.Helper()
	a, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	if exit, err := a.Run(ctx); err != nil || exit != ExitStopped {
		t.Fatalf("it ended with %v, %v", exit, err)
	}
	return a
}

func cache(t *testing.T, dir string, revision uint64, resources ...events.Resource) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	e := events.New("n1", &events.Declared{Node: "n1", Revision: revision, Resources: resources}, events.Origin{Source: "t", Actor: "t"}, time.Now())
	put(t, dir, fileDeclaration, string(e.Encode()))
}

func waiting(t *testing.T, dir, kind string) []events.ReportFact {
	t.Helper()
	s := LookAtState(dir)
	var facts []events.ReportFact
	for _, name := range outboxFiles(s) {
		var out outgoing
		if s.readJSON(filepath.Join(dirOutbox, name), &out) && out.Kind == kind {
			raw := fmt.Appendf(nil, `{"id":%q,"at":"2026-01-01T00:00:00Z","data":%s}`, out.Report.ID, out.Report.Data)
			_, f, err := events.DecodeReport(kind, raw)
			if err != nil {
				t.Fatal(err)
			}
			facts = append(facts, f)
		}
	}
	return facts
}

func TestOfflineItIsReadyAndConfirmed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := offlineConfig(t, "1.0.0")
		began, ready := time.Now(), time.Time{}
		cfg.Ready = func() {
			ready = time.Now()
			if get(t, cfg.StateDir, fileKnownGood) != "1.0.0\n" {
				t.Error("it is ready before it is confirmed")
			}
		}
		live(t, cfg, time.Hour)
		if ready.IsZero() || ready.Sub(began) > 0 {
			t.Errorf("it was ready after %v", ready.Sub(began))
		}
		if n := len(waiting(t, cfg.StateDir, events.ReportConfirmed)); n != 1 {
			t.Errorf("%d confirmations wait", n)
		}
	})
}

func TestAFailingResourceIsTriedAgainAndReportedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := offlineConfig(t, "1.0.0")
		dir := t.TempDir()
		put(t, dir, "blocked", "a file where a directory should be")
		path := filepath.Join(dir, "blocked", "f")
		cache(t, cfg.StateDir, 3,
			events.ResourceFromSpec(events.ResourceFile, path, events.FileSpec{Mode: "0600", Owner: own(), Content: "x"}),
			events.ResourceFromSpec(events.ResourceFile, filepath.Join(dir, "g"), events.FileSpec{Mode: "0600", Owner: own(), Content: "y"}))
		a := live(t, cfg, time.Hour)
		if get(t, cfg.StateDir, fileKnownGood) != "1.0.0\n" || get(t, dir, "g") != "y" || get(t, cfg.StateDir, fileApplied) != "3\n" {
			t.Error("a failing resource stopped the others, the confirmation or the applied revision")
		}
		failed := waiting(t, cfg.StateDir, events.ReportFailedToApply)
		if len(failed) != 1 || failed[0].(*events.NodeFailedToApply).Resource != "file/"+path || failed[0].(*events.NodeFailedToApply).Revision != 3 {
			t.Errorf("reports: %v", failed)
		}
		if h := a.heartbeat(); len(h.Problems) != 1 {
			t.Errorf("problems: %v", h.Problems)
		}
		// Another start says nothing new about it, and mends it when it can.
		time.AfterFunc(time.Minute, func() { must0(t, os.Remove(filepath.Join(dir, "blocked"))) })
		a = live(t, cfg, time.Hour)
		if get(t, dir, "blocked/f") != "x" || len(a.heartbeat().Problems) != 0 {
			t.Errorf("it was not tried again: %v", a.heartbeat().Problems)
		}
		if n := len(waiting(t, cfg.StateDir, events.ReportFailedToApply)); n != 1 {
			t.Errorf("it was reported %d times", n)
		}
	})
}

func TestDriftIsMended(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := offlineConfig(t, "1.0.0")
		dir := t.TempDir()
		cache(t, cfg.StateDir, 1, events.ResourceFromSpec(events.ResourceFile, filepath.Join(dir, "f"), events.FileSpec{Mode: "0600", Owner: own(), Content: "x"}))
		time.AfterFunc(time.Minute, func() { must0(t, os.Remove(filepath.Join(dir, "f"))) })
		live(t, cfg, time.Hour)
		if get(t, dir, "f") != "x" {
			t.Error("the file is gone")
		}
	})
}

func TestOfflineAnUpgradeWaitsAndIsNoFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := offlineConfig(t, "1.0.0")
		s, err := OpenState(cfg.StateDir)
		must0(t, err)
		put(t, cfg.StateDir, "incoming/x", "package")
		must0(t, s.Retain(filepath.Join(cfg.StateDir, "incoming/x"), "1.0.0", "amd64"))
		put(t, cfg.StateDir, fileApplied, "4\n")
		cache(t, cfg.StateDir, 5, events.ResourceFromSpec(events.ResourceHost, "nox-mesh-host", events.HostSpec{
			Release: events.Release{Version: "1.1.0", Architecture: "amd64", Size: 5, SHA256: strings.Repeat("a", 64)}}))
		a := live(t, cfg, time.Hour)
		h := a.heartbeat()
		if h.Revision != 4 || len(h.Problems) != 1 || !strings.Contains(h.Problems[0], "waiting for the link") {
			t.Errorf("heartbeat: %+v", h)
		}
		if n := len(waiting(t, cfg.StateDir, events.ReportFailedToApply)) + len(waiting(t, cfg.StateDir, events.ReportRefused)); n != 0 {
			t.Errorf("waiting was reported %d times", n)
		}
	})
}

func TestGarbageEverywhere(t *testing.T) {
	names := []string{fileKnownGood, filePrevious, fileInstalling, fileRollback, fileRollbackLast, fileRefused, fileReported, fileDeclaration,
		fileApplied, fileStatus, fileStarts, fileRestarted, "outbox/00000000000000000007-x.confirmed.json", "outbox/x.json", "packages/nox-mesh-host_1.0.0_amd64.deb.sha256"}
	for _, garbage := range []string{"", "\x00\x00\x00\x00", "{", "null", "[]", "=\n==\n", strings.Repeat("A", 1<<16)} {
		synctest.Test(t, func(t *testing.T) {
			cfg := offlineConfig(t, "1.0.0")
			_, err := OpenState(cfg.StateDir)
			must0(t, err)
			for _, name := range names {
				put(t, cfg.StateDir, name, garbage)
			}
			Look(cfg.StateDir, cfg.CredsFile, Installed{})
			live(t, cfg, 10*time.Minute)
			if get(t, cfg.StateDir, fileKnownGood) != "1.0.0\n" {
				t.Errorf("with %.10q everywhere it is not confirmed", garbage)
			}
			if _, fired := LookAtState(cfg.StateDir).Rollback(); fired {
				t.Errorf("with %.10q the rollback is not armed again", garbage)
			}
			if n := len(waiting(t, cfg.StateDir, events.ReportConfirmed)); n != 1 {
				t.Errorf("with %.10q %d confirmations wait", garbage, n)
			}
		})
	}
}

func TestAPanicIsAFailureOfItsResource(t *testing.T) {
	a, err := New(offlineConfig(t, "1.0.0"))
	must0(t, err)
	// A host resource before there is a state to look at: a bug, if ever.
	r := events.ResourceFromSpec(events.ResourceHost, "nox-mesh-host", events.HostSpec{
		Release: events.Release{Version: "1.1.0", Architecture: "amd64", Size: 5, SHA256: strings.Repeat("a", 64)}})
	if err := a.apply(t.Context(), t.Context(), r, 1); err == nil || !strings.Contains(err.Error(), "has a bug") {
		t.Errorf("got %v", err)
	}
}

func TestTheWatchdogIsFed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := offlineConfig(t, "1.0.0")
		fed := 0
		cfg.Watchdog, cfg.WatchdogEvery = func() { fed++ }, 10*time.Second
		live(t, cfg, 105*time.Second)
		if fed != 11 {
			t.Errorf("it was fed %d times in 105 s", fed)
		}
	})
}

func TestConfigIsChecked(t *testing.T) {
	for _, spoil := range []func(*Config){
		func(c *Config) { c.Version = "v1; reboot" },
		func(c *Config) { c.StateDir = "" },
		func(c *Config) { c.Packages = nil },
		func(c *Config) { c.Timings.Heartbeat = -1 },
	} {
		cfg := offlineConfig(t, "1.0.0")
		spoil(&cfg)
		if _, err := New(cfg); err == nil {
			t.Errorf("%+v was taken", cfg)
		}
	}
}

func TestTheHostIsAlwaysLast(t *testing.T) {
	var order string
	for _, r := range hostLast([]events.Resource{{Type: "host", Name: "h"}, {Type: "file", Name: "a"}, {Type: "x", Name: "b"}, {Type: "file", Name: "c"}}) {
		order += r.Name
	}
	if order != "abch" {
		t.Errorf("the order is %s", order)
	}
}
