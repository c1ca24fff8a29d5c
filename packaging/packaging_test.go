// Package packaging_test runs the shell scripts of the package as they are shipped, with stand-ins for
// dpkg, systemctl and the others first on PATH. The stand-ins answer from files and write down how they
// were called; they install and start nothing. What real ones do is the lab's to show.
package packaging_test

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// standIns are the fake commands. Each finds the machine's make-believe state in $FAKE.
var standIns = map[string]string{
	"dpkg-query": `
case "$3" in
'${Version}') f=version ;;
'${db:Status-Abbrev}') f=state ;;
*) echo "fake dpkg-query: unexpected: $*" >&2; exit 99 ;;
esac
cat "$FAKE/dpkg-$f"`,

	// The first $FAKE/locked calls find the lock held. Then $FAKE/dpkg-fails is the exit code, if there.
	"dpkg": `
if [ "$1" = --print-architecture ]; then echo amd64; exit 0; fi
echo "dpkg $*" >>"$FAKE/calls"
locked=$(cat "$FAKE/locked" 2>/dev/null || echo 0)
if [ "$locked" -gt 0 ]; then
	echo $((locked - 1)) >"$FAKE/locked"
	echo "dpkg: error: dpkg frontend lock was locked by another process with pid 7" >&2
	exit 2
fi
if [ -e "$FAKE/dpkg-fails" ]; then
	printf 'cannot copy extracted data\\nstatus=done: No space left on device\n' >&2
	exit "$(cat "$FAKE/dpkg-fails")"
fi
echo 1.1.0 >"$FAKE/dpkg-version"
echo "ii " >"$FAKE/dpkg-state"`,

	"dpkg-deb": `cat "$FAKE/deb-holds"`,

	// ActiveState is a list, one a call, of which the last stays.
	"systemctl": `
case "$1" in
--version) echo "systemd 257 (257.9-1~deb13u1)"; exit 0 ;;
show)
	case "$2 $3 $5" in
	"--value -p nox-mesh-host.service") ;;
	"--value -p nox-mesh-host-install.service" | "--value -p nox-mesh-host-rollback.service")
		cat "$FAKE/$5" 2>/dev/null || echo inactive
		exit 0 ;;
	*) echo "fake systemctl: unexpected: $*" >&2; exit 99 ;;
	esac
	head -n 1 "$FAKE/unit-$4"
	[ "$(wc -l <"$FAKE/unit-$4")" -le 1 ] || sed -i 1d "$FAKE/unit-$4"
	exit 0 ;;
esac
echo "systemctl $*" >>"$FAKE/calls"`,

	"journalctl": `cat "$FAKE/journal"`,
	"sleep":      `echo "sleep $*" >>"$FAKE/slept"`,
}

// machine is a make-believe node: 1.2.0 is installed and failed, 1.1.0 is known to work and retained.
type machine struct {
	t        *testing.T
	state    string // of the node, /var/lib/mesh-host there
	fake     string
	bin      string
	apt      string
	volatile string // /run there
	units    string // /etc/systemd/system there
}

func newMachine(t *testing.T) *machine {
	t.Helper()
	dir := t.TempDir()
	m := &machine{t: t, state: dir + "/state", fake: dir + "/fake", bin: dir + "/bin", apt: dir + "/preferences.d",
		volatile: dir + "/run", units: dir + "/units"}
	for _, d := range []string{m.state + "/packages", m.fake, m.bin, m.apt, m.volatile, m.units + "/multi-user.target.wants"} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, body := range standIns {
		m.write(m.bin+"/"+name, "#!/bin/sh\n# A fake for tests.\n"+body+"\n")
		if err := os.Chmod(m.bin+"/"+name, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("/usr/lib/systemd/system/nox-mesh-host.service", m.units+"/multi-user.target.wants/nox-mesh-host.service"); err != nil {
		t.Fatal(err)
	}
	m.unit("LoadState", "loaded")
	m.unit("ActiveState", "failed")
	m.unit("Job", "0")
	m.unit("InactiveExitTimestampMonotonic", "500")
	m.unit("ConditionResult", "yes")
	m.unit("NRestarts", "3")
	m.unit("Result", "exit-code")
	m.unit("ExecMainStatus", "1")
	m.unit("ActiveEnterTimestampMonotonic", "1000")
	m.unit("ExecMainStartTimestampMonotonic", "2000")
	m.write(m.fake+"/dpkg-version", "1.2.0")
	m.write(m.fake+"/dpkg-state", "ii ")
	m.write(m.fake+"/deb-holds", "nox-mesh-host 1.1.0")
	m.write(m.fake+"/journal", "Started\npanic: no such thing\n")
	m.write(m.state+"/known-good", "1.1.0\n")
	m.write(m.state+"/starts", "1.2.0 3\n")
	m.write(m.state+"/installing", "version=1.2.0\nsha256=abc123\nrevision=7\n")
	m.retain("nox-mesh-host_1.1.0_amd64.deb")
	return m
}

func (m *machine) retain(name string) {
	deb := "make-believe package " + name
	m.write(m.state+"/packages/"+name, deb)
	m.write(m.state+"/packages/"+name+".sha256", fmt.Sprintf("%x  %s\n", sha256.Sum256([]byte(deb)), name))
}

func (m *machine) unit(property string, values ...string) {
	m.write(m.fake+"/unit-"+property, strings.Join(values, "\n")+"\n")
}

func (m *machine) write(path, content string) {
	m.t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		m.t.Fatal(err)
	}
}

func (m *machine) remove(path string) {
	m.t.Helper()
	if err := os.RemoveAll(path); err != nil {
		m.t.Fatal(err)
	}
}

// read returns the content of a file, "" when there is none.
func (m *machine) read(path string) string {
	m.t.Helper()
	b, err := os.ReadFile(path)
	if err != nil && !os.IsNotExist(err) {
		m.t.Fatal(err)
	}
	return string(b)
}

func (m *machine) exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// run runs one script of this folder under dash and returns its exit code and what it said.
func (m *machine) run(script string) (int, string) {
	m.t.Helper()
	cmd := exec.Command("sh", script)
	cmd.Env = []string{
		"PATH=" + m.bin + ":/usr/bin:/bin", "FAKE=" + m.fake, "LANG=C.UTF-8",
		"MESH_HOST_STATE_DIR=" + m.state, "MESH_HOST_APT_PREFERENCES_DIR=" + m.apt,
		"MESH_HOST_RUN_DIR=" + m.volatile, "MESH_HOST_UNIT_DIR=" + m.units,
	}
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	if _, exited := err.(*exec.ExitError); err != nil && !exited {
		m.t.Fatal(err)
	}
	if stdout.Len() > 0 {
		m.t.Errorf("%s wrote to standard output, where nobody looks: %s", script, stdout.String())
	}
	for _, bad := range []string{"unexpected", "not found", "Illegal number", "syntax error", "parameter not set"} {
		if strings.Contains(stderr.String(), bad) {
			m.t.Errorf("%s stumbled: %s", script, stderr.String())
		}
	}
	return cmd.ProcessState.ExitCode(), stderr.String()
}

// TestShellcheck holds every script to shellcheck.
func TestShellcheck(t *testing.T) {
	shellcheck, err := exec.LookPath("shellcheck")
	if err != nil {
		t.Skip("shellcheck is not installed here (apt-get install shellcheck)")
	}
	if out, err := exec.Command(shellcheck, "gate", "rollback", "rescue", "postinst", "prerm", "postrm",
		"server/postinst", "server/prerm", "server/postrm").CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
