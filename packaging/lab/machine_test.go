package lab

import (
	"context"
	"errors"
	"net"
	"os"
	"strings"
	"testing"
	"time"
)

// newLab makes the lab of a test, or skips it where there can be none.
func newLab(t *testing.T) (*Lab, context.Context) {
	t.Helper()
	if os.Getenv("NOX_MESH_LAB") != "1" {
		const text = "not run: it boots real machines, so it waits to be asked: make lab, or NOX_MESH_LAB=1 go test -v ./packaging/lab"
		Loud(t.Name() + " is " + text + "\n")
		t.Skip(text)
	}
	ctx := t.Context()
	if deadline, ok := t.Deadline(); ok { // a test that is cut off tells nothing
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, deadline.Add(-20*time.Second))
		t.Cleanup(cancel)
	}
	err := Prepare(ctx, func(format string, args ...any) { t.Logf(format, args...) })
	if errors.Is(err, ErrCannotRun) {
		Loud(Banner(t.Name()+" IS SKIPPED: no machine was booted, no rollback was tried.", "", err.Error()))
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	l, err := New(os.Stdout)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l, ctx
}

// must ends the test on an error.
func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// execIn runs a program in a machine that must succeed.
func execIn(t *testing.T, ctx context.Context, m *Machine, args ...string) string {
	t.Helper()
	out, err := m.Exec(ctx, args...)
	must(t, err)
	return strings.TrimSpace(out)
}

// TestLabMachine holds the lab itself to what it promises: what it says about
// machines must be true before what is found on them can be.
func TestLabMachine(t *testing.T) {
	l, ctx := newLab(t)
	m, err := l.Machine(ctx, "alone", MachineOptions{OwnNetwork: true})
	must(t, err)
	must(t, m.WriteFile("/root/before", []byte("written while off\n"), 0o640))
	must(t, m.Boot(ctx))
	l.Say("alone", "is on")

	if got := execIn(t, ctx, m, "sh", "-c", "hostname; stat -c %a:%U /root/before; cat /root/before; systemctl is-system-running"); got != "alone\n640:root\nwritten while off\nrunning" {
		t.Errorf("inside the machine: %q", got)
	}
	var exit *ExitError
	if _, err := m.Exec(ctx, "sh", "-c", "echo so it is >&2; exit 7"); !errors.As(err, &exit) || exit.Status != 7 || exit.Stderr != "so it is\n" {
		t.Errorf("a program that fails: %v", err)
	}
	short, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
	if _, err := m.Exec(short, "sleep", "1000"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a program that takes too long: %v", err)
	}
	cancel()
	if out, err := m.Exec(ctx, "sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"); err != nil || strings.Contains(out, "sleep 1000") {
		t.Errorf("a program that took too long still runs: %v", err)
	}

	// A link that leads out of the machine is not followed.
	execIn(t, ctx, m, "ln", "-s", "/../../../../../../../../etc/passwd", "/root/out")
	if raw, err := m.ReadFile("/root/out"); err == nil {
		t.Errorf("reading through a link: %q", raw)
	}
	if _, err := m.ReadFile("/run/systemd/private"); err == nil {
		t.Error("a file in memory was read from the disk")
	}

	// The cable.
	listener, err := net.Listen("tcp", net.JoinHostPort(m.Gateway(), "0"))
	must(t, err)
	defer listener.Close()
	go func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			_ = c.Close()
		}
	}()
	_, port, _ := net.SplitHostPort(listener.Addr().String())
	reach := func() error {
		_, err := m.Exec(ctx, "timeout", "1", "bash", "-c", "</dev/tcp/"+m.Gateway()+"/"+port)
		return err
	}
	must(t, reach())
	must(t, m.CutNetwork(ctx))
	if reach() == nil {
		t.Error("the machine is reached through a cut cable")
	}
	must(t, m.MendNetwork(ctx))
	must(t, WaitFor(ctx, "the cable works again", 10*time.Second, func(context.Context) error { return reach() }))

	// The power.
	execIn(t, ctx, m, "sh", "-c", "echo kept >/root/kept; echo lost >/run/lost")
	execIn(t, ctx, m, "systemd-run", "--unit=busy", "--property=TimeoutStopSec=1", "sleep", "999")
	execIn(t, ctx, m, "journalctl", "--sync") // what is not read from its socket yet goes with the power
	must(t, m.Kill())
	if m.On() {
		t.Error("a machine without power is on")
	}
	if _, err := m.Exec(ctx, "true"); err == nil {
		t.Error("a program ran in a machine without power")
	}
	if raw, err := m.ReadFile("/root/kept"); err != nil || string(raw) != "kept\n" {
		t.Errorf("after the power cut: %q %v", raw, err)
	}
	if journal, err := m.Journal(ctx, "busy.service"); err != nil || !strings.Contains(journal, "busy.service") || strings.Contains(journal, "Stop") {
		t.Errorf("the journal after the power cut: %v\n%s", err, journal)
	}
	must(t, m.Boot(ctx))
	if got := execIn(t, ctx, m, "sh", "-c", "cat /root/kept; ls /run/lost 2>/dev/null || echo gone"); got != "kept\ngone" {
		t.Errorf("after the power came back: %q", got)
	}
	must(t, reach())
	must(t, m.Stop(ctx))
	if m.On() {
		t.Error("a machine that was powered off is on")
	}
	if journal, err := m.Journal(ctx, "systemd-journald.service"); err != nil || !strings.Contains(journal, "Journal stopped") {
		t.Errorf("it was not powered off in an orderly way: %v\n%s", err, journal)
	}
	must(t, m.Boot(ctx))
	execIn(t, ctx, m, "systemctl", "--no-block", "reboot")
	must(t, m.WaitOff(ctx))
	l.Say("alone", "survived a power cut, a poweroff and a reboot")

	dir := m.dir
	must(t, l.Close())
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the lab left %s behind: %v", dir, err)
	}
	for _, g := range m.cgroups {
		if _, err := os.Stat(g); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the lab left the control group %s behind: %v", g, err)
		}
	}
	if err := m.Boot(ctx); err == nil {
		t.Error("a machine of a closed lab was booted")
	}
}
