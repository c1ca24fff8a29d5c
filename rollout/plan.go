package rollout

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"noxmesh/events"
	"noxmesh/projections"
)

// DefaultPolicy is what a rollout is judged by unless the operator says
// otherwise.
func DefaultPolicy() events.Policy {
	return events.Policy{
		Batches:  []string{"2", "25%", "100%"},
		Window:   events.Duration(10 * time.Minute),
		Soak:     events.Duration(time.Minute),
		Presence: events.Duration(2 * time.Minute),
		Tolerate: events.TolerateAuto,
	}
}

// ErrRefused is wrapped by every refusal of a plan. Its text says what to do.
var ErrRefused = errors.New("refused")

func refuse(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrRefused, fmt.Sprintf(format, args...))
}

// ParseBatches reads a list like "2,25%,100%" against a cohort. Each entry is
// how many nodes of the cohort may be declared in all once that batch is open;
// the result rises strictly and ends with the whole cohort. In a small cohort
// a percentage may be no more than the number before it; that batch falls away.
func ParseBatches(entries []string, cohort int) ([]int, error) {
	if len(entries) == 0 {
		return nil, refuse("the list of batches is empty: give one like 2,25%%,100%%")
	}
	var targets []int
	last := 0
	before := map[bool]int{} // the entry before this one, by kind
	for i, entry := range entries {
		number, percent := strings.CutSuffix(strings.TrimSpace(entry), "%")
		v, err := strconv.Atoi(number)
		if err != nil || v <= 0 {
			return nil, refuse("batch %q is neither a number of nodes nor a percentage above 0: give a list like 2,25%%,100%%", entry)
		}
		if v <= before[percent] {
			return nil, refuse("batch %q is not more than the one before it: each entry is the number declared in all, so it must rise, like 2,25%%,100%%", entry)
		}
		before[percent] = v
		target := v
		if percent {
			if v > 100 {
				return nil, refuse("batch %q is more than the whole cohort: the last batch is 100%%", entry)
			}
			target = (cohort*v + 99) / 100
		}
		target = min(target, cohort)
		if target > last {
			targets = append(targets, target)
			last = target
		}
		if i == len(entries)-1 && last < cohort {
			return nil, refuse("the last batch %q leaves out %d of %d nodes: end the list with 100%%, or choose fewer nodes with --select", entry, cohort-last, cohort)
		}
	}
	return targets, nil
}

// Request is what an operator asks for.
type Request struct {
	Version  string
	Selector string // see [ParseSelector]; empty selects all
	Policy   events.Policy
	Seed     uint64
	Retry    bool // also where the version was rolled back before
}

// Plan makes the frozen plan of a rollout, or refuses with the reason.
func Plan(m *projections.Mesh, req Request) (*events.RolloutStarted, error) {
	releases := m.ReleasesOf(req.Version)
	if len(releases) == 0 {
		known := "none is there yet"
		if v := m.Versions(); len(v) > 0 {
			known = "there are " + strings.Join(v[:min(len(v), 5)], ", ")
		}
		return nil, refuse("no release has version %q (%s): add its package with nox-mesh release add FILE.deb", req.Version, known)
	}
	if h := m.HeldOf(releases); h != nil {
		return nil, refuse("%s is held since %s: %s. Lift the hold with nox-mesh release lift %s", req.Version, h.Held.At.Format(time.RFC3339), h.Held.Fact.Reason, req.Version)
	}
	for _, rel := range releases {
		if err := m.Signed(rel); err != nil {
			return nil, refuse("nodes would refuse %s for %s by the release key in force: %v. Sign it with nox-mesh release add FILE.deb --sign-key FILE", rel.Version, rel.Architecture, err)
		}
	}
	if err := CheckPolicy(req.Policy); err != nil {
		return nil, err
	}
	selector, err := ParseSelector(req.Selector)
	if err != nil {
		return nil, err
	}
	cohort := selectNodes(m, selector)
	if len(cohort) == 0 {
		if selector.Empty() {
			return nil, refuse("no node is enrolled: invite one with nox-mesh node invite NAME")
		}
		return nil, refuse("no node matches %q: nox-mesh fleet shows the nodes and their labels", req.Selector)
	}
	if r := m.OpenOver(cohort, ^uint64(0)); r != nil {
		return nil, refuse("rollout %s of %s is %s over some of these nodes: look with nox-mesh rollout status %s, end it with nox-mesh rollout abort %s, or choose other nodes with --select",
			r.ID, r.Plan.Version, r.State, r.ID, r.ID)
	}
	targets, err := ParseBatches(req.Policy.Batches, len(cohort))
	if err != nil {
		return nil, err
	}
	if err := checkPackages(m, cohort, releases, req.Version); err != nil {
		return nil, err
	}
	return &events.RolloutStarted{
		Version: req.Version, Releases: releases, Selector: req.Selector,
		Cohort: cohort, Targets: targets, Policy: req.Policy, Seed: req.Seed, Retry: req.Retry,
	}, nil
}

// CheckPolicy refuses a policy that no rollout could follow.
func CheckPolicy(p events.Policy) error {
	switch {
	case p.Window <= 0:
		return refuse("window %s is not positive: give one like --window 10m", p.Window)
	case p.Soak < 0:
		return refuse("soak %s is negative", p.Soak)
	case p.Presence <= 0:
		return refuse("presence %s is not positive", p.Presence)
	case p.Soak > p.Window:
		return refuse("soak %s is longer than the window %s: no node could pass in time", p.Soak, p.Window)
	case p.MaxFailed < 0:
		return refuse("max-failed %d is negative: give a number of nodes, a percentage like 5%%, or auto", p.MaxFailed)
	}
	if _, ok := percentOf(p.Tolerate); p.Tolerate != "" && p.Tolerate != events.TolerateAuto && !ok {
		return refuse("max-failed %q is neither a number of nodes, nor a percentage like 5%%, nor auto", p.Tolerate)
	}
	return nil
}

// checkPackages refuses a rollout that some heard nodes could not follow: no
// package for their architecture, or nothing to fall back to.
func checkPackages(m *projections.Mesh, cohort []string, releases []events.Release, version string) error {
	missingArch, noWayBack := map[string]int{}, map[string]int{}
	for _, id := range cohort {
		h := m.Nodes[id].Heard
		if h == nil {
			continue
		}
		if !slices.ContainsFunc(releases, func(r events.Release) bool { return r.Architecture == h.Architecture }) {
			missingArch[h.Architecture]++
		}
		if !h.Retained && h.KnownGood != "" && m.Releases[events.ReleaseKey(h.KnownGood, h.Architecture)] == nil {
			noWayBack[h.KnownGood+" for "+h.Architecture]++
		}
	}
	if arch, count := most(missingArch); count > 0 {
		return refuse("%d nodes are %s and %s has no package for that: add it with nox-mesh release add FILE.deb, or leave them out with --select", count, arch, version)
	}
	if from, count := most(noWayBack); count > 0 {
		return refuse("%d nodes run %s and retain no package of it, so they could not roll back: add that package with nox-mesh release add FILE.deb, they will fetch it first", count, from)
	}
	return nil
}

func most(counts map[string]int) (string, int) {
	best, n := "", 0
	for k, v := range counts {
		if v > n || v == n && k < best {
			best, n = k, v
		}
	}
	return best, n
}

// PlannedBatch is a batch as it would be opened now.
type PlannedBatch struct {
	Batch  int      `json:"batch"`
	Target int      `json:"target"` // nodes declared in all once it is open
	Nodes  []string `json:"nodes"`
}

// Schedule is what a plan would do if every batch passed and nobody came or
// went meanwhile.
type Schedule struct {
	Batches []PlannedBatch `json:"batches"`
	// Absent are the nodes that were not heard lately. They are declared when
	// they are next heard.
	Absent []string `json:"absent"`
}

// Preview says which batches would be opened now.
func Preview(m *projections.Mesh, plan *events.RolloutStarted) Schedule {
	r := projections.NewRollout("preview", *plan)
	out := Schedule{Batches: []PlannedBatch{}, Absent: []string{}}
	exposed := 0
	for i, target := range plan.Targets {
		nodes := choose(m, r, candidates(m, r), target-exposed, i == 0)
		if len(nodes) == 0 {
			break
		}
		exposed += len(nodes)
		out.Batches = append(out.Batches, PlannedBatch{Batch: len(r.Batches) + 1, Target: target, Nodes: nodes})
		r.Batches = append(r.Batches, projections.Batch{Number: len(r.Batches) + 1, Stage: i + 1, Nodes: nodes, Closed: true, Passed: true})
		for _, id := range nodes {
			r.Members[id].Outcome = projections.Passed
		}
	}
	for _, id := range plan.Cohort {
		if r.Members[id].Free() {
			out.Absent = append(out.Absent, id)
		}
	}
	return out
}
