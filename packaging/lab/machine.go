package lab

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// MachineOptions say what a machine is like.
type MachineOptions struct {
	Release Release // [Debian12] if empty
	// OwnNetwork gives it an address of its own, which [Machine.CutNetwork] can
	// cut off. Otherwise it shares the network of this machine.
	OwnNetwork bool
}

// MeshName is what machines call the one that they run on.
const MeshName = "mesh.lab"

// Machine is one Debian machine. Its methods may be used by one goroutine at a
// time; different machines by different ones.
type Machine struct {
	Name    string
	lab     *Lab
	opts    MachineOptions
	number  int
	dir     string
	disk    *os.Root
	cgroups []string

	nspawn *exec.Cmd     // nil before the first boot
	exited chan struct{} // closed when it is off
	leader int           // pid of the machine's systemd, as seen from here
}

const (
	bootTimeout = 90 * time.Second
	stopTimeout = 90 * time.Second
)

// sigPowerOff tells a systemd to power off (SIGRTMIN+4).
const sigPowerOff = "SIGRTMIN+4"

// boot is the first program of a machine's own process namespace, where
// systemd-nspawn takes its place: $1.. its arguments; $NOX_MESH_CGROUPS the
// control groups it belongs in. It hides /run from nspawn, which would leave
// its locks there.
const boot = `
set -e
mount -t proc proc /proc
mount -t tmpfs tmpfs /run
for g in $NOX_MESH_CGROUPS; do echo 0 >"$g/cgroup.procs"; done
unset NOX_MESH_CGROUPS
exec systemd-nspawn "$@"
`

// Machine makes a machine, switched off.
func (l *Lab) Machine(ctx context.Context, name string, opts MachineOptions) (*Machine, error) {
	if opts.Release == "" {
		opts.Release = Debian12
	}
	root, err := l.Root(ctx, opts.Release)
	if err != nil {
		return nil, err
	}
	m := &Machine{Name: name, lab: l, opts: opts, dir: filepath.Join(l.dir, "machine-"+name)}
	l.mu.Lock()
	m.number, l.number = l.number, l.number+1
	l.mu.Unlock()
	if err := os.Mkdir(m.dir, 0o755); err != nil {
		return nil, fmt.Errorf("machine %s: %w", name, err)
	}
	for _, d := range []string{"upper", "work", "disk"} {
		if err := os.Mkdir(filepath.Join(m.dir, d), 0o755); err != nil {
			return nil, err
		}
	}
	if m.cgroups, err = makeCgroups(l.cgroups, name); err != nil {
		return nil, err
	}
	err = l.inNamespace(func() (err error) {
		disk := filepath.Join(m.dir, "disk")
		layers := fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", root, filepath.Join(m.dir, "upper"), filepath.Join(m.dir, "work"))
		if err := syscall.Mount("overlay", disk, "overlay", 0, layers); err != nil {
			return fmt.Errorf("mounting the disk of %s: %w: %s must be on a real disk, see NOX_MESH_LAB_DIR", name, err, l.base)
		}
		m.disk, err = os.OpenRoot(disk)
		return err
	})
	if err != nil {
		return nil, err
	}
	l.atEnd(func() { _ = m.disk.Close() })
	mesh := "127.0.0.1"
	if opts.OwnNetwork {
		mesh = m.Gateway()
	}
	id := make([]byte, 16)
	_, _ = rand.Read(id) // never fails
	return m, errors.Join(
		m.WriteFile("/etc/machine-id", fmt.Appendf(nil, "%x\n", id), 0o444),
		m.WriteFile("/etc/hostname", []byte(name+"\n"), 0o644),
		m.WriteFile("/etc/hosts", []byte("127.0.0.1 localhost "+name+"\n"+mesh+" "+MeshName+"\n"), 0o644))
}

// inNamespace runs f where the lab's mounts are.
func (l *Lab) inNamespace(f func() error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return errClosed
	}
	return l.ns.do(f)
}

// Boot switches the machine on and returns when its systemd has started all
// that it starts at boot.
func (m *Machine) Boot(ctx context.Context) error {
	if m.On() {
		return fmt.Errorf("machine %s is on already", m.Name)
	}
	ctx, cancel := context.WithTimeout(ctx, bootTimeout)
	defer cancel()
	socket := filepath.Join(m.dir, "notify")
	_ = os.Remove(socket)
	notes, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		return fmt.Errorf("machine %s: %w", m.Name, err)
	}
	defer notes.Close()
	console, err := os.OpenFile(m.console(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	defer console.Close()

	args := []string{"-c", boot, "sh", "--quiet", "--boot", "--directory=" + filepath.Join(m.dir, "disk"), "--machine=" + m.Name,
		"--register=no", "--keep-unit", "--link-journal=no", "--resolv-conf=off", "--timezone=off",
		"--console=read-only", "--notify-ready=yes", "--kill-signal=" + sigPowerOff}
	if m.opts.OwnNetwork {
		args = append(args, "--private-network")
	}
	cmd := exec.Command("/bin/sh", args...)
	cmd.Env = []string{"PATH=" + path, "NOTIFY_SOCKET=" + socket, "NOX_MESH_CGROUPS=" + strings.Join(m.cgroups, " ")}
	cmd.Dir, cmd.Stdout, cmd.Stderr = "/", console, console
	if err := m.lab.start(cmd, m.lab.ns.startApart); err != nil {
		return err
	}
	exited := make(chan struct{})
	m.nspawn, m.exited, m.leader = cmd, exited, 0
	go func() { _ = cmd.Wait(); close(exited) }()

	if err := m.waitReady(ctx, notes); err != nil {
		said, _ := os.ReadFile(m.console())
		return errors.Join(fmt.Errorf("machine %s did not boot: %w; its console says: %s", m.Name, err, lastLines(said, 5)), m.Kill())
	}
	if m.opts.OwnNetwork {
		return m.connect(ctx)
	}
	return nil
}

// waitReady waits until the machine's systemd tells that it is done booting.
func (m *Machine) waitReady(ctx context.Context, notes *net.UnixConn) error {
	ready := make(chan struct{})
	go func() { // ends with the socket
		buf := make([]byte, 4096)
		for {
			n, err := notes.Read(buf)
			if err != nil {
				return
			}
			for line := range strings.Lines(string(buf[:n])) {
				if strings.TrimSpace(line) == "READY=1" {
					close(ready)
					return
				}
			}
		}
	}()
	select {
	case <-ready:
	case <-m.exited:
		return fmt.Errorf("it ended: %s", m.nspawn.ProcessState)
	case <-ctx.Done():
		return fmt.Errorf("it is not up after %s", bootTimeout)
	}
	pid := m.nspawn.Process.Pid
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	if err != nil {
		return err
	}
	// nspawn's only child.
	if _, err := fmt.Sscan(string(raw), &m.leader); err != nil {
		return fmt.Errorf("systemd-nspawn has no child: %w", err)
	}
	return nil
}

// On says whether the machine is switched on.
func (m *Machine) On() bool {
	if m.nspawn == nil {
		return false
	}
	select {
	case <-m.exited:
		return false
	default:
		return true
	}
}

// Stop powers the machine off in an orderly way.
func (m *Machine) Stop(ctx context.Context) error {
	if !m.On() {
		return nil
	}
	if err := m.nspawn.Process.Signal(syscall.SIGTERM); err != nil { // nspawn passes on sigPowerOff
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, stopTimeout)
	defer cancel()
	select {
	case <-m.exited:
		return nil
	case <-ctx.Done():
		return errors.Join(fmt.Errorf("machine %s does not power off in %s", m.Name, stopTimeout), m.Kill())
	}
}

// Kill is a power cut: all processes of the machine end at once. The disk stays
// as it is.
func (m *Machine) Kill() error {
	if !m.On() {
		return nil
	}
	if err := m.nspawn.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	<-m.exited // the kernel has ended all others by then
	return nil
}

// WaitOff waits until the machine has switched itself off or restarts, which
// is the same here: a test that told it to reboot boots it again.
func (m *Machine) WaitOff(ctx context.Context) error {
	if m.nspawn == nil {
		return nil
	}
	select {
	case <-m.exited:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("waiting until machine %s is off: %w", m.Name, context.Cause(ctx))
	}
}

func (m *Machine) console() string { return filepath.Join(m.dir, "console.log") }

// inside checks a path on the machine's disk and makes it relative to it.
func inside(path string) (string, error) {
	clean := filepath.Clean(path)
	if !filepath.IsAbs(path) {
		return "", fmt.Errorf("%s is no absolute path", path)
	}
	for _, volatile := range []string{"/run", "/tmp", "/dev", "/proc", "/sys"} {
		if clean == volatile || strings.HasPrefix(clean, volatile+"/") {
			return "", &fs.PathError{Op: "reach", Path: path, Err: errors.New("not on the disk but in the memory of the machine: use Exec")}
		}
	}
	return strings.TrimPrefix(clean, "/"), nil
}
