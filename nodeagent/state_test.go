package nodeagent

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"noxmesh/events"
)

func put(t *testing.T, dir, name, content string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

func get(t *testing.T, dir, name string) string {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		return "(missing)"
	}
	return string(raw)
}

func newState(t *testing.T) *State {
	t.Helper()
	s, err := OpenState(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestKnownGoodReadsWhatIsThere(t *testing.T) {
	for _, c := range []struct {
		name, content, want string
		aside               bool
	}{
		{"a version", "1.2.3\n", "1.2.3", false},
		{"no newline", "1.2.3", "1.2.3", false},
		{"empty", "", "", true},
		{"garbage", "\x00\x00\x00", "", true},
		{"two lines", "1.2.3\n1.2.4\n", "", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newState(t)
			if s.KnownGood() != "" || len(s.Trouble()) != 0 {
				t.Error("a missing file is no version and no trouble")
			}
			put(t, s.dir, "known-good", c.content)
			look := LookAtState(s.dir)
			if got := look.KnownGood(); got != c.want || get(t, s.dir, "known-good") != c.content {
				t.Errorf("looking gave %q, and the file is %q", got, get(t, s.dir, "known-good"))
			}
			if got := s.KnownGood(); got != c.want {
				t.Errorf("got %q", got)
			}
			aside := get(t, s.dir, "known-good.corrupt") == c.content
			if aside != c.aside || (len(s.Trouble()) == 1) != c.aside || (len(look.Trouble()) == 1) != c.aside {
				t.Errorf("set aside: %v, said: %v and %v", aside, s.Trouble(), look.Trouble())
			}
		})
	}
}

func TestADirectoryInAFilesPlace(t *testing.T) {
	s := newState(t)
	if err := os.MkdirAll(filepath.Join(s.dir, "known-good", "x"), 0o755); err != nil {
		t.Fatal(err)
	}
	if v := s.KnownGood(); v != "" || len(s.Trouble()) != 1 {
		t.Errorf("got %q, %v", v, s.Trouble())
	}
	if err := s.write(fileKnownGood, []byte("1.0.0\n")); err != nil || s.KnownGood() != "1.0.0" {
		t.Errorf("it cannot be written afterwards: %v", err)
	}
}

func TestWritesLeaveNothingBehind(t *testing.T) {
	s := newState(t)
	put(t, s.dir, ".known-good.new", "left by a power cut")
	for _, v := range []string{"1.0.0\n", "1.1.0\n"} {
		if err := s.write(fileKnownGood, []byte(v)); err != nil {
			t.Fatal(err)
		}
	}
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	if want := []string{"incoming", "known-good", "outbox", "packages"}; !slices.Equal(names, want) {
		t.Errorf("the directory holds %v", names)
	}
}

func TestOneHostADirectory(t *testing.T) {
	s := newState(t)
	if s.hostRuns() {
		t.Error("a host runs before one was started")
	}
	unlock, err := s.lock()
	if err != nil {
		t.Fatal(err)
	}
	if !s.hostRuns() {
		t.Error("no host is seen")
	}
	if _, err := s.lock(); err == nil || !strings.Contains(err.Error(), "systemctl stop") {
		t.Errorf("a second host: %v", err)
	}
	unlock()
	if s.hostRuns() {
		t.Error("a host is seen after its end")
	}
}

func TestRollbackRecordReadsBack(t *testing.T) {
	s := newState(t)
	if _, fired := s.Rollback(); fired {
		t.Error("it fired with no record")
	}
	want := RollbackRecord{ID: "an-id", From: "1.2.0", To: "1.1.0", SHA256: strings.Repeat("a", 64), Revision: 7, At: "2026-01-02T03:04:05Z",
		Restarts: 3, Exit: "1", Result: "exit-code", Systemd: "252", Status: "done", Reason: "failed = really", Journal: []string{"a=b", "", "c"}}
	if err := s.WriteRollback(want); err != nil {
		t.Fatal(err)
	}
	got, fired := s.Rollback()
	if !fired || fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %+v", got)
	}
}

func TestDamagedRollbackRecordsStillSayThatItFired(t *testing.T) {
	for _, raw := range []string{"", "\x00\x00", "from", "from=\nto=\n", "restarts=many\nrevision=-1\nfrom=1.2.0\x01\n", strings.Repeat("journal=x\n", 100)} {
		s := newState(t)
		put(t, s.dir, "rollback", raw)
		r, fired := s.Rollback()
		if !fired || len(r.Journal) > 20 || strings.ContainsRune(r.From, 1) {
			t.Errorf("%q reads as %+v, %v", raw, r, fired)
		}
	}
}

func TestInstallingReadsBack(t *testing.T) {
	s := newState(t)
	want := Installing{"1.2.0", strings.Repeat("b", 64), 9}
	if err := s.writeInstalling(want); err != nil {
		t.Fatal(err)
	}
	if got, ok := s.Installing(); !ok || got != want {
		t.Errorf("got %+v, %v", got, ok)
	}
	put(t, s.dir, "installing", "version=$(reboot)\n")
	if _, ok := s.Installing(); ok || get(t, s.dir, "installing.corrupt") == "(missing)" {
		t.Error("garbage was taken")
	}
}

func TestRefusals(t *testing.T) {
	sumA, sumB := strings.Repeat("a", 64), strings.Repeat("b", 64)
	list := []Refusal{{Version: "1.2.0", SHA256: sumA, Revision: 5}, {Version: "1.3.0", Revision: 6}}
	spec := func(version, sum string, retry bool) events.HostSpec {
		return events.HostSpec{Release: events.Release{Version: version, SHA256: sum}, Retry: retry}
	}
	for _, c := range []struct {
		name     string
		spec     events.HostSpec
		revision uint64
		want     bool
	}{
		{"the same package", spec("1.2.0", sumA, false), 9, true},
		{"rebuilt under the same version", spec("1.2.0", sumB, false), 9, false},
		{"a later declaration with retry", spec("1.2.0", sumA, true), 6, false},
		{"the declaration that failed with retry", spec("1.2.0", sumA, true), 5, true},
		{"refused without a checksum", spec("1.3.0", sumB, false), 9, true},
		{"refused without a checksum, retry", spec("1.3.0", sumB, true), 7, false},
		{"another version", spec("1.4.0", sumA, false), 9, false},
	} {
		if _, got := refusal(list, c.spec, c.revision); got != c.want {
			t.Errorf("%s: refused is %v", c.name, got)
		}
	}
	s := newState(t)
	for _, r := range []Refusal{list[0], list[1], {Version: "1.2.0", SHA256: sumA, Revision: 8}} {
		if err := s.refuse(r); err != nil {
			t.Fatal(err)
		}
	}
	if got := s.Refused(); len(got) != 2 || got[1].Revision != 8 {
		t.Errorf("refused: %+v", got)
	}
	if err := s.unrefuse("1.2.0"); err != nil || len(s.Refused()) != 1 {
		t.Errorf("refused: %+v, %v", s.Refused(), err)
	}
	put(t, s.dir, "refused.json", `[{"version":`)
	if s.Refused() != nil || len(s.Trouble()) != 1 {
		t.Error("a damaged list was read")
	}
}

func TestRetainedPackages(t *testing.T) {
	s := newState(t)
	retain := func(v string) {
		put(t, s.dir, "incoming/x", "package "+v)
		if err := s.Retain(filepath.Join(s.dir, "incoming/x"), v, "amd64"); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Retained("1.0.0", "amd64"); err != ErrNotRetained {
		t.Errorf("got %v", err)
	}
	for _, v := range []string{"1.0.0", "1.1.0", "1:2.0", "1.2.0"} {
		retain(v)
		if sum, err := s.Retained(v, "amd64"); err != nil || len(sum) != 64 {
			t.Errorf("%s: %q, %v", v, sum, err)
		}
	}
	if get(t, s.dir, "packages/nox-mesh-host_1%3a2.0_amd64.deb") != "package 1:2.0" {
		t.Error("an epoch is not in the name as apt writes it")
	}
	if line := get(t, s.dir, "packages/nox-mesh-host_1.0.0_amd64.deb.sha256"); !strings.HasSuffix(line, "  nox-mesh-host_1.0.0_amd64.deb\n") {
		t.Errorf("the checksum's line is %q", line)
	}
	put(t, s.dir, "packages/nox-mesh-host_1.1.0_amd64.deb", "rotten")
	if _, err := s.Retained("1.1.0", "amd64"); err == nil || err == ErrNotRetained {
		t.Errorf("a damaged package: %v", err)
	}
	// A checksum that is right for another file says nothing about this one.
	put(t, s.dir, "packages/nox-mesh-host_1.2.0_amd64.deb.sha256", strings.ReplaceAll(get(t, s.dir, "packages/nox-mesh-host_1.2.0_amd64.deb.sha256"), "1.2.0", "1.0.0"))
	if _, err := s.Retained("1.2.0", "amd64"); err == nil {
		t.Error("a checksum with another name was taken")
	}
	put(t, s.dir, "packages/other.deb", "not ours")
	if err := s.prune("amd64", "1.0.0", "", "1:2.0"); err != nil {
		t.Fatal(err)
	}
	left, err := filepath.Glob(filepath.Join(s.dir, "packages", "*.deb"))
	if err != nil || len(left) != 3 {
		t.Errorf("left: %v, %v", left, err)
	}
}

func TestBackoffGrowsAndKeepsItsJitterAtTheCap(t *testing.T) {
	for _, n := range []int{1, 2, 5, 40, 1 << 30} {
		distinct, over := map[int64]bool{}, false
		for range 2000 {
			d := backoff(n, 1000, 16000)
			if d < 1000 || d >= 17000 || (n == 1 && d >= 2000) {
				t.Errorf("pause %d is %d", n, d)
			}
			distinct[int64(d)] = true
			over = over || d > 16000
		}
		if n >= 5 && (len(distinct) < 1500 || !over) {
			t.Errorf("pause %d has only %d values, over the cap: %v", n, len(distinct), over)
		}
	}
}
