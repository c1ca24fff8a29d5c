package nodeagent

import (
	"encoding/json"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
)

func whats(o Overview) string {
	var b strings.Builder
	for _, f := range o.Findings {
		b.WriteString(f.What + "\n")
	}
	return b.String()
}

// arch is what a look takes the machine's architecture to be.
var arch = DebianArchitecture(runtime.GOARCH)

func retainHere(t *testing.T, dir, version string) {
	t.Helper()
	s, err := OpenState(dir)
	must0(t, err)
	put(t, dir, "incoming/x", "package "+version)
	must0(t, s.Retain(filepath.Join(dir, "incoming/x"), version, arch))
}

// ranFine is the directory of a host that runs and is well.
func ranFine(t *testing.T, dir string) {
	t.Helper()
	retainHere(t, dir, "1.1.0")
	put(t, dir, fileKnownGood, "1.1.0\n")
	put(t, dir, fileDeclaration, declares("1.1.0"))
	st := Status{At: time.Now(), Node: "n1", Version: "1.1.0", Confirmed: true, Applied: 2, Link: LinkStatus{Up: true, URL: "nats://x"}}
	raw, err := json.Marshal(st)
	must0(t, err)
	put(t, dir, fileStatus, string(raw))
}

func linkDown(t *testing.T, dir, reason string) {
	t.Helper()
	var st Status
	if !LookAtState(dir).readJSON(fileStatus, &st) {
		t.Fatal("no status")
	}
	st.Link.Up, st.Link.Reason = false, reason
	raw, err := json.Marshal(st)
	must0(t, err)
	put(t, dir, fileStatus, string(raw))
}

func TestLook(t *testing.T) {
	for _, c := range []struct {
		name     string
		dead     bool
		prepare  func(t *testing.T, dir string)
		findings []string // what they say, besides the credentials
	}{
		{"all is well", false, ranFine, nil},
		{"it never ran", true, func(*testing.T, string) {}, []string{"never run"}},
		{"it is dead", true, ranFine, []string{"the host does not run"}},
		{"it is dead and has rolled back", true, func(t *testing.T, dir string) {
			ranFine(t, dir)
			put(t, dir, fileRollback, record("1.2.0", "1.1.0", "reason=it crashed\n"))
		}, []string{"the rollback from 1.2.0 to 1.1.0 has been used (it crashed): the machine"}},
		{"the parachute is rotten", false, func(t *testing.T, dir string) {
			ranFine(t, dir)
			put(t, dir, "packages/nox-mesh-host_1.1.0_"+arch+".deb", "rot")
		}, []string{"could not roll back"}},
		{"the declared version is refused", false, func(t *testing.T, dir string) {
			ranFine(t, dir)
			put(t, dir, fileDeclaration, declares("1.2.0"))
			put(t, dir, fileRefused, `[{"version":"1.2.0","revision":2,"reason":"it crashed"}]`)
		}, []string{"version 1.2.0 is declared (revision 2) and refused here: it crashed"}},
		{"an upgrade is under way", false, func(t *testing.T, dir string) {
			ranFine(t, dir)
			put(t, dir, fileDeclaration, declares("1.2.0"))
		}, []string{"version 1.2.0 is declared (revision 2) and 1.1.0 runs"}},
		{"reports wait, files are damaged", false, func(t *testing.T, dir string) {
			ranFine(t, dir)
			put(t, dir, "outbox/00000000000000000001-x.confirmed.json", "{}")
			put(t, dir, fileRefused, "x")
		}, []string{"the link is up and reports still wait to be sent: 1", "refused.json is damaged"}},
		{"the link is down, which is ordinary, and so reports wait", false, func(t *testing.T, dir string) {
			ranFine(t, dir)
			linkDown(t, dir, "connecting: dial tcp: lookup mesh.example: no such host")
			put(t, dir, "outbox/00000000000000000001-x.confirmed.json", "{}")
		}, nil},
		{"the mesh refuses it", false, func(t *testing.T, dir string) {
			ranFine(t, dir)
			linkDown(t, dir, "connecting: nats: Authorization Violation")
		}, []string{"the mesh does not let this node in: connecting: nats: Authorization Violation"}},
		{"installed by hand, so there is no package yet", false, func(t *testing.T, dir string) {
			ranFine(t, dir)
			must0(t, os.RemoveAll(filepath.Join(dir, dirPackages)))
			put(t, dir, fileDrill, `{"at":"2026-01-01T00:00:00Z","version":"1.1.0","error":"package is not retained"}`)
		}, nil},
		{"the package was deleted", false, func(t *testing.T, dir string) {
			ranFine(t, dir)
			put(t, dir, filePrevious, "1.0.0\n")
			must0(t, os.RemoveAll(filepath.Join(dir, dirPackages)))
		}, []string{"the package of 1.1.0 is not kept here"}},
		{"the drill failed", false, func(t *testing.T, dir string) {
			ranFine(t, dir)
			put(t, dir, fileDrill, `{"at":"2026-01-01T00:00:00Z","version":"1.1.0","error":"dependency problems"}`)
		}, []string{"could not roll back when it was rehearsed: dependency problems"}},
		{"the drill of another version failed", false, func(t *testing.T, dir string) {
			ranFine(t, dir)
			put(t, dir, fileDrill, `{"at":"2026-01-01T00:00:00Z","version":"1.0.0","error":"dependency problems"}`)
		}, nil},
		{"the last drill was long ago", false, func(t *testing.T, dir string) {
			ranFine(t, dir)
			put(t, dir, fileDrill, `{"at":"2020-01-01T00:00:00Z","version":"1.1.0","ok":true}`)
		}, []string{"last rehearsed at 2020-01-01 00:00:00Z"}},
		{"the rescue kit is another version's", false, func(t *testing.T, dir string) {
			ranFine(t, dir)
			must0(t, os.MkdirAll(filepath.Join(dir, dirRescue), 0o755))
			put(t, dir, fileKitVersion, "1.0.0\n")
		}, []string{"the rescue kit is of 1.0.0 and known-good is 1.1.0"}},
		{"the package is half-installed", true, func(t *testing.T, dir string) {
			ranFine(t, dir)
			put(t, dir, "package-state", "iHR")
		}, []string{"the host does not run", `the package is not properly installed: dpkg says "iHR"`}},
		{"another version was installed by hand", false, func(t *testing.T, dir string) {
			ranFine(t, dir)
			put(t, dir, "installed", "1.5.0")
		}, []string{"version 1.1.0 runs and 1.5.0 is installed"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newState(t)
			c.prepare(t, s.dir)
			if !c.dead {
				unlock, err := s.lock()
				must0(t, err)
				defer unlock()
			}
			installed, state := "1.1.0", "ii"
			if s := get(t, s.dir, "package-state"); s != "(missing)" {
				state = s
			}
			if v := get(t, s.dir, "installed"); v != "(missing)" {
				installed = v
			}
			o := Look(s.dir, "/nonexistent/creds", Installed{installed, state})
			if len(o.Findings) != len(c.findings)+1 || !strings.Contains(o.Findings[0].What, "nox-mesh-host join TOKEN") {
				t.Errorf("findings:\n%s", whats(o))
			}
			for _, want := range c.findings {
				if !strings.Contains(whats(o), want) {
					t.Errorf("%q is not among the findings:\n%s", want, whats(o))
				}
			}
			if get(t, s.dir, fileRefused+".corrupt") != "(missing)" {
				t.Error("looking moved a file")
			}
		})
	}
}
