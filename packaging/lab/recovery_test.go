package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// scenario is one way in which things go wrong, and how it may end.
type scenario struct {
	name string
	// right are the ends that are right for it.
	right []string
	// run does it on a machine that is switched off and returns when the end
	// is at hand; within bounds how long the end may take after that.
	run    func(ctx context.Context, s *site) error
	within time.Duration // 90 s if zero
	// long orders: the longest start first.
	long       time.Duration
	ownNetwork bool
	// check is made at the end, besides the ones that all get.
	check func(ctx context.Context, s *site) error
	// cause is what the journal must say of a host that stays failed.
	cause string
	note  string
}

// result is one line of dist/lab.json.
type result struct {
	Scenario     string  `json:"scenario"`
	Distribution string  `json:"distribution"`
	Outcome      string  `json:"outcome"`
	OK           bool    `json:"ok"`
	Seconds      float64 `json:"seconds"`

	recovered bool // Seconds is the time to recover
	err       error
	notes     []string
}

// distributions by the name in the results.
var distributions = []struct {
	name    string
	release Release
}{{"debian12", Debian12}, {"debian13", Debian13}}

// limits that the whole is held to.
const (
	medianLimit = 15 * time.Second
	totalLimit  = 12 * time.Minute
)

// TestRecovery breaks upgrades in every way of scenarios(), on real machines of
// both Debian releases, and writes down how each ended. NOX_MESH_LAB_ONLY chooses
// scenarios by a regular expression, NOX_MESH_LAB_PARALLEL says how many at once;
// what is to be known of one that is not ok is in dist/lab/.
func TestRecovery(t *testing.T) {
	begun := time.Now()
	l, ctx := newLab(t)
	ctx, lost := context.WithCancelCause(ctx)
	defer lost(nil)
	packages, mesh, diary := buildAll(ctx, t, l, lost)

	type job struct {
		sc   scenario
		dist int
	}
	var jobs []job
	only := os.Getenv("NOX_MESH_LAB_ONLY")
	chosen, err := regexp.Compile(only) // by part of a name
	must(t, err)
	for _, sc := range scenarios() {
		for d := range distributions {
			if chosen.MatchString(sc.name) {
				jobs = append(jobs, job{sc, d})
			}
		}
	}
	order := make([]int, len(jobs))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return int(jobs[b].sc.long - jobs[a].sc.long) })

	results := make([]result, len(jobs))
	work := make(chan int)
	var wg sync.WaitGroup
	for range parallel() {
		wg.Go(func() {
			for i := range work {
				j := jobs[i]
				s := &site{name: fmt.Sprintf("m%d", i), mesh: mesh, diary: diary, lab: l, packages: packages, cause: j.sc.cause}
				results[i] = s.play(ctx, j.sc, j.dist)
			}
		})
	}
	for _, i := range order {
		work <- i
	}
	close(work)
	wg.Wait()
	l.mu.Lock()
	interrupted := l.closed
	l.mu.Unlock()
	if err := context.Cause(ctx); interrupted || err != nil {
		t.Fatalf("not all of it was played, so nothing is written down: %v", err)
	}

	report(t, results, time.Since(begun), only == "")
	must(t, mesh.stop())
}

// parallel is how many machines run at once. They wait most of the time, but
// boots and dpkg want the processor.
func parallel() int {
	if n, err := strconv.Atoi(os.Getenv("NOX_MESH_LAB_PARALLEL")); err == nil && n > 0 {
		return n
	}
	return 8 * runtime.NumCPU()
}

// buildAll builds all packages and gives them to a mesh.
func buildAll(ctx context.Context, t *testing.T, l *Lab, lost func(error)) (map[string]string, *mesh, *diary) {
	t.Helper()
	for _, d := range distributions {
		_, err := l.Root(ctx, d.release)
		must(t, err)
	}
	packages := map[string]string{}
	file, err := previousPackage(ctx, l)
	must(t, err)
	packages[previous] = file
	for _, v := range variants {
		file, err := v.make(ctx, l)
		must(t, err)
		packages[v.version] = file
	}
	program, err := l.Build(ctx, "./cmd/nox-mesh", current)
	must(t, err)
	m, err := startMesh(ctx, l, program, lost)
	must(t, err)
	for _, file := range packages {
		_, err := m.cli(ctx, "release", "add", file)
		must(t, err)
	}
	d, err := keepDiary(l, m)
	must(t, err)
	l.Say("lab", "%d packages are built, the mesh listens on %s", len(packages), m.url)
	return packages, m, d
}

// play plays one scenario on a machine of its own and says how it ended.
func (s *site) play(ctx context.Context, sc scenario, dist int) result {
	d := distributions[dist]
	began := time.Now()
	r := result{Scenario: sc.name, Distribution: d.name, Outcome: isNone}
	ctx, cancel := context.WithTimeout(ctx, 6*time.Minute)
	defer cancel()
	within := sc.within
	if within == 0 {
		within = 90 * time.Second
	}
	r.err = func() (err error) {
		if s.Machine, err = s.lab.Machine(ctx, s.name, MachineOptions{Release: d.release, OwnNetwork: sc.ownNetwork}); err != nil {
			return err
		}
		s.begun = time.Now()
		if err := sc.run(ctx, s); err != nil {
			return err
		}
		if r.Outcome, err = s.end(ctx, within, sc.right...); err != nil {
			return err
		}
		if sc.check != nil {
			return sc.check(ctx, s)
		}
		return nil
	}()
	if s.ended.IsZero() {
		s.ended = time.Now()
	}
	r.Seconds = s.ended.Sub(s.begun).Seconds()
	if s.Machine != nil {
		if r.Outcome == isFormer {
			seconds, ok, err := s.recoverySeconds(ctx)
			if ok {
				r.Seconds, r.recovered = seconds, true
			}
			r.err = errors.Join(r.err, err)
		}
		if r.err != nil {
			s.tell(sc, d.name, r.err)
		}
		r.err = errors.Join(r.err, s.Kill())
	}
	r.OK = r.err == nil
	r.Seconds = float64(int(r.Seconds*10)) / 10
	r.notes = s.notes
	if sc.note != "" {
		r.notes = append(r.notes, sc.note)
	}
	verdict := "ok"
	if !r.OK {
		verdict = "NOT OK: " + r.err.Error()
	}
	s.lab.Say(d.name, "%s: %s, %.1f s (all of it %.0f s): %s", sc.name, r.Outcome, r.Seconds, time.Since(began).Seconds(), verdict)
	return r
}

// tell keeps what a person needs to see why a scenario is not ok.
func (s *site) tell(sc scenario, dist string, why error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	journal, err := s.Journal(ctx, hostUnit, "--unit", rollbackUnit, "--unit", "nox-mesh-host-install.service", "--unit", "nox-mesh-host-rescue.service")
	status := ""
	if s.On() {
		status, _ = s.sh(ctx, "dpkg -l nox-mesh-host; systemctl status --no-pager --lines=0 "+hostUnit+" || true; nox-mesh-host status || true; ls -lR "+stateDir)
	}
	log, logErr := s.mesh.cli(ctx, "log", "--node", s.name)
	text := fmt.Sprintf("%s on %s\n\n%v\n\n%v %v\n%s\n%s\n%s\n", sc.name, dist, why, err, logErr, status, log, journal)
	here, err := top(ctx)
	if err != nil {
		return
	}
	dir := filepath.Join(here, "dist", "lab")
	name := strings.Map(func(r rune) rune {
		if r == ' ' || r == '/' || r == ',' || r == ':' {
			return '-'
		}
		return r
	}, sc.name)
	if os.MkdirAll(dir, 0o755) == nil {
		_ = os.WriteFile(filepath.Join(dir, name+"-"+dist+".txt"), []byte(text), 0o644)
	}
}
