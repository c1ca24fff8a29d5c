package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// path is PATH for programs in a machine.
const path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// ExitError is a program that ended with another status than 0.
type ExitError struct {
	Machine string
	Args    []string
	Status  int    // -1 if a signal ended it
	Stdout  string // whole
	Stderr  string // whole
}

func (e *ExitError) Error() string {
	said := strings.TrimSpace(e.Stderr)
	if said == "" {
		said = strings.TrimSpace(e.Stdout)
	}
	return fmt.Sprintf("%s: %s: status %d: %s", e.Machine, strings.Join(e.Args, " "), e.Status, lastLines([]byte(said), 5))
}

// Exec runs a program in the machine, as root and with nothing to read, and
// gives what it wrote to standard output. The error of one that ran and failed
// is an [*ExitError].
func (m *Machine) Exec(ctx context.Context, args ...string) (string, error) {
	if !m.On() || m.leader == 0 {
		return "", fmt.Errorf("%s: %s: the machine is off", m.Name, strings.Join(args, " "))
	}
	cmd := exec.CommandContext(ctx, "nsenter", append([]string{"--target", strconv.Itoa(m.leader), "--all", "--"}, args...)...)
	cmd.Env = []string{"PATH=" + path, "HOME=/root", "LANG=C.UTF-8", "TERM=dumb", "DEBIAN_FRONTEND=noninteractive"}
	// nsenter has a child in the machine, so both are killed.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 2 * time.Second // what it started may hold its output open
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	switch {
	case err == nil || errors.Is(err, exec.ErrWaitDelay):
		return out.String(), nil
	case ctx.Err() != nil:
		return out.String(), fmt.Errorf("%s: %s: %w", m.Name, strings.Join(args, " "), context.Cause(ctx))
	case errors.As(err, &exit):
		return out.String(), &ExitError{Machine: m.Name, Args: args, Status: exit.ExitCode(), Stdout: out.String(), Stderr: errs.String()}
	}
	return out.String(), fmt.Errorf("%s: %s: %w", m.Name, strings.Join(args, " "), err)
}

// ReadFile reads a file on the machine's disk, on or off. It gives
// [os.ErrNotExist] for one that is not there.
func (m *Machine) ReadFile(path string) ([]byte, error) {
	name, err := inside(path)
	if err != nil {
		return nil, err
	}
	return m.disk.ReadFile(name)
}

// Exists says whether there is something at a path on the machine's disk.
func (m *Machine) Exists(path string) (bool, error) {
	name, err := inside(path)
	if err != nil {
		return false, err
	}
	_, err = m.disk.Lstat(name)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// WriteFile writes a file on the machine's disk, on or off: whole, with its
// mode, owned by root, its directory made if need be.
func (m *Machine) WriteFile(path string, data []byte, mode os.FileMode) error {
	name, err := inside(path)
	if err != nil {
		return err
	}
	if err := m.disk.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return fmt.Errorf("%s: %w", m.Name, err)
	}
	tmp := name + ".lab-tmp"
	err = m.disk.WriteFile(tmp, data, 0o600)
	if err == nil {
		err = errors.Join(m.disk.Chmod(tmp, mode), m.disk.Rename(tmp, name))
	}
	if err != nil {
		return fmt.Errorf("%s: %w", m.Name, err)
	}
	return nil
}

// Remove removes a file on the machine's disk, or a directory with all in it.
func (m *Machine) Remove(path string) error {
	name, err := inside(path)
	if err != nil {
		return err
	}
	return m.disk.RemoveAll(name)
}

// CopyIn copies a file of this machine's to the machine's disk.
func (m *Machine) CopyIn(from, to string, mode os.FileMode) error {
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return m.WriteFile(to, data, mode)
}

// Journal gives the lines of a unit in the machine's journal, oldest first, of
// all boots, with the machine on or off. More arguments of journalctl may
// follow, like "-o", "json".
func (m *Machine) Journal(ctx context.Context, unit string, more ...string) (string, error) {
	var out, errs bytes.Buffer
	args := append([]string{"--directory", filepath.Join(m.dir, "disk/var/log/journal"), "--unit", unit, "--no-pager", "--quiet", "--output=short-iso"}, more...)
	cmd := exec.CommandContext(ctx, "journalctl", args...)
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := m.lab.Start(cmd); err != nil {
		return "", err
	}
	if err := cmd.Wait(); err != nil {
		return out.String(), fmt.Errorf("the journal of %s on %s: %w: %s", unit, m.Name, err, lastLines(errs.Bytes(), 2))
	}
	return out.String(), nil
}
