package nodeagent

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"noxmesh/events"
)

// confirmed runs a version on a prepared directory until it is confirmed.
func confirmed(t *testing.T, version string, prepare func(dir string)) (dir string, a *Agent) {
	t.Helper()
	cfg := offlineConfig(t, version)
	cfg.PinFile = filepath.Join(cfg.StateDir, "pin")
	if _, err := OpenState(cfg.StateDir); err != nil {
		t.Fatal(err)
	}
	prepare(cfg.StateDir)
	synctest.Test(t, func(t *testing.T) { a = live(t, cfg, time.Minute) })
	return cfg.StateDir, a
}

func record(from, to, rest string) string {
	return "id=3f0c9a40-0000-4000-8000-000000000001\nfrom=" + from + "\nto=" + to + "\nstatus=done\n" + rest
}

func TestRollbackRecords(t *testing.T) {
	sum := strings.Repeat("c", 64)
	installing := "version=1.2.0\nsha256=" + sum + "\nrevision=7\n"
	for _, c := range []struct {
		name, record, installing string
		refused                  string // version sha256 revision
		report                   string // from to
		reason                   string
	}{
		{"whole", record("1.2.0", "1.1.0", "sha256="+sum+"\nrevision=7\nreason=it crashed\n"), "", "1.2.0 " + sum + " 7", "1.2.0 1.1.0", "it crashed"},
		{"sums from what was being installed", record("1.2.0", "1.1.0", ""), installing, "1.2.0 " + sum + " 7", "1.2.0 1.1.0", "it did not start"},
		{"installed by hand", record("1.3.0", "1.1.0", ""), installing, "1.3.0  0", "1.3.0 1.1.0", "it did not start"},
		{"only begun", strings.Replace(record("1.2.0", "1.1.0", ""), "done", "begun", 1), installing, "1.2.0 " + sum + " 7", "1.2.0 1.1.0", "it did not start"},
		{"then another version by hand", record("1.2.0", "1.0.0", ""), "", "1.2.0  0", "1.2.0 1.0.0", "it did not start; the machine runs 1.1.0 now"},
		{"damaged, but it was being installed", "\x00\x00", installing, "1.2.0 " + sum + " 7", "1.2.0 1.1.0", "the record of the rollback was damaged; this version was being installed before it"},
		{"empty, and nothing known", "", "", "", "", ""},
		{"the failed version did start in the end", record("1.1.0", "1.0.0", "reason=dpkg failed\n"), "", "", "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir, _ := confirmed(t, "1.1.0", func(dir string) {
				put(t, dir, fileRollback, c.record)
				if c.installing != "" {
					put(t, dir, fileInstalling, c.installing)
				}
				put(t, dir, fileStarts, "1.1.0 2\n")
			})
			var refused, report, reason string
			for _, r := range LookAtState(dir).Refused() {
				refused += r.Version + " " + r.SHA256 + " " + fmt.Sprint(r.Revision)
			}
			for _, f := range waiting(t, dir, events.ReportRolledBack) {
				r := f.(*events.NodeRolledBack)
				report, reason = r.From+" "+r.To, r.Reason
			}
			if refused != c.refused || report != c.report || reason != c.reason {
				t.Errorf("refused %q, reported %q because %q", refused, report, reason)
			}
			if get(t, dir, fileRollback) != "(missing)" || get(t, dir, fileRollbackLast) != c.record || get(t, dir, fileStarts) != "(missing)" {
				t.Error("the rollback is not armed again")
			}
		})
	}
}

func TestThePinGoesWhenTheMachineHasMovedOn(t *testing.T) {
	for _, c := range []struct {
		name, running string
		files         map[string]string
		stays         bool
	}{
		{"right after the rollback", "1.1.0", map[string]string{fileRollback: record("1.2.0", "1.1.0", "")}, true},
		{"at a later start of the old version", "1.1.0", map[string]string{fileRollbackLast: record("1.2.0", "1.1.0", "")}, true},
		{"the bad version itself", "1.2.0", map[string]string{fileRollbackLast: record("1.2.0", "1.1.0", "")}, false},
		{"the bad version itself, and the record is lost", "1.2.0", nil, false},
		{"a third version", "1.3.0", map[string]string{fileRollbackLast: record("1.2.0", "1.1.0", "")}, false},
		{"no rollback is known", "1.3.0", nil, true},
	} {
		dir, _ := confirmed(t, c.running, func(dir string) {
			put(t, dir, "pin", "Package: nox-mesh-host\nPin: version 1.2.0\nPin-Priority: -1\n")
			for name, content := range c.files {
				put(t, dir, name, content)
			}
		})
		if stays := get(t, dir, "pin") != "(missing)"; stays != c.stays {
			t.Errorf("%s: the pin stays: %v", c.name, stays)
		}
	}
}

func TestWhichPackagesAreKept(t *testing.T) {
	all := []string{"0.8.0", "0.9.0", "1.0.0", "1.1.0", "1.2.0", "1.3.0"}
	for _, c := range []struct {
		name, keep string
		files      map[string]string
	}{
		// 1.0.0 was known-good until now, so it is the previous one.
		{"after an upgrade", "1.0.0 1.1.0", map[string]string{fileKnownGood: "1.0.0\n", filePrevious: "0.9.0\n"}},
		{"at a later start", "0.9.0 1.1.0", map[string]string{fileKnownGood: "1.1.0\n", filePrevious: "0.9.0\n"}},
		{"with an upgrade under way", "0.8.0 0.9.0 1.0.0 1.1.0 1.2.0 1.3.0", map[string]string{fileKnownGood: "1.1.0\n", fileInstalling: "version=1.2.0\n"}},
		{"with an upgrade declared", "1.1.0 1.3.0", map[string]string{fileKnownGood: "1.1.0\n", fileDeclaration: declares("1.3.0")}},
	} {
		dir, _ := confirmed(t, "1.1.0", func(dir string) {
			for _, v := range all {
				put(t, dir, "packages/nox-mesh-host_"+v+"_amd64.deb", v)
			}
			for name, content := range c.files {
				put(t, dir, name, content)
			}
		})
		var kept []string
		for _, v := range all {
			if get(t, dir, "packages/nox-mesh-host_"+v+"_amd64.deb") != "(missing)" {
				kept = append(kept, v)
			}
		}
		if got := strings.Join(kept, " "); got != c.keep {
			t.Errorf("%s: kept %s", c.name, got)
		}
	}
}

// declares is a cached declaration of a host that will be refused: its machine
// has no parachute.
func declares(version string) string {
	r := events.ResourceFromSpec(events.ResourceHost, "nox-mesh-host", events.HostSpec{
		Release: events.Release{Version: version, Architecture: "amd64", Size: 5, SHA256: strings.Repeat("a", 64)}})
	return string(events.New("n1", &events.Declared{Node: "n1", Revision: 2, Resources: []events.Resource{r}},
		events.Origin{Source: "t", Actor: "t"}, time.Now()).Encode())
}

func TestAnUpgradeThatWasRecalledIsOver(t *testing.T) {
	dir, _ := confirmed(t, "1.1.0", func(dir string) {
		put(t, dir, fileInstalling, "version=1.2.0\nsha256=\nrevision=3\n")
		put(t, dir, fileDeclaration, declares("1.1.0"))
	})
	if get(t, dir, fileInstalling) != "(missing)" {
		t.Error("the note of the installation stays for ever")
	}
}

func TestAVersionThatCannotBeConfirmedRunsOnAndTriesAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := offlineConfig(t, "1.1.0")
		ready := false
		cfg.Ready = func() { ready = true }
		// In the place of the file that is written beside known-good.
		blocker := filepath.Join(cfg.StateDir, ".known-good.new")
		must0(t, os.MkdirAll(filepath.Join(blocker, "x"), 0o755))
		a := live(t, cfg, time.Minute)
		if !ready || a.isConfirmed() || get(t, cfg.StateDir, fileKnownGood) != "(missing)" {
			t.Error("it is not ready, or confirmed and cannot be")
		}
		if h := a.heartbeat(); len(h.Problems) != 1 || !strings.Contains(h.Problems[0], "cannot be confirmed") || h.Confirmed() {
			t.Errorf("heartbeat: %+v", h)
		}
		time.AfterFunc(30*time.Minute, func() { must0(t, os.RemoveAll(blocker)) })
		a = live(t, cfg, time.Hour)
		if h := a.heartbeat(); !h.Confirmed() || len(h.Problems) != 0 || get(t, cfg.StateDir, fileKnownGood) != "1.1.0\n" {
			t.Errorf("heartbeat: %+v", h)
		}
		if n := len(waiting(t, cfg.StateDir, events.ReportConfirmed)); n != 1 {
			t.Errorf("%d confirmations wait", n)
		}
	})
}
