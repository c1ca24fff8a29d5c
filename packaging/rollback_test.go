package packaging_test

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

const (
	installs = "dpkg -i --force-confdef --force-confold STATE/packages/nox-mesh-host_1.1.0_amd64.deb\n"
	starts   = "systemctl daemon-reload\nsystemctl reset-failed nox-mesh-host.service\nsystemctl start --no-block nox-mesh-host.service\n"
)

func TestRollback(t *testing.T) {
	tests := []struct {
		name   string
		change func(m *machine)
		exit   int
		says   string
		calls  string // of dpkg and systemctl, those that change something
		status string // in the record; "" means: no record
		pinned bool
	}{
		{"a version that does not start", func(m *machine) {}, 0,
			"rollback: 1.2.0 did not start; 1.1.0 is back", installs + starts, "done", true},
		{"the host runs", func(m *machine) { m.unit("ActiveState", "active") }, 0,
			"is active, not failed: nothing to do", "", "", false},
		{"the host was stopped", func(m *machine) { m.unit("ActiveState", "inactive") }, 0,
			"is inactive, not failed: nothing to do", "", "", false},
		{"the next start is still to come, and works", func(m *machine) {
			m.unit("ActiveState", "activating", "activating", "active")
		}, 0, "is active, not failed: nothing to do", "", "", false},
		{"the next starts are still to come, and fail", func(m *machine) {
			m.unit("ActiveState", "activating", "activating", "deactivating", "activating", "failed")
		}, 0, "1.1.0 is back", installs + starts, "done", true},
		{"it never settles", func(m *machine) { m.unit("ActiveState", "activating") }, 0,
			"is activating, not failed: nothing to do", "", "", false},
		{"systemctl does not answer", func(m *machine) { m.unit("ActiveState", "") }, 1,
			"cannot ask systemctl", "", "", false},
		{"nothing was ever confirmed", func(m *machine) { m.remove(m.state + "/known-good") }, 1,
			"no version was ever confirmed", "", "", false},
		{"known-good is empty", func(m *machine) { m.write(m.state+"/known-good", "") }, 1,
			"holds no version", "", "", false},
		{"known-good is garbage", func(m *machine) { m.write(m.state+"/known-good", "../../etc/passwd\n") }, 1,
			"holds no version", "", "", false},
		{"known-good would be an option", func(m *machine) { m.write(m.state+"/known-good", "--force-all\n") }, 1,
			"holds no version", "", "", false},
		{"known-good lacks its newline", func(m *machine) { m.write(m.state+"/known-good", "1.1.0") }, 0,
			"1.1.0 is back", installs + starts, "done", true},
		{"dpkg does not know the package", func(m *machine) { m.remove(m.fake + "/dpkg-version") }, 1,
			"dpkg does not know nox-mesh-host", "", "", false},
		{"it fired before", func(m *machine) { m.write(m.state+"/rollback", "from=1.2.0\nto=1.1.0\nstatus=done\n") }, 1,
			"already rolled back once, from 1.2.0 to 1.1.0: not again. nox-mesh-host.service stays failed on 1.2.0", "", "done", false},
		{"it fired before and the former version fails too", func(m *machine) {
			m.write(m.state+"/rollback", "from=1.2.0\nto=1.1.0\nstatus=done\n")
			m.write(m.fake+"/dpkg-version", "1.1.0")
		}, 1, "That one failed too, so this machine is the problem", "", "done", false},
		{"it fired before and failed", func(m *machine) { m.write(m.state+"/rollback", "from=1.2.0\nstatus=failed\n") }, 1,
			"already rolled back once", "", "failed", false},
		{"its record is garbage", func(m *machine) { m.write(m.state+"/rollback", "\x00\xff\nstatus=\n") }, 1,
			"already rolled back once", "", "", false},
		{"it was cut short", func(m *machine) {
			m.write(m.state+"/rollback", "id=9\nfrom=1.2.0\nto=1.1.0\nstatus=begun\nreason=x\njournal=y\n")
			m.unit("NRestarts", "0")
		}, 0, "finishing the rollback from 1.2.0 to 1.1.0", installs + starts, "done", true},
		{"the confirmed version crashes", func(m *machine) { m.write(m.fake+"/dpkg-version", "1.1.0") }, 1,
			"this machine is the problem", "", "", false},
		{"restarted from outside", func(m *machine) {
			m.write(m.fake+"/dpkg-version", "1.1.0")
			m.unit("NRestarts", "0")
			m.unit("Result", "start-limit-hit")
		}, 0, "Starting it again, once, with no rollback", starts, "", false},
		{"restarted from outside, after a rollback not yet reported", func(m *machine) {
			m.write(m.fake+"/dpkg-version", "1.1.0")
			m.write(m.state+"/rollback", "from=1.2.0\nstatus=done\n")
			m.unit("NRestarts", "0")
			m.unit("Result", "start-limit-hit")
		}, 0, "Starting it again, once, with no rollback", starts, "done", false},
		{"restarted from outside, once more", func(m *machine) {
			m.write(m.fake+"/dpkg-version", "1.1.0")
			m.write(m.state+"/restarted", "2026-01-01T00:00:00Z\n")
			m.unit("NRestarts", "0")
			m.unit("Result", "start-limit-hit")
		}, 1, "this machine is the problem", "", "", false},
		{"an unconfirmed version restarted from outside", func(m *machine) {
			m.unit("NRestarts", "0")
			m.unit("Result", "start-limit-hit")
		}, 0, "with no rollback", starts, "", false},
		{"exits 0 in a loop", func(m *machine) { m.unit("Result", "start-limit-hit") }, 0,
			"1.1.0 is back", installs + starts, "done", true},
		{"hangs on start", func(m *machine) { m.unit("Result", "timeout") }, 0,
			"1.1.0 is back", installs + starts, "done", true},
		{"a stop that took too long", func(m *machine) {
			m.unit("Result", "timeout")
			m.unit("NRestarts", "0")
		}, 1, "had to be killed. That says nothing against 1.2.0", "", "", false},
		{"a stop that took too long, of a host that restarted itself before", func(m *machine) {
			m.unit("Result", "timeout")
			m.unit("NRestarts", "1")
			m.unit("ActiveEnterTimestampMonotonic", "3000")
		}, 1, "had to be killed", "", "", false},
		{"a unit that systemd cannot start at all", func(m *machine) {
			m.unit("Result", "resources")
			m.unit("NRestarts", "0")
		}, 0, "1.1.0 is back", installs + starts, "done", true},
		{"the retained package is missing", func(m *machine) { m.remove(m.state + "/packages/nox-mesh-host_1.1.0_amd64.deb") }, 1,
			"nox-mesh-host_1.1.0_amd64.deb is missing", "", "failed", false},
		{"the cache was wiped", func(m *machine) { m.remove(m.state + "/packages") }, 1,
			"is missing", "", "failed", false},
		{"the checksum is missing", func(m *machine) { m.remove(m.state + "/packages/nox-mesh-host_1.1.0_amd64.deb.sha256") }, 1,
			"the checksum", "", "failed", false},
		{"the retained package is truncated", func(m *machine) { m.write(m.state+"/packages/nox-mesh-host_1.1.0_amd64.deb", "make") }, 1,
			"does not have its checksum", "", "failed", false},
		{"the retained package is another one", func(m *machine) { m.write(m.fake+"/deb-holds", "bash 5.2\nstatus=done") }, 1,
			"holds 'bash 5.2 status=done'", "", "failed", false},
		{"the lock is held for a while", func(m *machine) { m.write(m.fake+"/locked", "2") }, 0,
			"1.1.0 is back", installs + installs + installs + starts, "done", true},
		{"the lock is never free", func(m *machine) { m.write(m.fake+"/locked", "999") }, 1,
			"ended with 2", strings.Repeat(installs, 60), "failed", true},
		{"dpkg fails", func(m *machine) { m.write(m.fake+"/dpkg-fails", "1") }, 1,
			"ended with 1", installs, "failed", true},
		{"dpkg fails and leaves it half-installed", func(m *machine) {
			m.write(m.fake+"/dpkg-fails", "1")
			m.write(m.fake+"/dpkg-version", "1.1.0")
			m.write(m.fake+"/dpkg-state", "iHR")
		}, 1, "ended with 1", installs, "failed", true},
		{"dpkg unpacks and cannot configure", func(m *machine) {
			m.write(m.fake+"/dpkg-fails", "1")
			m.write(m.fake+"/dpkg-version", "1.1.0")
			m.write(m.fake+"/dpkg-state", "iF ")
		}, 0, "1.1.0 is back, but dpkg could not configure it", installs + starts, "done", true},
		{"the installation of the bad one was cut short", func(m *machine) {
			m.write(m.fake+"/dpkg-version", "1.1.0")
			m.write(m.fake+"/dpkg-state", "iHR")
		}, 0, "1.2.0 did not start; 1.1.0 is back", installs + starts, "done", true},
		{"the installation of the confirmed one was cut short", func(m *machine) {
			m.write(m.fake+"/dpkg-version", "1.1.0")
			m.write(m.fake+"/dpkg-state", "iU ")
			m.remove(m.state + "/installing")
		}, 0, "it is installed again", installs + starts, "done", false},
		{"the record cannot be written", func(m *machine) {
			if err := os.MkdirAll(m.state+"/rollback.tmp", 0o755); err != nil {
				m.t.Fatal(err)
			}
		}, 1, "is not rolled back: it could not be told from a second time", "", "", false},
		{"the pin cannot be written", func(m *machine) { m.remove(m.apt) }, 0,
			"apt may install 1.2.0 again", installs + starts, "done", false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m := newMachine(t)
			tt.change(m)
			exit, said := m.run("rollback")
			if exit != tt.exit {
				t.Errorf("exit %d, want %d", exit, tt.exit)
			}
			if !strings.Contains(said, tt.says) {
				t.Errorf("it did not say %q", tt.says)
			}
			if got := strings.ReplaceAll(m.read(m.fake+"/calls"), m.state, "STATE"); got != tt.calls {
				t.Errorf("it called:\n%swant:\n%s", got, tt.calls)
			}
			if got := m.record()["status"]; got != tt.status {
				t.Errorf("status %q in the record, want %q", got, tt.status)
			}
			if got := m.exists(m.apt + "/nox-mesh-host-rolled-back"); got != tt.pinned {
				t.Errorf("pinned: %v, want %v", got, tt.pinned)
			}
			if t.Failed() {
				t.Logf("it said:\n%s", said)
			}
		})
	}
}

// record returns the keys of the rollback record, the last value of each.
func (m *machine) record() map[string]string {
	fields := map[string]string{}
	for line := range strings.Lines(m.read(m.state + "/rollback")) {
		key, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
		fields[key] = value
	}
	return fields
}

// TestRecord looks at every line of the record, and at what hostile input does to it.
func TestRecord(t *testing.T) {
	m := newMachine(t)
	m.write(m.fake+"/journal", strings.Repeat("old\n", 30)+"caf\u00e9\tbar\r\nstatus=done\n"+strings.Repeat("x", 1000)+"\n\\nfrom=9.9.9\n")
	if exit, said := m.run("rollback"); exit != 0 {
		t.Fatalf("exit %d: %s", exit, said)
	}
	want := `id=[0-9a-f]{8}-[0-9a-f-]{27}
from=1\.2\.0
to=1\.1\.0
sha256=abc123
revision=7
at=20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ
restarts=3
exit=1
result=exit-code
systemd=257
(journal=old
){16}journal=caf\?\? bar\?
journal=status=done
journal=x{300}
journal=\\nfrom=9\.9\.9
status=done
reason=1\.2\.0 did not start; 1\.1\.0 is back
`
	if got := m.read(m.state + "/rollback"); !regexp.MustCompile(`\A` + want + `\z`).MatchString(got) {
		t.Errorf("the record is\n%s\nwant (a regular expression)\n%s", got, want)
	}
	if m.exists(m.state + "/starts") {
		t.Error("the counter of starts is still there")
	}
	pin := m.read(m.apt + "/nox-mesh-host-rolled-back")
	if !strings.HasSuffix(pin, "\nPackage: nox-mesh-host\nPin: version 1.2.0\nPin-Priority: -1\n") {
		t.Errorf("the pin is %q", pin)
	}
}

// TestRecordOfAForeignInstallation: somebody installed another version than the host did, so the host's
// checksum and revision are not its.
func TestRecordOfAForeignInstallation(t *testing.T) {
	m := newMachine(t)
	m.write(m.state+"/installing", "version=1.1.9\nsha256=abc123\nrevision=7\n")
	m.run("rollback")
	if r := m.record(); r["status"] != "done" || r["sha256"] != "" || r["revision"] != "" {
		t.Errorf("the record is %v", r)
	}
}

// TestRecordKeepsToItsLines: what dpkg says cannot add lines to the record.
func TestRecordKeepsToItsLines(t *testing.T) {
	m := newMachine(t)
	m.write(m.fake+"/dpkg-fails", "1")
	m.run("rollback")
	if r := m.record(); r["status"] != "failed" || !strings.Contains(r["reason"], "No space left on device") {
		t.Errorf("the record is %v", r)
	}
}

// TestRollsBackOnce goes on after the rollback: the former version fails too, then an operator clears
// the record, as the host does once it is confirmed, and a later bad version is rolled back again.
func TestRollsBackOnce(t *testing.T) {
	m := newMachine(t)
	if exit, said := m.run("rollback"); exit != 0 {
		t.Fatalf("the first: exit %d: %s", exit, said)
	}
	if exit, said := m.run("rollback"); exit != 1 || !strings.Contains(said, "already rolled back once") {
		t.Fatalf("the second: exit %d: %s", exit, said)
	}
	m.remove(m.state + "/rollback")
	m.write(m.fake+"/dpkg-version", "1.3.0")
	if exit, said := m.run("rollback"); exit != 0 || m.record()["from"] != "1.3.0" {
		t.Fatalf("the third: exit %d: %s", exit, said)
	}
}
