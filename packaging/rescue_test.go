package packaging_test

import (
	"os"
	"strings"
	"testing"
)

const rescues = "systemctl start --no-block nox-mesh-host-rollback.service\n"

// unloadable is the machine whose new version brought a unit file that systemd cannot load.
func unloadable(m *machine) {
	m.unit("LoadState", "bad-setting")
	m.unit("ActiveState", "inactive")
}

// stopped is the machine whose host ran and was stopped in order.
func stopped(m *machine) { m.unit("ActiveState", "inactive") }

func TestRescue(t *testing.T) {
	tests := []struct {
		name   string
		change func(m *machine)
		why    string // in the note for the rollback; "" means: nothing is started
	}{
		{"the unit cannot be loaded", unloadable, "systemd cannot load its unit: bad-setting"},
		{"the unit is gone", func(m *machine) {
			unloadable(m)
			m.unit("LoadState", "not-found")
		}, "systemd cannot load its unit: not-found"},
		{"the unit file is empty", func(m *machine) {
			unloadable(m)
			m.unit("LoadState", "masked")
		}, "its unit file is empty"},
		{"a person masked it", func(m *machine) {
			unloadable(m)
			m.unit("LoadState", "masked")
			if err := os.Symlink("/dev/null", m.units+"/nox-mesh-host.service"); err != nil {
				m.t.Fatal(err)
			}
		}, ""},
		{"a person masked it until the next boot", func(m *machine) {
			unloadable(m)
			m.unit("LoadState", "masked")
			if err := os.MkdirAll(m.volatile+"/systemd/system", 0o755); err != nil {
				m.t.Fatal(err)
			}
			if err := os.Symlink("/dev/null", m.volatile+"/systemd/system/nox-mesh-host.service"); err != nil {
				m.t.Fatal(err)
			}
		}, ""},
		{"a person disabled it", func(m *machine) {
			unloadable(m)
			m.remove(m.units + "/multi-user.target.wants/nox-mesh-host.service")
		}, ""},
		{"it failed and nothing followed", func(m *machine) {}, "it failed and no rollback followed"},
		{"it runs", func(m *machine) { m.unit("ActiveState", "active") }, ""},
		{"it starts", func(m *machine) { m.unit("ActiveState", "activating") }, ""},
		{"it still runs, and the new unit cannot be loaded", func(m *machine) {
			m.unit("LoadState", "bad-setting")
			m.unit("ActiveState", "active")
		}, ""},
		{"systemctl does not answer", func(m *machine) { m.unit("ActiveState", "") }, ""},
		{"stopped after the new version had started", stopped, ""},
		{"stopped by the installation", func(m *machine) {
			stopped(m)
			m.remove(m.state + "/starts")
		}, "it was stopped while 1.2.0 was installed, and not started again"},
		{"never started since the boot", func(m *machine) {
			stopped(m)
			m.unit("InactiveExitTimestampMonotonic", "0")
		}, "systemd has not started it since the boot"},
		{"about to be started", func(m *machine) {
			stopped(m)
			m.unit("InactiveExitTimestampMonotonic", "0")
			m.unit("Job", "123")
		}, ""},
		{"its unit sets a condition", func(m *machine) {
			stopped(m)
			m.unit("ConditionResult", "no")
		}, "its unit sets a condition that this machine does not meet"},
		{"no upgrade is under way", func(m *machine) {
			unloadable(m)
			m.remove(m.state + "/installing")
		}, ""},
		{"the upgrade is confirmed", func(m *machine) {
			unloadable(m)
			m.write(m.state+"/known-good", "1.2.0\n")
		}, ""},
		{"the upgrade did not come about", func(m *machine) {
			unloadable(m)
			m.write(m.fake+"/dpkg-version", "1.1.0")
		}, ""},
		{"the upgrade was cut short", func(m *machine) {
			unloadable(m)
			m.write(m.fake+"/dpkg-version", "1.1.0")
			m.write(m.fake+"/dpkg-state", "iHR")
		}, "systemd cannot load its unit: bad-setting"},
		{"another version was installed by hand", func(m *machine) {
			unloadable(m)
			m.write(m.fake+"/dpkg-version", "1.3.0")
		}, ""},
		{"the package was removed", func(m *machine) {
			unloadable(m)
			m.write(m.fake+"/dpkg-state", "rc ")
		}, ""},
		{"the package is being removed", func(m *machine) {
			unloadable(m)
			m.write(m.fake+"/dpkg-state", "ri ")
		}, ""},
		{"dpkg does not know it", func(m *machine) {
			unloadable(m)
			m.remove(m.fake + "/dpkg-version")
		}, ""},
		{"it was rolled back", func(m *machine) {
			unloadable(m)
			m.write(m.state+"/rollback", "id=1\nstatus=done\n")
		}, ""},
		{"the rollback was tried and failed", func(m *machine) {
			unloadable(m)
			m.write(m.state+"/rollback", "id=1\nstatus=failed\n")
		}, ""},
		{"the rollback was cut short", func(m *machine) {
			unloadable(m)
			m.write(m.fake+"/dpkg-version", "1.1.0")
			m.write(m.state+"/rollback", "id=1\nstatus=begun\n")
		}, "systemd cannot load its unit: bad-setting"},
		{"the rollback is at work", func(m *machine) {
			unloadable(m)
			m.write(m.fake+"/nox-mesh-host-rollback.service", "activating\n")
		}, ""},
		{"the installation is at work", func(m *machine) {
			unloadable(m)
			m.write(m.fake+"/nox-mesh-host-install.service", "active\n")
		}, ""},
		{"nothing was ever confirmed", func(m *machine) {
			unloadable(m)
			m.remove(m.state + "/known-good")
		}, ""},
		{"known-good is garbage", func(m *machine) {
			unloadable(m)
			m.write(m.state+"/known-good", "\x00; reboot\n")
		}, ""},
		{"what was being installed is garbage", func(m *machine) {
			unloadable(m)
			m.write(m.state+"/installing", "version=$(reboot)\n")
		}, ""},
		{"the count of looks is garbage", func(m *machine) {
			unloadable(m)
			m.write(m.volatile+"/nox-mesh-host.looks", "1.2.0 $(reboot)\n")
		}, "systemd cannot load its unit: bad-setting"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m := newMachine(t)
			tt.change(m)
			if exit, said := m.run("rescue"); exit != 0 || m.read(m.fake+"/calls") != "" {
				t.Errorf("the first look: exit %d, it called %q and said %s", exit, m.read(m.fake+"/calls"), said)
			}
			exit, said := m.run("rescue")
			calls := ""
			if tt.why != "" {
				calls = rescues
			}
			if exit != 0 || m.read(m.fake+"/calls") != calls || !strings.Contains(said, tt.why) {
				t.Errorf("the second look: exit %d, it called %q and said %s", exit, m.read(m.fake+"/calls"), said)
			}
			if got := strings.TrimSuffix(m.read(m.volatile+"/nox-mesh-host.rescue"), "\n"); got != tt.why {
				t.Errorf("the note says %q, want %q", got, tt.why)
			}
		})
	}
}

// TestRescueWantsTwoLooksInARow: one look in between that finds the host running begins anew, and a
// rollback that does not help is started again only now and then.
func TestRescueWantsTwoLooksInARow(t *testing.T) {
	m := newMachine(t)
	unloadable(m)
	m.run("rescue")
	m.unit("ActiveState", "active")
	m.run("rescue")
	m.unit("ActiveState", "inactive")
	if m.run("rescue"); m.read(m.fake+"/calls") != "" {
		t.Error("two looks that were not in a row were enough")
	}
	for range 80 {
		m.run("rescue")
	}
	if n := strings.Count(m.read(m.fake+"/calls"), rescues); n != 2 {
		t.Errorf("in 81 looks the rollback was started %d times", n)
	}
}

// TestRescuedByTheRollback runs the rollback as the rescue script would have it run.
func TestRescuedByTheRollback(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(m *machine)
		reason string // in the record; "" means: nothing is done
	}{
		{"a unit that cannot be loaded", unloadable, "1.2.0 did not start (systemd cannot load its unit: bad-setting); 1.1.0 is back"},
		{"a unit that cannot be loaded, after a failure", func(m *machine) {
			m.unit("LoadState", "not-found")
			m.unit("NRestarts", "0")
			m.unit("Result", "start-limit-hit")
		}, "1.2.0 did not start (systemd cannot load its unit: not-found); 1.1.0 is back"},
		{"a unit that cannot be loaded, while a process of it runs", func(m *machine) {
			m.unit("LoadState", "bad-setting")
			m.unit("ActiveState", "active")
		}, ""},
		{"inactive, with a note", func(m *machine) {
			stopped(m)
			m.write(m.volatile+"/nox-mesh-host.rescue", "nobody starts it\n")
		}, "1.2.0 did not start (nobody starts it); 1.1.0 is back"},
		{"it runs by now", func(m *machine) {
			m.unit("ActiveState", "active")
			m.write(m.volatile+"/nox-mesh-host.rescue", "nobody starts it\n")
		}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := newMachine(t)
			tt.change(m)
			exit, said := m.run("rollback")
			if got := m.record()["reason"]; exit != 0 || got != tt.reason {
				t.Errorf("exit %d, the record's reason is %q; it said %s", exit, got, said)
			}
			if m.exists(m.volatile + "/nox-mesh-host.rescue") {
				t.Error("the note stays, and would count for a later failure")
			}
		})
	}
}

// TestTheRollbackRunsFromAnywhere: it is a copy in rescue/ that runs.
func TestTheRollbackRunsFromAnywhere(t *testing.T) {
	m := newMachine(t)
	m.write(m.state+"/copy", m.read("rollback"))
	if exit, said := m.run(m.state + "/copy"); exit != 0 || m.record()["status"] != "done" {
		t.Errorf("exit %d: %s", exit, said)
	}
}
