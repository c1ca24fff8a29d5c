package nodeagent

import (
	"encoding/json"
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
		}, []string{"1 report waits", "refused.json is damaged"}},
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
			installed := "1.1.0"
			if v := get(t, s.dir, "installed"); v != "(missing)" {
				installed = v
			}
			o := Look(s.dir, "/nonexistent/creds", installed)
			if len(o.Findings) != len(c.findings)+1 || !strings.Contains(o.Findings[0].What, "nox-mesh node enroll") {
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
