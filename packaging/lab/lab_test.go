package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"noxmesh/events"
	"noxmesh/projections"
	"noxmesh/rollout"
)

const (
	first  = "1.0.0" // what the machines are installed with
	good   = "1.1.0"
	broken = "1.2.0" // its program ends with status 1

	hostUnit     = "nox-mesh-host.service"
	rollbackUnit = "nox-mesh-host-rollback.service"
	pinFile      = "/etc/apt/preferences.d/nox-mesh-host-rolled-back"
)

// TestLab is the loop on real machines: four of them, a real server, packages
// installed by dpkg, services run by systemd. A good version reaches all four.
// A broken one stops after two, which their own service managers bring back;
// the other two never hear of it. All is asked from the outside.
func TestLab(t *testing.T) {
	l, ctx := newLab(t)
	ctx, lost := context.WithCancelCause(ctx)
	defer lost(nil)
	s := &story{t: t, l: l, lost: lost}
	t.Cleanup(s.tellFailure)
	s.build(ctx)
	s.bootAndInstall(ctx)
	s.join(ctx)
	s.rollOutGood(ctx)
	canaries := s.rollOutBroken(ctx)
	s.checkMesh(ctx, canaries)
	for _, m := range s.machines {
		s.checkMachine(ctx, m, slices.Contains(canaries, m.Name))
	}
	must(t, s.mesh.stop())
	l.Say("mesh", "stopped")
}

type story struct {
	t        *testing.T
	l        *Lab
	lost     func(error) // ends all waiting
	mesh     *mesh
	packages map[string]string // by version
	machines []*Machine
}

// all does the same on all machines at once.
func (s *story) all(do func(m *Machine) error) {
	s.t.Helper()
	var wg sync.WaitGroup
	errs := make([]error, len(s.machines))
	for i, m := range s.machines {
		wg.Go(func() { errs[i] = do(m) })
	}
	wg.Wait()
	must(s.t, errors.Join(errs...))
}

func (s *story) build(ctx context.Context) {
	s.l.Say("lab", "building the programs and the packages of %s, %s and %s", first, good, broken)
	s.packages = map[string]string{}
	for version, source := range map[string]string{
		first: "./cmd/nox-mesh-host", good: "./cmd/nox-mesh-host", broken: "./packaging/lab/testdata/broken",
	} {
		program, err := s.l.Build(ctx, source, version)
		must(s.t, err)
		s.packages[version], err = s.l.HostPackage(ctx, program, version)
		must(s.t, err)
	}
	program, err := s.l.Build(ctx, "./cmd/nox-mesh", good)
	must(s.t, err)
	s.mesh, err = startMesh(ctx, s.l, program, s.lost)
	must(s.t, err)
	s.l.Say("mesh", "listens on %s", s.mesh.url)
	for _, version := range []string{first, good, broken} {
		out, err := s.mesh.cli(ctx, "release", "add", s.packages[version])
		must(s.t, err)
		line, _, _ := strings.Cut(out, "\n")
		s.l.Say("mesh", "%s", line)
	}
}

// bootAndInstall ends with four hosts that have confirmed themselves with no
// credentials, so with no link.
func (s *story) bootAndInstall(ctx context.Context) {
	for _, name := range []string{"north", "east", "south", "west"} {
		m, err := s.l.Machine(ctx, name, MachineOptions{Release: Debian12})
		must(s.t, err)
		s.machines = append(s.machines, m)
	}
	s.all(func(m *Machine) error {
		if err := m.Boot(ctx); err != nil {
			return err
		}
		s.l.Say(m.Name, "is on")
		if err := m.CopyIn(s.packages[first], "/root/host.deb", 0o644); err != nil {
			return err
		}
		if _, err := m.Exec(ctx, "dpkg", "-i", "/root/host.deb"); err != nil {
			return err
		}
		if err := WaitFor(ctx, m.Name+" confirms "+first, 30*time.Second, func(ctx context.Context) error {
			return errors.Join(wantFile(m, "/var/lib/mesh-host/known-good", first+"\n"), wantActive(ctx, m))
		}); err != nil {
			return err
		}
		status, err := hostStatus(ctx, m)
		if err != nil || !strings.Contains(status, "no credentials") {
			return fmt.Errorf("%s: the status of a host without credentials does not say so: %v\n%s", m.Name, err, status)
		}
		s.l.Say(m.Name, "%s is installed with dpkg and confirmed, with no link", first)
		return nil
	})
}

// join makes the machines nodes, each with a token of its own.
func (s *story) join(ctx context.Context) {
	s.all(func(m *Machine) error {
		token, err := s.mesh.invite(ctx, m.Name, "--label", "site=lab")
		if err != nil {
			return err
		}
		return join(ctx, m, token)
	})
	must(s.t, WaitFor(ctx, "the mesh hears all four", 90*time.Second, func(ctx context.Context) error {
		nodes, err := s.mesh.fleet(ctx)
		if err != nil {
			return err
		}
		for _, m := range s.machines {
			if n := nodes[m.Name]; n.LastHeard == nil || n.Running != first || n.KnownGood != first {
				return fmt.Errorf("%s: heard %v, runs %q, known good %q", m.Name, n.LastHeard, n.Running, n.KnownGood)
			}
		}
		return nil
	}))
	s.l.Say("mesh", "hears all four on %s", first)
}

// join is what an operator does on a machine that has the package.
func join(ctx context.Context, m *Machine, token string) error {
	said, err := m.Exec(ctx, "nox-mesh-host", "join", strings.TrimSpace(token))
	if err == nil && !strings.Contains(said, "as node "+m.Name) {
		err = fmt.Errorf("%s: joining says %q", m.Name, said)
	}
	return err
}

// follow starts a rollout and tells how it goes until done says so.
func (s *story) follow(ctx context.Context, version string, within time.Duration, done func(*rollout.Status) bool) *rollout.Status {
	s.t.Helper()
	_, err := s.mesh.cli(ctx, "rollout", "start", version, "--batches", "2,100%", "--window", "3m", "--soak", "10s")
	must(s.t, err)
	s.l.Say("mesh", "rollout of %s started, batches 2,100%%", version)
	var last *rollout.Status
	told := ""
	must(s.t, WaitFor(ctx, "the rollout of "+version+" ends", within, func(ctx context.Context) error {
		r, err := s.mesh.rollout(ctx)
		if err != nil {
			return err
		}
		last = r
		var nodes []string
		for _, n := range r.Nodes {
			nodes = append(nodes, n.Node+" "+string(n.Outcome))
		}
		line := fmt.Sprintf("%s, batch %d of %d: %s", r.State, r.Batch, r.Batches, strings.Join(nodes, ", "))
		if line != told {
			s.l.Say("mesh", "%s", line)
			told = line
		}
		if !done(r) {
			return errors.New(line)
		}
		return nil
	}))
	return last
}

func (s *story) rollOutGood(ctx context.Context) {
	r := s.follow(ctx, good, 3*time.Minute, func(r *rollout.Status) bool { return r.State != projections.Running })
	if r.State != projections.Completed || r.Counts[projections.Passed] != 4 {
		s.t.Fatalf("the rollout of %s ended %s (%s): %v", good, r.State, r.Reason, r.Counts)
	}
	nodes, err := s.mesh.fleet(ctx)
	must(s.t, err)
	s.all(func(m *Machine) error {
		n := nodes[m.Name]
		if n.Running != good || n.KnownGood != good || n.Declared != good || !n.Retained {
			return fmt.Errorf("the fleet says of %s: %+v", m.Name, n)
		}
		return errors.Join(wantRuns(ctx, m, good), wantNoRollback(ctx, m))
	})
	declared, err := s.mesh.declarations(ctx, good)
	must(s.t, err)
	for _, m := range s.machines {
		if declared[m.Name] != 1 {
			s.t.Errorf("%s was declared %s %d times", m.Name, good, declared[m.Name])
		}
	}
}

// rollOutBroken ends when both canaries are back and have said so, and gives
// their names.
func (s *story) rollOutBroken(ctx context.Context) []string {
	rolledBack := projections.Outcome(events.RolledBack)
	r := s.follow(ctx, broken, 4*time.Minute, func(r *rollout.Status) bool {
		return r.State != projections.Running && r.Counts[rolledBack] == 2
	})
	if r.State != projections.Halted || r.Diagnosis != events.DiagnosisRelease || r.Declared != 2 || r.Counts[projections.Undeclared] != 2 {
		s.t.Fatalf("the rollout of %s ended %s, diagnosis %q (%s): %d declared, %v", broken, r.State, r.Diagnosis, r.Reason, r.Declared, r.Counts)
	}
	s.l.Say("mesh", "halted: %s", r.Reason)
	var canaries []string
	for _, n := range r.Nodes {
		if n.Outcome == rolledBack {
			canaries = append(canaries, n.Node)
		}
	}
	must(s.t, WaitFor(ctx, "the canaries are heard on "+good, 60*time.Second, func(ctx context.Context) error {
		nodes, err := s.mesh.fleet(ctx)
		for _, name := range canaries {
			n := nodes[name]
			if rb := n.RolledBack; n.Running != good || n.KnownGood != good || rb == nil || rb.From != broken || rb.To != good {
				err = errors.Join(err, fmt.Errorf("the fleet says of %s: %+v", name, n))
			}
		}
		return err
	}))
	return canaries
}

// checkMesh looks at the log for what must have happened, and happened once.
func (s *story) checkMesh(ctx context.Context, canaries []string) {
	declared, err := s.mesh.declarations(ctx, broken)
	must(s.t, err)
	if len(declared) != 2 || declared[canaries[0]] != 1 || declared[canaries[1]] != 1 {
		s.t.Errorf("%s was declared to %v; the canaries are %v", broken, declared, canaries)
	}
	halts, err := facts[*events.RolloutHalted](ctx, s.mesh)
	must(s.t, err)
	if len(halts) != 1 || halts[0].fact.Diagnosis != events.DiagnosisRelease || halts[0].fact.Undeclared != 2 {
		s.t.Errorf("the log has %d halts: %+v", len(halts), halts)
	}
	backs, err := facts[*events.NodeRolledBack](ctx, s.mesh)
	must(s.t, err)
	if len(backs) != 2 {
		s.t.Errorf("the log has %d rollbacks, want 2", len(backs))
	}
	for _, b := range backs {
		f := b.fact
		if !slices.Contains(canaries, b.subject) || f.From != broken || f.To != good || f.Restarts == 0 || f.Exit != "1" ||
			f.Systemd == "" || f.SHA256 == "" || !strings.Contains(strings.Join(f.Journal, "\n"), "broken on purpose") {
			s.t.Errorf("the evidence of %s: %+v", b.subject, f)
		}
	}
}

// checkMachine looks at a machine at the end of the story.
func (s *story) checkMachine(ctx context.Context, m *Machine, canary bool) {
	must(s.t, wantRuns(ctx, m, good))
	if !canary {
		must(s.t, wantNoRollback(ctx, m))
		s.l.Say(m.Name, "never heard of %s", broken)
		return
	}
	if got := execIn(s.t, ctx, m, "systemctl", "show", "--value", "-p", "ActiveState,Result,ExecMainStatus", rollbackUnit); got != "success\n0\ninactive" {
		s.t.Errorf("%s: the rollback unit: %q", m.Name, got)
	}
	if pin, err := m.ReadFile(pinFile); err != nil || !strings.Contains(string(pin), "Pin: version "+broken+"\n") {
		s.t.Errorf("%s: the pin: %v\n%s", m.Name, err, pin)
	}
	if fired, err := m.Exists("/var/lib/mesh-host/rollback"); err != nil || fired {
		s.t.Errorf("%s: the rollback is not armed again: %v", m.Name, err)
	}
	if status, err := hostStatus(ctx, m); err != nil || !strings.Contains(status, "refused      "+broken) {
		s.t.Errorf("%s: the status does not name the refused version: %v\n%s", m.Name, err, status)
	}
	crashed, back, err := recovery(ctx, m)
	must(s.t, err)
	s.l.Say(m.Name, "ran %s again %.1f s after the first crash of %s", good, back.Sub(crashed).Seconds(), broken)
}

// wantRuns checks a machine from the outside: what dpkg, the disk and systemd
// say.
func wantRuns(ctx context.Context, m *Machine, version string) error {
	state, err := m.Exec(ctx, "dpkg-query", "-W", "-f", "${Version} ${Status}", "nox-mesh-host")
	if want := version + " install ok installed"; err == nil && state != want {
		err = fmt.Errorf("%s: dpkg says %q, want %q", m.Name, state, want)
	}
	return errors.Join(err, wantFile(m, "/var/lib/mesh-host/known-good", version+"\n"), wantActive(ctx, m))
}

func wantActive(ctx context.Context, m *Machine) error {
	state, err := m.Exec(ctx, "systemctl", "show", "--value", "-p", "ActiveState", hostUnit)
	if err == nil && state != "active\n" {
		err = fmt.Errorf("%s: %s is %q", m.Name, hostUnit, strings.TrimSpace(state))
	}
	return err
}

func wantNoRollback(ctx context.Context, m *Machine) error {
	started, err := m.Exec(ctx, "systemctl", "show", "--value", "-p", "ExecMainStartTimestamp", rollbackUnit)
	if err == nil && started != "\n" {
		err = fmt.Errorf("%s: the rollback ran: %q", m.Name, started)
	}
	pinned, pinErr := m.Exists(pinFile)
	if pinned {
		pinErr = fmt.Errorf("%s: apt is pinned", m.Name)
	}
	return errors.Join(err, pinErr)
}

func wantFile(m *Machine, path, content string) error {
	raw, err := m.ReadFile(path)
	if err == nil && string(raw) != content {
		err = fmt.Errorf("%s: %s holds %q, want %q", m.Name, path, raw, content)
	}
	return err
}

// hostStatus is what a person at the machine is told. Its exit status is 1 when
// not all is well, which is fine here.
func hostStatus(ctx context.Context, m *Machine) (string, error) {
	out, err := m.Exec(ctx, "nox-mesh-host", "status")
	var exit *ExitError
	if errors.As(err, &exit) && exit.Status == 1 {
		err = nil
	}
	return out, err
}

// The journal's ids of "a process of a unit ended" and "a unit was started".
const (
	processExited = "98e322203f7a4ed290d09fe03c09fe15"
	unitStarted   = "39f53479d3a045ac8e11786248231fbf"
)

// recovery gives the moments of the host's first crash and of its first start
// after that, which with Type=notify is one that got through a reconcile.
func recovery(ctx context.Context, m *Machine) (crashed, back time.Time, err error) {
	journal, err := m.Journal(ctx, hostUnit, "--output=json")
	if err != nil {
		return crashed, back, err
	}
	for line := range strings.Lines(journal) {
		var e map[string]any
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			return crashed, back, err
		}
		stamp, _ := e["__REALTIME_TIMESTAMP"].(string)
		us, err := strconv.ParseInt(stamp, 10, 64)
		if err != nil {
			return crashed, back, err
		}
		at := time.UnixMicro(us)
		switch {
		case crashed.IsZero() && e["MESSAGE_ID"] == processExited && e["EXIT_STATUS"] != "0":
			crashed = at
		case !crashed.IsZero() && e["MESSAGE_ID"] == unitStarted:
			return crashed, at, nil
		}
	}
	return crashed, back, fmt.Errorf("%s: its journal tells of no crash and a start after it", m.Name)
}

// tellFailure prints what a person needs to see why the test failed.
func (s *story) tellFailure() {
	if !s.t.Failed() {
		return
	}
	if s.mesh != nil {
		log, _ := os.ReadFile(s.mesh.logFile)
		fmt.Printf("--- the server's log ends with\n%s\n", strings.ReplaceAll(lastLines(log, 20), " | ", "\n"))
	}
	for _, m := range s.machines {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(s.t.Context()), 5*time.Second)
		journal, err := m.Journal(ctx, hostUnit, "--unit", rollbackUnit, "--unit", "nox-mesh-host-install.service", "--lines=25")
		fmt.Printf("--- the journal of %s (%v)\n%s\n", m.Name, err, journal)
		cancel()
	}
}
