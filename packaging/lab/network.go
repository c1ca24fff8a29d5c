package lab

import (
	"context"
	"fmt"
	"os/exec"
	"strconv"
)

// A machine with a network of its own has a cable to this one, with an address
// at each end. They come from 198.18.0.0/15, which is set aside for tests of
// networks, so no real one is hidden. Both ends go with the machine.

// Address is the machine's, on its own network.
func (m *Machine) Address() string { return m.address(2) }

// Gateway is this machine's address, as the machine sees it.
func (m *Machine) Gateway() string { return m.address(1) }

func (m *Machine) address(host int) string {
	return fmt.Sprintf("198.%d.%d.%d", 18+m.lab.slot/64, m.lab.slot%64*4+m.number/64, m.number%64*4+host)
}

// cable is the name of the network device at this end.
func (m *Machine) cable() string { return fmt.Sprintf("nml%d-%d", m.lab.slot, m.number) }

// CutNetwork pulls the cable of a machine with [MachineOptions.OwnNetwork].
func (m *Machine) CutNetwork(ctx context.Context) error {
	return ip(ctx, "link", "set", m.cable(), "down")
}

// MendNetwork puts the cable back in.
func (m *Machine) MendNetwork(ctx context.Context) error {
	return ip(ctx, "link", "set", m.cable(), "up")
}

// connect lays the cable of a machine that has just been switched on.
func (m *Machine) connect(ctx context.Context) error {
	pid := strconv.Itoa(m.leader)
	// One of a former lab, cut when it ended, stays as long as the kernel tries to
	// say goodbye through it.
	_ = ip(ctx, "link", "delete", m.cable())
	for _, args := range [][]string{
		{"link", "add", m.cable(), "type", "veth", "peer", "name", "host0", "netns", pid},
		{"address", "add", m.Gateway() + "/30", "dev", m.cable()},
		{"link", "set", m.cable(), "up"},
	} {
		if err := ip(ctx, args...); err != nil {
			return err
		}
	}
	for _, args := range [][]string{
		{"address", "add", m.Address() + "/30", "dev", "host0"},
		{"link", "set", "host0", "up"},
		{"route", "add", "default", "via", m.Gateway()},
	} {
		if err := run(ctx, "nsenter", append([]string{"--target", pid, "--net", "ip"}, args...)...); err != nil {
			return err
		}
	}
	return nil
}

func ip(ctx context.Context, args ...string) error { return run(ctx, "ip", args...) }

func run(ctx context.Context, name string, args ...string) error {
	if out, err := exec.CommandContext(ctx, name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s %v: %w: %s", name, args, err, lastLines(out, 2))
	}
	return nil
}
