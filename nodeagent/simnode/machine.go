package simnode

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/rs/zerolog"
	"pault.ag/go/debian/deb"

	"noxmesh/events"
	"noxmesh/nodeagent"
)

// Config of a simulated machine.
type Config struct {
	Dir string // the machine's disk; a machine made on it again goes on
	// Token is what the machine joins with when it is first run; without one,
	// and until it has joined, it has no link.
	Token string
	// Version is installed at first. Package, if given, is its package, which
	// is then retained as after an upgrade; without it the machine was
	// installed by hand.
	Version string
	Package []byte
	// Architecture in Debian's words; this machine's if empty.
	Architecture string
	Timings      nodeagent.Timings
	// RestartDelay is between a failed start and the next; 2 s.
	RestartDelay time.Duration
	// InstallDelay is how long the simulated dpkg takes.
	InstallDelay time.Duration
	// Crashes says which versions die on start.
	Crashes func(version string) bool
	Logger  zerolog.Logger
	// Event hears the machine's story, a line at a time.
	Event func(line string)
}

// starts is how many failed starts the service manager takes.
const starts = 3

// Machine is one simulated machine.
type Machine struct {
	cfg   Config
	state *nodeagent.State

	mu       sync.Mutex
	failures int
}

// New makes a machine, or takes one up again where its directory is.
func New(cfg Config) (*Machine, error) {
	if err := events.CheckVersion(cfg.Version); err != nil {
		return nil, err
	}
	if cfg.Architecture == "" {
		cfg.Architecture = nodeagent.DebianArchitecture(runtime.GOARCH)
	}
	if cfg.RestartDelay == 0 {
		cfg.RestartDelay = 2 * time.Second
	}
	if cfg.Crashes == nil {
		cfg.Crashes = func(string) bool { return false }
	}
	if cfg.Event == nil {
		cfg.Event = func(string) {}
	}
	m := &Machine{cfg: cfg}
	state, err := nodeagent.OpenState(m.stateDir())
	if err != nil {
		return nil, err
	}
	m.state = state
	if m.Installed() != "" {
		return m, nil
	}
	if cfg.Package != nil {
		tmp := filepath.Join(cfg.Dir, "initial.deb")
		if err := os.WriteFile(tmp, cfg.Package, 0o644); err != nil {
			return nil, err
		}
		if err := m.state.Retain(tmp, cfg.Version, cfg.Architecture); err != nil {
			return nil, err
		}
	}
	return m, m.setInstalled(cfg.Version)
}

func (m *Machine) stateDir() string { return filepath.Join(m.cfg.Dir, "mesh-host") }

// StateDir is the host's state directory on the machine.
func (m *Machine) StateDir() string { return m.stateDir() }

// Installed is the version that is installed.
func (m *Machine) Installed() string {
	raw, err := os.ReadFile(filepath.Join(m.cfg.Dir, "installed"))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(raw))
}

func (m *Machine) setInstalled(version string) error {
	return os.WriteFile(filepath.Join(m.cfg.Dir, "installed"), []byte(version+"\n"), 0o644)
}

// Run is the service manager: it starts the installed version, again and again,
// until the context ends. The error says that the simulation itself failed.
func (m *Machine) Run(ctx context.Context) error {
	if err := m.join(ctx); err != nil && ctx.Err() == nil {
		return fmt.Errorf("the simulated machine in %s: %w", m.cfg.Dir, err)
	}
	for ctx.Err() == nil {
		version := m.Installed()
		if m.cfg.Crashes(version) {
			n := m.failed()
			m.cfg.Event(fmt.Sprintf("version %s crashes on start (%d of %d)", version, n, starts))
			if n >= starts {
				back, err := m.rollback(ctx, version)
				if err != nil {
					return err
				}
				if !back {
					m.cfg.Event("the host stays in a failed state")
					<-ctx.Done()
					return nil
				}
				continue
			}
			if !pause(ctx, m.cfg.RestartDelay) {
				return nil
			}
			continue
		}
		m.cfg.Event("version " + version + " starts")
		exit, err := m.runAgent(ctx, version)
		if err != nil {
			return fmt.Errorf("the simulated machine in %s: %w", m.cfg.Dir, err)
		}
		if exit == nodeagent.ExitUpgraded {
			m.cfg.Event("version " + m.Installed() + " is installed, the host exits to start it")
		}
	}
	return nil
}

func (m *Machine) configDir() string { return filepath.Join(m.cfg.Dir, "etc") }

// join is what an operator does on the machine.
func (m *Machine) join(ctx context.Context) error {
	if m.cfg.Token == "" {
		return nil
	}
	if _, err := os.Stat(nodeagent.NodeCredsFile(m.configDir())); err == nil {
		return nil
	}
	id := filepath.Join(m.cfg.Dir, "machine-id")
	if err := os.WriteFile(id, []byte(strings.ReplaceAll(uuid.NewString(), "-", "")+"\n"), 0o444); err != nil && !errors.Is(err, fs.ErrPermission) {
		return err // it has one from before
	}
	_, err := nodeagent.Join(ctx, nodeagent.JoinConfig{Dir: m.configDir(), Token: m.cfg.Token, MachineIDFile: id})
	return err
}

func (m *Machine) runAgent(ctx context.Context, version string) (nodeagent.Exit, error) {
	url, err := nodeagent.URLIn(m.configDir())
	if err != nil {
		return nodeagent.ExitStopped, err
	}
	dir := m.configDir()
	ca := nodeagent.CAFile(dir)
	if _, err := os.Stat(ca); errors.Is(err, fs.ErrNotExist) {
		ca = "" // it was given an identity by hand, for a test's broker
	}
	agent, err := nodeagent.New(nodeagent.Config{
		StateDir: m.stateDir(), URL: url, Version: version, Architecture: m.cfg.Architecture,
		CredsFile: nodeagent.NodeCredsFile(dir), DoorFile: nodeagent.DoorCredsFile(dir), CAFile: ca, PinsFile: nodeagent.PinsFile(dir),
		Timings: m.cfg.Timings, Packages: packages{m}, Supervisor: supervisor{m}, Logger: m.cfg.Logger,
		Ready: func() {
			m.forget()
			m.cfg.Event("version " + version + " is confirmed")
		},
	})
	if err != nil {
		return nodeagent.ExitStopped, err
	}
	return agent.Run(ctx)
}

func (m *Machine) failed() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.failures++
	return m.failures
}

func (m *Machine) forget() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.failures = 0
}

// rollback is the rollback unit: once, to known-good, out of what the machine
// has itself. It says whether the host may be started again.
func (m *Machine) rollback(ctx context.Context, failed string) (bool, error) {
	if _, fired := m.state.Rollback(); fired {
		m.cfg.Event("the rollback has been used: the machine is the likelier cause now")
		return false, nil
	}
	good := m.state.KnownGood()
	if good == "" {
		m.cfg.Event("there is no known-good version to go back to")
		return false, nil
	}
	if good == failed {
		m.cfg.Event("the known-good version itself fails: going back cannot help")
		return false, nil
	}
	r := nodeagent.RollbackRecord{
		ID: uuid.NewString(), From: failed, To: good, At: time.Now().UTC().Format(time.RFC3339), Restarts: starts,
		Exit: "1", Result: "exit-code", Systemd: "simulated", Status: "begun",
		Reason:  fmt.Sprintf("version %s failed to start %d times", failed, starts),
		Journal: []string{"nox-mesh-host[1]: simulated crash of version " + failed},
	}
	if i, ok := m.state.Installing(); ok && i.Version == failed {
		r.SHA256, r.Revision = i.SHA256, i.Revision
	}
	if _, err := m.state.Retained(good, m.cfg.Architecture); err != nil {
		m.cfg.Event(fmt.Sprintf("no way back to %s: %v", good, err))
		return false, nil
	}
	if err := m.state.WriteRollback(r); err != nil {
		return false, err
	}
	m.cfg.Event("the service manager gave up: rolling back to " + good)
	err := packages{m}.Install(ctx, m.state.PackagePath(good, m.cfg.Architecture))
	if ctx.Err() != nil {
		return false, nil
	}
	r.Status = "done"
	if err != nil {
		r.Status, r.Reason = "failed", r.Reason+"; "+err.Error()
	}
	if err := m.state.WriteRollback(r); err != nil {
		return false, err
	}
	m.forget()
	return r.Status == "done", nil
}

// packages is the package manager of a machine.
type packages struct{ m *Machine }

// Install takes InstallDelay, and then the package is installed.
func (p packages) Install(ctx context.Context, file string) error {
	if !pause(ctx, p.m.cfg.InstallDelay) {
		return ctx.Err()
	}
	id, err := p.Simulate(ctx, file)
	if err != nil {
		return err
	}
	return p.m.setInstalled(id.Version)
}

// Mend has nothing to do: installations here are whole or not at all.
func (packages) Mend(context.Context, string) (bool, error) { return false, nil }

// Simulate reads the package's control file as dpkg would.
func (p packages) Simulate(_ context.Context, file string) (nodeagent.PackageID, error) {
	pkg, closePackage, err := deb.LoadFile(file)
	if err != nil {
		return nodeagent.PackageID{}, fmt.Errorf("dpkg: %w", err)
	}
	id := nodeagent.PackageID{Name: pkg.Control.Package, Version: pkg.Control.Version.String(), Architecture: pkg.Control.Architecture.String()}
	if err := closePackage(); err != nil {
		return nodeagent.PackageID{}, fmt.Errorf("dpkg: %w", err)
	}
	if id.Name != events.HostPackage || id.Architecture != p.m.cfg.Architecture {
		return nodeagent.PackageID{}, fmt.Errorf("dpkg: package %s for %s does not belong on this machine", id.Name, id.Architecture)
	}
	return id, nil
}

// supervisor is the service manager, as the host sees it.
type supervisor struct{ m *Machine }

func (s supervisor) ResetFailed(context.Context) error {
	s.m.forget()
	return nil
}

// AdoptKit is never called: a simulated machine has no rescue kit.
func (s supervisor) AdoptKit(context.Context) error { return nil }

// pause waits; false means that the context ended.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
