package nodeagent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"

	"noxmesh/events"
)

// Units of the package.
const (
	HostUnit    = "nox-mesh-host.service"
	installUnit = "nox-mesh-host-install"
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

// dpkgScript does not end on SIGTERM, so that a shutdown waits for dpkg.
const dpkgScript = `trap '' TERM; exec dpkg -i --force-confdef --force-confold "$1"`

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
		out, err := run(ctx, "systemd-run", "--unit="+installUnit, "--wait", "--collect", "--quiet",
			"--property=StandardOutput=append:"+d.Log, "--property=StandardError=append:"+d.Log,
			"--property=KillMode=mixed", "--property=TimeoutStopSec=10min", "--setenv=DEBIAN_FRONTEND=noninteractive",
			"/bin/sh", "-c", dpkgScript, "sh", file)
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

// busy says whether another dpkg, or an installation of ours from before a
// restart of the host, is under way.
func busy(out []byte) bool {
	text := string(out)
	return strings.Contains(text, "lock") && (strings.Contains(text, "another process") || strings.Contains(text, "is locked")) ||
		strings.Contains(text, installUnit+".service already exists") ||
		strings.Contains(text, installUnit+".service was already loaded")
}

// lastLines is what dpkg said at its end, on one line.
func lastLines(out []byte, err error) string {
	lines := strings.FieldsFunc(strings.TrimSpace(string(out)), func(r rune) bool { return r == '\n' })
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
	cmd.WaitDelay = 5 * time.Second
	err := cmd.Run()
	raw := out.Bytes()
	return raw[max(0, len(raw)-16<<10):], err
}

// Systemd is the service manager of the machine.
type Systemd struct{}

// ResetFailed clears the start counter of the host's unit.
func (Systemd) ResetFailed(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	if out, err := output(ctx, "systemctl", "reset-failed", HostUnit); err != nil {
		return errors.New("systemctl reset-failed: " + lastLines(out, err))
	}
	return nil
}
