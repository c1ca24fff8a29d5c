package nodeagent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"noxmesh/events"
)

// DrillResult is what a drill found.
type DrillResult struct {
	events.Drill
	Version string `json:"version"` // known-good, the version to go back to
	// Checked are the steps that went well, one line each.
	Checked []string `json:"checked"`
	// Next says what to do when the drill failed.
	Next []string `json:"next,omitempty"`
}

// Drill rehearses the rollback to known-good as far as nothing is changed by
// it: the rollback is armed, the retained package is whole, is the right one,
// and the package manager would take it. The error says that this is not the
// moment to find out; then there is no result.
func Drill(ctx context.Context, s *State, architecture string, pm PackageManager) (DrillResult, error) {
	d := DrillResult{Drill: events.Drill{At: time.Now().UTC()}, Version: s.KnownGood()}
	fail := func(next []string, format string, args ...any) (DrillResult, error) {
		d.Error, d.Next = events.Printable(fmt.Sprintf(format, args...), 300), next
		return d, nil
	}
	checked := func(format string, args ...any) { d.Checked = append(d.Checked, fmt.Sprintf(format, args...)) }

	if d.Version == "" {
		return fail([]string{journalCommand}, "no version was ever confirmed on this machine, so there is nothing to go back to")
	}
	checked("known-good is %s", d.Version)
	if r, fired := s.Rollback(); fired && r.Status != "begun" {
		return fail([]string{journalCommand, resetCommand}, "the rollback from %s to %s was used and is not armed again: no host was confirmed since", r.From, r.To)
	}
	if trouble := s.kitTrouble(d.Version); trouble != "" {
		return fail([]string{restartCommand}, "%s", trouble)
	}
	checked("the rollback is armed")
	file := s.PackagePath(d.Version, architecture)
	bring := []string{
		"declare a release to this node: an upgrade brings the package of known-good along",
		fmt.Sprintf("or copy %s and its .sha256 to %s", events.PackageFile(d.Version, architecture), s.path(dirPackages)),
	}
	sum, err := s.Retained(d.Version, architecture)
	if err != nil {
		return fail(bring, "%s: %v", events.PackageFile(d.Version, architecture), err)
	}
	checked("%s is retained and its checksum is right (sha256 %.12s...)", events.PackageFile(d.Version, architecture), sum)
	id, err := pm.Simulate(ctx, file)
	switch {
	case errors.Is(err, ErrBusy) || ctx.Err() != nil:
		return d, errors.Join(err, ctx.Err())
	case err != nil:
		return fail(append([]string{"dpkg --simulate -i " + file}, bring...), "the package manager would not install it: %v", err)
	}
	if want := (PackageID{events.HostPackage, d.Version, architecture}); id != want {
		return fail(bring, "the retained package is %s %s for %s and not %s %s for %s",
			id.Name, id.Version, id.Architecture, want.Name, want.Version, want.Architecture)
	}
	checked("its control fields name %s %s for %s", id.Name, id.Version, id.Architecture)
	checked("a simulated installation works")
	d.OK = true
	return d, nil
}

// KeepDrill makes a result the last one of the machine.
func (s *State) KeepDrill(d DrillResult) error { return s.writeJSON(fileDrill, d) }

// LastDrill is the last result, false if there is none.
func (s *State) LastDrill() (DrillResult, bool) {
	var d DrillResult
	return d, s.readJSON(fileDrill, &d) && !d.At.IsZero()
}

// drillOf is the last drill for a heartbeat, nil if it was about another
// version than the one to go back to now.
func (s *State) drillOf(knownGood string) *events.Drill {
	if d, ok := s.LastDrill(); ok && d.Version == knownGood {
		return &d.Drill
	}
	return nil
}

// drills rehearses the rollback: soon after the start of a newly confirmed
// version, then daily, whatever the number of restarts in between. One that
// failed is repeated hourly, so that a repair is seen.
func (a *Agent) drills(ctx context.Context) {
	every := func(d DrillResult) time.Duration {
		if d.OK {
			return about(a.cfg.Timings.Drill)
		}
		return about(a.cfg.Timings.Drill / 24)
	}
	pause := about(a.cfg.Timings.DrillFirst)
	if d, ok := a.state.LastDrill(); ok && d.Version == a.cfg.Version {
		// A clock that was set back makes it due, rather than late by a year.
		if age := time.Since(d.At); age >= 0 {
			pause = max(pause, every(d)-age)
		}
	}
	for tries := 0; wait(ctx, pause) == nil; {
		if d, ok := a.drillOnce(ctx); ok {
			tries, pause = 0, every(d)
		} else {
			tries++
			pause = backoff(tries, a.cfg.Timings.DrillFirst, time.Hour)
		}
	}
}

// drillOnce says whether there was a result that is worth keeping.
func (a *Agent) drillOnce(ctx context.Context) (DrillResult, bool) {
	if !a.isConfirmed() {
		return DrillResult{}, false
	}
	simulate, cancel := context.WithTimeout(ctx, a.cfg.Timings.Simulate)
	defer cancel()
	d, err := Drill(simulate, a.state, a.cfg.Architecture, a.cfg.Packages)
	if err != nil {
		a.log.Info().Err(err).Msg("the drill is put off")
		return d, false
	}
	_, err = a.state.Retained(d.Version, a.cfg.Architecture)
	a.setParachute(err)
	if err := a.state.KeepDrill(d); err != nil {
		a.problem("drill", fmt.Sprintf("the result of the drill cannot be kept: %v", err))
		return d, false
	}
	a.problem("drill", "")
	if d.OK {
		a.log.Info().Str("version", d.Version).Msg("drill: the machine could roll back")
	} else {
		a.log.Warn().Str("version", d.Version).Msg("drill: the machine could not roll back: " + d.Error)
	}
	poke(a.beat)
	poke(a.dirty)
	return d, true
}
