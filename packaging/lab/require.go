package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
)

// ErrCannotRun is wrapped by the errors that say what this machine lacks for a
// lab: a test skips on it, loudly.
var ErrCannotRun = errors.New("the lab cannot run here")

// needed are the programs of a lab and the Debian packages that have them.
var needed = []struct{ program, debian string }{
	{"systemd-nspawn", "systemd-container"},
	{"debootstrap", "debootstrap"},
	{"dpkg-deb", "dpkg"},
	{"journalctl", "systemd"},
	{"nsenter", "util-linux"},
	{"ip", "iproute2"},
}

// Prepare checks that a lab can run here and installs what it needs from
// Debian. say hears what is installed.
func Prepare(ctx context.Context, say func(format string, args ...any)) error {
	if os.Geteuid() != 0 {
		return fmt.Errorf("%w: it boots machines, which only root may: sudo make lab", ErrCannotRun)
	}
	if _, err := os.Stat("/etc/debian_version"); err != nil {
		return fmt.Errorf("%w: it installs Debian packages with Debian's tools, and this is no Debian", ErrCannotRun)
	}
	if packages := missing(); len(packages) > 0 {
		say("installing %s from Debian", strings.Join(packages, " "))
		if err := install(ctx, packages); err != nil {
			return fmt.Errorf("%w: %s is missing and could not be installed (%w): apt-get install %[2]s", ErrCannotRun, strings.Join(packages, " "), err)
		}
		if still := missing(); len(still) > 0 {
			return fmt.Errorf("%w: %s is installed and yet not on PATH", ErrCannotRun, strings.Join(still, " "))
		}
	}
	out, err := exec.CommandContext(ctx, "unshare", "--mount", "--pid", "--fork", "--mount-proc", "true").CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: root may not make namespaces here (%s); in a container, run that one privileged", ErrCannotRun, lastLines(out, 1))
	}
	if _, err := cgroups(); err != nil {
		return fmt.Errorf("%w: %w", ErrCannotRun, err)
	}
	return probeOverlay(ctx)
}

// probeOverlay tries whether a machine's disk could be mounted.
func probeOverlay(ctx context.Context) error {
	base := baseDir()
	if err := os.MkdirAll(base, 0o755); err != nil {
		return fmt.Errorf("%w: %w", ErrCannotRun, err)
	}
	dir, err := os.MkdirTemp(base, "probe-")
	if err != nil {
		return fmt.Errorf("%w: %w", ErrCannotRun, err)
	}
	const probe = `cd "$1" && mkdir lower upper work disk && mount -t overlay overlay -o lowerdir=lower,upperdir=upper,workdir=work disk`
	out, err := exec.CommandContext(ctx, "unshare", "--mount", "/bin/sh", "-c", probe, "sh", dir).CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%w: %s cannot hold the disk of a machine (%s): name a directory on a real disk in NOX_MESH_LAB_DIR", ErrCannotRun, base, lastLines(out, 1))
	}
	return errors.Join(err, os.RemoveAll(dir))
}

func missing() []string {
	var packages []string
	for _, n := range needed {
		if _, err := exec.LookPath(n.program); err != nil {
			packages = append(packages, n.debian)
		}
	}
	return packages
}

func install(ctx context.Context, packages []string) error {
	for _, args := range [][]string{
		{"update"},
		append([]string{"install", "-y", "--no-install-recommends"}, packages...),
	} {
		cmd := exec.CommandContext(ctx, "apt-get", args...)
		cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("apt-get %s: %w: %s", args[0], err, lastLines(out, 3))
		}
	}
	return nil
}

// lastLines is the end of what a program said, on one line.
func lastLines(out []byte, n int) string {
	lines := strings.Split(string(bytes.TrimSpace(out)), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], " | ")
}
