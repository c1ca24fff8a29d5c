package nodeagent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"noxmesh/events"
)

// Units of the package.
const (
	HostUnit    = "nox-mesh-host.service"
	installUnit = "nox-mesh-host-install"
	rescueTimer = "nox-mesh-host-rescue.timer"
)

// Dpkg installs with dpkg, in a unit of its own: a dpkg in the host's own
// control group would be killed together with the host, half-way. For the same
// reason it writes to a file: a pipe to the host would break with the host.
type Dpkg struct {
	Log string // file for what dpkg says
	// LockWait is the pause before another try while someone else uses dpkg; 10 s.
	LockWait time.Duration
	run      func(ctx context.Context, name string, args ...string) ([]byte, error)
}

// Install runs dpkg -i to its end. It waits for dpkg's lock until ctx ends.
func (d Dpkg) Install(ctx context.Context, file string) error {
	run, pause := d.run, d.LockWait
	if run == nil {
		run = output
	}
	if pause <= 0 {
		pause = 10 * time.Second
	}
	for {
		// systemd-run may fail before dpkg starts: an old log must not explain it.
		if err := os.Remove(d.Log); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("the log of dpkg: %w", err)
		}
		out, err := d.inUnit(ctx, run, "dpkg", "-i", "--force-confdef", "--force-confold", file)
		if err == nil {
			return nil
		}
		if said, readErr := os.ReadFile(d.Log); readErr == nil {
			out = append(said, out...)
		}
		if ctx.Err() != nil {
			return fmt.Errorf("dpkg did not end in time (it may still run in %s.service): %s", installUnit, lastLines(out, err))
		}
		if !busy(out) {
			return fmt.Errorf("dpkg -i: %s", lastLines(out, err))
		}
		if wait(ctx, about(pause)) != nil {
			return fmt.Errorf("dpkg is in use by somebody else: %s", lastLines(out, err))
		}
	}
}

// inUnit runs a program outside of the host's control group.
func (d Dpkg) inUnit(ctx context.Context, run func(context.Context, string, ...string) ([]byte, error), program ...string) ([]byte, error) {
	return run(ctx, "systemd-run", append([]string{"--unit=" + installUnit, "--wait", "--collect", "--quiet",
		"--property=StandardOutput=append:" + d.Log, "--property=StandardError=append:" + d.Log,
		"--property=KillMode=mixed", "--property=TimeoutStopSec=10min", "--setenv=DEBIAN_FRONTEND=noninteractive",
		// SIGCONT does nothing to dpkg: a shutdown waits for it to end.
		"--property=KillSignal=SIGCONT"}, program...)...)
}

// mendScript asks again before it acts: what was half-installed a moment ago
// may be somebody's installation that has come to its end.
const mendScript = `case $(dpkg-query -W -f '${db:Status-Abbrev}' nox-mesh-host) in ?i | ?i' ') exit 0 ;; esac
exec dpkg -i --force-confdef --force-confold "$1"`

// Mend installs the file when dpkg has the host's package on its books as
// something else than installed. It does not wait for dpkg's lock.
func (d Dpkg) Mend(ctx context.Context, file string) (bool, error) {
	run := d.run
	if run == nil {
		run = output
	}
	out, err := run(ctx, "dpkg-query", "--show", "--showformat=${db:Status-Abbrev}", events.HostPackage)
	if s := string(out); err != nil || len(s) < 2 || s[1] == 'i' && strings.TrimSpace(s[2:]) == "" || s[1] == 'n' || s[1] == 'c' {
		return false, nil // all is well, or it was not installed as a package, or it was removed
	}
	if err := os.Remove(d.Log); err != nil && !errors.Is(err, os.ErrNotExist) {
		return false, fmt.Errorf("the log of dpkg: %w", err)
	}
	if out, err = d.inUnit(ctx, run, "/bin/sh", "-c", mendScript, "sh", file); err == nil {
		return true, nil
	}
	if said, readErr := os.ReadFile(d.Log); readErr == nil {
		out = append(said, out...)
	}
	if busy(out) || ctx.Err() != nil {
		return false, fmt.Errorf("%w: %s", ErrBusy, lastLines(out, err))
	}
	return false, fmt.Errorf("dpkg -i: %s", lastLines(out, err))
}

// busy says whether another dpkg, or an installation of ours from before a
// restart of the host, is under way.
func busy(out []byte) bool {
	text := string(out)
	return strings.Contains(text, "lock") && (strings.Contains(text, "another process") || strings.Contains(text, "is locked")) ||
		strings.Contains(text, installUnit+".service already exists") ||
		strings.Contains(text, installUnit+".service was already loaded")
}

// lastLines is why dpkg failed, on one line: what it calls errors, each with the
// line below it; without any, what it said at its end.
func lastLines(out []byte, err error) string {
	lines := strings.FieldsFunc(strings.TrimSpace(string(out)), func(r rune) bool { return r == '\n' })
	var errs []string
	for i, l := range lines {
		if strings.HasPrefix(l, "dpkg: error") || i > 0 && strings.HasPrefix(lines[i-1], "dpkg: error") {
			errs = append(errs, strings.TrimSpace(l))
		}
	}
	if len(errs) > 0 {
		lines = errs
	}
	lines = lines[max(0, len(lines)-4):]
	if len(lines) == 0 {
		return err.Error()
	}
	return events.Printable(strings.Join(lines, " | "), 350)
}

// output runs a program with nothing to read, and gives the end of what it wrote.
func output(ctx context.Context, name string, args ...string) ([]byte, error) {
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stdout, cmd.Stderr = &out, &out
	// systemd-run would tell the service manager of its own start in the host's name.
	cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "NOTIFY_SOCKET=") })
	cmd.WaitDelay = 5 * time.Second
	err := cmd.Run()
	raw := out.Bytes()
	return raw[max(0, len(raw)-16<<10):], err
}

// Simulate reads the package and has dpkg go through its installation without
// making it. That takes no lock and runs no script of the package, so it may be
// a child of the host.
func (d Dpkg) Simulate(ctx context.Context, file string) (PackageID, error) {
	run := d.run
	if run == nil {
		run = output
	}
	out, err := run(ctx, "dpkg-deb", "--show", "--showformat=${Package} ${Version} ${Architecture}", file)
	if err != nil {
		return PackageID{}, fmt.Errorf("dpkg-deb: %s", lastLines(out, err))
	}
	id := strings.Fields(string(out))
	if len(id) != 3 {
		return PackageID{}, fmt.Errorf("dpkg-deb: no control fields but %q", lastLines(out, errors.New("nothing")))
	}
	if out, err = run(ctx, "dpkg", "--simulate", "--force-confdef", "--force-confold", "--install", file); err != nil {
		if busy(out) || ctx.Err() != nil {
			return PackageID{}, fmt.Errorf("%w: %s", ErrBusy, lastLines(out, err))
		}
		return PackageID{}, fmt.Errorf("dpkg --simulate: %s", lastLines(out, err))
	}
	return PackageID{id[0], id[1], id[2]}, nil
}

// Systemd is the service manager of the machine.
type Systemd struct{}

// ResetFailed clears the start counter of the host's unit.
func (Systemd) ResetFailed(ctx context.Context) error {
	return systemctl(ctx, "reset-failed", HostUnit)
}

// AdoptKit reads changed unit files and starts the rescue timer.
func (Systemd) AdoptKit(ctx context.Context) error {
	return errors.Join(systemctl(ctx, "daemon-reload"), systemctl(ctx, "start", rescueTimer))
}

func systemctl(ctx context.Context, args ...string) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	if out, err := output(ctx, "systemctl", args...); err != nil {
		return fmt.Errorf("systemctl %s: %s", strings.Join(args, " "), lastLines(out, err))
	}
	return nil
}
