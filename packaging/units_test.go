package packaging_test

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// TestUnits has systemd read the units as an installed package shows them, and as they are once the
// host has put the rescue kit in place: in a root of their own, with the commands that they name.
func TestUnits(t *testing.T) {
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("systemd-analyze is not installed here (apt-get install systemd)")
	}
	for _, kit := range []bool{false, true} {
		verifyUnits(t, analyze, kit)
	}
}

func verifyUnits(t *testing.T, analyze string, kit bool) {
	t.Helper()
	root := t.TempDir()
	place := func(from, to string) {
		t.Helper()
		b, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.MkdirAll(filepath.Dir(root+to), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(root+to, b, 0o755); err != nil {
			t.Fatal(err)
		}
		if !strings.HasPrefix(to, "/usr/lib/nox-mesh-host/") && !strings.Contains(to, "/bin/") {
			if err := os.Chmod(root+to, 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	place("gate", "/usr/lib/nox-mesh-host/gate")
	place("rollback", "/usr/lib/nox-mesh-host/rollback")
	place("gate", "/usr/bin/nox-mesh-host") // anything that can be executed
	place("gate", "/usr/bin/nox-mesh")
	place("server/nox-mesh.service", "/usr/lib/systemd/system/nox-mesh.service")
	place("nox-mesh-host.service", "/usr/lib/systemd/system/nox-mesh-host.service")
	place("nox-mesh-host-rollback.service", "/usr/lib/systemd/system/nox-mesh-host-rollback.service")
	units := []string{"nox-mesh-host.service", "nox-mesh-host-rollback.service", "nox-mesh.service"}
	if kit {
		place("gate", "/bin/sh")
		for _, file := range kitFiles(t) {
			place("kit/"+file, "/etc/systemd/system/"+file)
		}
		units = append(units, "nox-mesh-host-rescue.service", "nox-mesh-host-rescue.timer")
	}
	for _, target := range []string{"sysinit", "basic", "shutdown", "multi-user", "timers", "time-set", "time-sync", "network-online"} {
		if err := os.WriteFile(root+"/usr/lib/systemd/system/"+target+".target", []byte("[Unit]\nDescription="+target+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	out, err := exec.Command(analyze, append([]string{"verify", "--root=" + root, "--man=no"}, units...)...).CombinedOutput()
	if err != nil || len(out) > 0 {
		t.Errorf("systemd-analyze verify, with the kit: %v: %v\n%s", kit, err, out)
	}
}

// TestTheServerIsShutIn: systemd takes from the server what it does not need. What
// is left over is the network.
func TestTheServerIsShutIn(t *testing.T) {
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("systemd-analyze is not installed here (apt-get install systemd)")
	}
	out, err := exec.Command(analyze, "security", "--offline=true", "--threshold=15", "--no-pager", "server/nox-mesh.service").CombinedOutput()
	if err != nil {
		t.Errorf("systemd-analyze security finds more than 1.5 of exposure: %v\n%s", err, out)
	}
}

// settings reads a unit file: "[Section]Key" to its values in order.
func settings(t *testing.T, file string) map[string][]string {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	section, values := "", map[string][]string{}
	for line := range strings.Lines(string(b)) {
		line = strings.TrimSpace(line)
		switch key, value, ok := strings.Cut(line, "="); {
		case strings.HasPrefix(line, "["):
			section = line
		case ok && !strings.HasPrefix(line, "#"):
			values[section+key] = append(values[section+key], value)
		}
	}
	return values
}

// TestHangsFitTheStartLimit recomputes what the unit's comment claims.
func TestHangsFitTheStartLimit(t *testing.T) {
	number := map[string]int{}
	for key, values := range settings(t, "nox-mesh-host.service") {
		if n, err := strconv.Atoi(values[0]); err == nil {
			number[key] = n
		}
	}
	burst, interval := number["[Unit]StartLimitBurst"], number["[Unit]StartLimitIntervalSec"]
	if burst != 3 || interval != 120 {
		t.Fatalf("[Unit] has StartLimitBurst=%d and StartLimitIntervalSec=%d, the record says 3 and 120", burst, interval)
	}
	for _, hang := range []string{"TimeoutStartSec", "WatchdogSec"} {
		once := number["[Service]"+hang] + number["[Service]TimeoutStopSec"] + number["[Service]RestartSec"]
		if number["[Service]"+hang] == 0 || burst*once >= interval {
			t.Errorf("%s: %d hangs of up to %d s do not fit into %d s", hang, burst, once, interval)
		}
	}
}

// TestTheKitAgreesWithThePackage: the copies in the kit must not drift from the units that they guard.
func TestTheKitAgreesWithThePackage(t *testing.T) {
	unit, guard := settings(t, "nox-mesh-host.service"), settings(t, "kit/nox-mesh-host.service.d/50-nox-mesh-confirmed.conf")
	const keptGate = "/bin/sh -c 'test ! -r /var/lib/mesh-host/rescue/gate || exec /bin/sh /var/lib/mesh-host/rescue/gate'"
	if pre := guard["[Service]ExecStartPre"]; !slices.Equal(pre, []string{"", keptGate}) {
		t.Errorf("the drop-in does not put the kept gate in the place of the unit's own: %q", pre)
	}
	delete(guard, "[Service]ExecStartPre")
	for key, values := range guard {
		if key != "[Service]RemainAfterExit" && !slices.Equal(unit[key], values) {
			t.Errorf("%s is %q in the drop-in and %q in the unit", key, values, unit[key])
		}
	}
	rollback, kept := settings(t, "nox-mesh-host-rollback.service"), settings(t, "kit/nox-mesh-host-rollback.service")
	if kept["[Service]ExecStart"][0] != "/bin/sh /var/lib/mesh-host/rescue/rollback" {
		t.Errorf("the kept rollback unit runs %q", kept["[Service]ExecStart"])
	}
	delete(rollback, "[Service]ExecStart")
	delete(kept, "[Service]ExecStart")
	if !reflect.DeepEqual(rollback, kept) {
		t.Errorf("the rollback unit is\n%v\nand the kept one\n%v", rollback, kept)
	}
}

// kitFiles are the files of the kit that go to /etc/systemd/system.
func kitFiles(t *testing.T) []string {
	t.Helper()
	var files []string
	err := fs.WalkDir(os.DirFS("kit"), ".", func(path string, e fs.DirEntry, err error) error {
		if err == nil && !e.IsDir() {
			files = append(files, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// TestTheKitIsShippedAndRemoved: the package has every file of the kit, and postrm takes every one away.
func TestTheKitIsShippedAndRemoved(t *testing.T) {
	manifest, err := os.ReadFile("nfpm.yaml")
	if err != nil {
		t.Fatal(err)
	}
	postrm, err := os.ReadFile("postrm")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range append(kitFiles(t), "timers.target.wants/nox-mesh-host-rescue.timer") {
		if !strings.Contains(string(manifest), "dst: /usr/lib/nox-mesh-host/kit/system/"+file+"\n") {
			t.Errorf("nfpm.yaml does not ship %s", file)
		}
		if !strings.Contains(string(postrm), "$etc/"+file) {
			t.Errorf("postrm does not remove %s", file)
		}
	}
}
