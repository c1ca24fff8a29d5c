package nodeagent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// simulated is a package manager that only simulates.
type simulated struct {
	nothing
	id    PackageID
	errs  []error // one a call, then none
	calls int
}

func (s *simulated) Simulate(context.Context, string) (PackageID, error) {
	s.calls++
	if len(s.errs) > 0 {
		err := s.errs[0]
		s.errs = s.errs[1:]
		return s.id, err
	}
	return s.id, nil
}

func TestDrill(t *testing.T) {
	for _, c := range []struct {
		name    string
		prepare func(t *testing.T, dir string, pm *simulated)
		want    string // of the error in the result; empty: it could roll back
	}{
		{"it could", func(*testing.T, string, *simulated) {}, ""},
		{"a rollback that was cut short will be finished", func(t *testing.T, dir string, _ *simulated) {
			put(t, dir, fileRollback, "from=1.2.0\nto=1.1.0\nstatus=begun\n")
		}, ""},
		{"with a kit", func(t *testing.T, dir string, _ *simulated) {
			must0(t, os.MkdirAll(dir+"/rescue", 0o755))
			put(t, dir, fileKitVersion, "1.1.0\n")
			put(t, dir, "rescue/rollback", "#!/bin/sh\n")
		}, ""},
		{"nothing confirmed", func(t *testing.T, dir string, _ *simulated) { must0(t, os.Remove(dir+"/"+fileKnownGood)) }, "no version was ever confirmed"},
		{"used up", func(t *testing.T, dir string, _ *simulated) { put(t, dir, fileRollback, record("1.2.0", "1.1.0", "")) }, "was used and is not armed again"},
		{"another version's kit", func(t *testing.T, dir string, _ *simulated) {
			must0(t, os.MkdirAll(dir+"/rescue", 0o755))
			put(t, dir, fileKitVersion, "1.0.0\n")
		}, "the rescue kit is of 1.0.0 and known-good is 1.1.0"},
		{"half a kit", func(t *testing.T, dir string, _ *simulated) {
			must0(t, os.MkdirAll(dir+"/rescue", 0o755))
			put(t, dir, fileKitVersion, "1.1.0\n")
		}, "has no rollback script"},
		{"no package", func(t *testing.T, dir string, _ *simulated) { must0(t, os.RemoveAll(dir+"/packages")) }, "package is not retained"},
		{"rot", func(t *testing.T, dir string, _ *simulated) {
			put(t, dir, "packages/nox-mesh-host_1.1.0_"+arch+".deb", "rot")
		}, "does not match its checksum"},
		{"dpkg would not take it", func(_ *testing.T, _ string, pm *simulated) {
			pm.errs = []error{errors.New("dpkg: dependency problems")}
		}, "the package manager would not install it: dpkg: dependency problems"},
		{"another version under its name", func(_ *testing.T, _ string, pm *simulated) { pm.id.Version = "1.0.0" }, "the retained package is nox-mesh-host 1.0.0"},
		{"another package under its name", func(_ *testing.T, _ string, pm *simulated) { pm.id.Name = "bash" }, "the retained package is bash"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newState(t)
			retainHere(t, s.dir, "1.1.0")
			put(t, s.dir, fileKnownGood, "1.1.0\n")
			pm := &simulated{id: PackageID{"nox-mesh-host", "1.1.0", arch}}
			c.prepare(t, s.dir, pm)
			d, err := Drill(t.Context(), s, arch, pm)
			must0(t, err)
			if d.OK != (c.want == "") || !strings.Contains(d.Error, c.want) || d.OK == (len(d.Next) > 0) {
				t.Errorf("got %+v", d)
			}
		})
	}
}

// TestDrillsAreDaily runs hosts in simulated time.
func TestDrillsAreDaily(t *testing.T) {
	drilled := func(t *testing.T, pm *simulated, prepare func(dir string), d time.Duration) (*Agent, string) {
		var a *Agent
		cfg := offlineConfig(t, "1.1.0")
		cfg.Architecture, cfg.Packages = arch, pm
		cfg.Timings.Heartbeat = time.Hour // so that the days pass quickly
		pm.nothing, pm.id = nothing{t}, PackageID{"nox-mesh-host", "1.1.0", arch}
		retainHere(t, cfg.StateDir, "1.1.0")
		prepare(cfg.StateDir)
		synctest.Test(t, func(t *testing.T) { a = live(t, cfg, d) })
		return a, cfg.StateDir
	}
	nothingBefore := func(string) {}
	// A test's time begins at the start of the year 2000.
	before := func(version, at string) func(string) {
		return func(dir string) {
			put(t, dir, fileDrill, fmt.Sprintf(`{"at":%q,"ok":true,"version":%q}`, at, version))
		}
	}
	busy := fmt.Errorf("%w: dpkg", ErrBusy)
	for _, c := range []struct {
		name   string
		before func(string)
		errs   []error
		after  time.Duration
		calls  int
	}{
		{"the first comes soon", nothingBefore, nil, 2 * time.Minute, 1},
		{"and is not repeated", nothingBefore, nil, 20 * time.Hour, 1},
		{"but on the next day", nothingBefore, nil, 27 * time.Hour, 2},
		{"a restart is no reason for one", before("1.1.0", "1999-12-31T23:00:00Z"), nil, 20 * time.Hour, 0},
		{"it is due where the last one was long ago", before("1.1.0", "1999-12-01T00:00:00Z"), nil, 2 * time.Minute, 1},
		{"it is due for another version", before("1.0.0", "1999-12-31T23:00:00Z"), nil, 2 * time.Minute, 1},
		{"it is due after the clock was set back", before("1.1.0", "2001-01-01T00:00:00Z"), nil, 2 * time.Minute, 1},
		{"one that failed is repeated in an hour", nothingBefore, []error{errors.New("dependency problems")}, 2 * time.Hour, 2},
		{"dpkg is busy for a while", nothingBefore, []error{busy, busy}, 20 * time.Hour, 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			pm := &simulated{errs: c.errs}
			a, dir := drilled(t, pm, c.before, c.after)
			if pm.calls != c.calls {
				t.Errorf("%d drills", pm.calls)
			}
			if c.calls == 0 {
				return
			}
			if h := a.heartbeat(); h.Drill == nil || !h.Drill.OK {
				t.Errorf("heartbeat: %+v", h)
			}
			if d, ok := LookAtState(dir).LastDrill(); !ok || d.Version != "1.1.0" || len(d.Checked) != 5 {
				t.Errorf("kept: %+v", d)
			}
		})
	}
	pm := &simulated{errs: []error{errors.New("dependency problems")}}
	if a, _ := drilled(t, pm, nothingBefore, 2*time.Minute); a.heartbeat().Drill == nil || a.heartbeat().Drill.OK {
		t.Errorf("a drill that failed is not in the heartbeat: %+v", a.heartbeat())
	}
}

func TestDpkgSimulates(t *testing.T) {
	for _, c := range []struct {
		name         string
		fields, said string
		want         string // of the error, or of the package
	}{
		{"it works", "nox-mesh-host 1.1.0 amd64", "", "{nox-mesh-host 1.1.0 amd64}"},
		{"no package at all", "!dpkg-deb: error: not a Debian format archive", "", "dpkg-deb: dpkg-deb: error: not a Debian format archive"},
		{"no control fields", "", "", `dpkg-deb: no control fields but "nothing"`},
		{"dependencies", "nox-mesh-host 1.1.0 amd64", "dpkg: dependency problems", "dpkg --simulate: dpkg: dependency problems"},
		{"in use", "nox-mesh-host 1.1.0 amd64", "dpkg: error: dpkg frontend lock was locked by another process with pid 7", ErrBusy.Error() + ": dpkg: error: dpkg frontend lock was locked by another process with pid 7"},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := Dpkg{run: func(_ context.Context, name string, args ...string) ([]byte, error) {
				text := c.said
				if name == "dpkg-deb" {
					text = c.fields
				} else if args[0] != "--simulate" || args[len(args)-1] != "/x.deb" {
					t.Errorf("it ran %s %q", name, args)
				}
				if failed, ok := strings.CutPrefix(text, "!"); ok || name == "dpkg" && text != "" {
					return []byte(failed), errors.New("exit status 2")
				}
				return []byte(text), nil
			}}
			id, err := d.Simulate(t.Context(), "/x.deb")
			got := fmt.Sprint(id)
			if err != nil {
				got = err.Error()
			}
			if got != c.want {
				t.Errorf("got %s", got)
			}
		})
	}
}
