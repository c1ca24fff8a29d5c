package lab

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// packagesGoneWrong are versions whose package is broken rather than their
// program, and versions that meet a machine that is.
func packagesGoneWrong() []scenario {
	return []scenario{
		{name: "binary missing", right: mustBeFormer, run: bad("2.0.0+missing"), check: journalSays("status=203/EXEC")},
		{name: "binary not executable", right: mustBeFormer, run: bad("2.0.0+mode"), check: journalSays("status=203/EXEC")},
		{name: "unit file without OnFailure= and start limits", right: mustBeFormer, run: bad("2.0.0+bareunit"),
			note: "the program of that version crashes at once"},
		{name: "unit file without the gate, crash 60 s after the start", right: mustBeFormer, long: 2 * time.Minute, within: 3 * time.Minute,
			run: steps(bad("2.0.1+unconfirmed"), countStarts("2.0.1+unconfirmed", 10)), check: journalSays("never confirmed"),
			note: "the gate of the version before it counts; its counter is set to its limit by hand, as above"},
		{name: "unit file that cannot be loaded", right: mustBeFormer, long: 2 * time.Minute, within: 3 * time.Minute, run: bad("2.0.0+unloadable"),
			note: "no ExecStart=; its program is good and never runs. The failure is that systemd cannot start it when the former version has ended"},
		{name: "unit file that cannot be loaded, and a power cut before it is needed", right: mustBeFormer, long: 3 * time.Minute, within: 4 * time.Minute,
			run: steps(bad("2.0.0+unloadable"), func(ctx context.Context, s *site) error {
				return s.cutWhen(ctx, "dpkg is done", dpkgIsDone("2.0.0+unloadable")(s))
			}), check: saidBy(rescueUnit, "systemd cannot load its unit"),
			note: "so nothing ever fails and no OnFailure= fires: the rescue timer finds it. The seconds are from the start of the rollout"},
		{name: "failing prerm", right: mustBeFormer, run: bad("2.0.0+prerm"), check: saidBy(rollbackUnit, "prerm: failing on purpose")},
		{name: "failing postinst", right: mustBeFormer, run: bad("2.0.0+postinst"), note: "the program of that version is good"},
		{name: "no known-good", right: mustFail, long: time.Minute, cause: "no version was ever confirmed on this machine", run: func(ctx context.Context, s *site) error {
			if err := s.prepare(ctx); err != nil {
				return err
			}
			s.begun, s.target = time.Now(), "2.0.0+crash"
			return s.dpkg(ctx, s.target)
		}},
		{name: "the version that came back fails too", right: mustFail, long: time.Minute, run: bad("2.0.0+spoil"),
			cause: "already rolled back once.*That one failed too, so this machine is the problem", check: once,
			note: "the bad version leaves something in the state directory that no version can work with"},
		{name: "a second bad version later", right: mustBeFormer, run: steps(bad("2.0.0+crash"), wentBack, upgrade("2.0.1+crash")),
			check: func(_ context.Context, s *site) error {
				if n, m := s.diary.rollbacks(s.name, "2.0.0+crash"), s.diary.rollbacks(s.name, "2.0.1+crash"); n != 1 || m != 1 {
					return fmt.Errorf("%d and %d rollbacks were reported, want one each", n, m)
				}
				return nil
			}},
	}
}

const rescueUnit = "nox-mesh-host-rescue.service"

// saidBy checks what the journal of any unit says.
func saidBy(unit, text string) func(ctx context.Context, s *site) error {
	return func(ctx context.Context, s *site) error {
		journal, err := s.Journal(ctx, unit)
		if err == nil && !strings.Contains(journal, text) {
			err = fmt.Errorf("the journal of %s does not say %q", unit, text)
		}
		return err
	}
}

// once checks that the rollback said why it did nothing, one time only.
func once(ctx context.Context, s *site) error {
	lines, err := s.causes(ctx)
	if err == nil && len(lines) != 1 {
		err = fmt.Errorf("it said so %d times: %q", len(lines), lines)
	}
	return err
}

// wentBack waits until the mesh knows that the machine rolled back, and takes
// it for a machine on the former version from then on.
func wentBack(ctx context.Context, s *site) error {
	if err := s.rolledBack(ctx); err != nil {
		return err
	}
	s.target = s.former
	return nil
}

func (s *site) rolledBack(ctx context.Context) error {
	return s.diary.wait(ctx, s.name+" reports its rollback", 90*time.Second, func() bool { return s.diary.rollbacks(s.name, s.target) > 0 })
}

// histories start from the release before this one.
func histories() []scenario {
	return []scenario{
		{name: "upgrade from the previous release", right: mustBeNew, run: steps(setUp(previous), upgrade(current)), check: hasKit, note: previousNote},
		{name: "from the previous release to a bad version", right: mustBeFormer, run: steps(setUp(previous), upgrade("2.0.0+crash")), note: previousNote},
		{name: "from the previous release to this one, then to a bad version", right: mustBeFormer,
			run: steps(setUp(previous), upgraded(current), upgrade("2.0.0+crash")), note: previousNote},
		{name: "back to the previous release by a rollout", right: mustBeNew, run: steps(setUp(previous), upgraded(current), upgrade(previous)),
			check: func(_ context.Context, s *site) error {
				if n := s.diary.confirmations(s.name, previous); n < 2 {
					return fmt.Errorf("%s was confirmed %d times, want twice", previous, n)
				}
				return nil
			}, note: previousNote},
	}
}

const previousNote = "the previous release is built from git history: the newest tag, or without one the first commit whose host joins"

func upgraded(version string) func(ctx context.Context, s *site) error {
	return func(ctx context.Context, s *site) error { return s.upgraded(ctx, version) }
}

// hasKit checks that what a rollback rests on is there after the first upgrade.
func hasKit(_ context.Context, s *site) (err error) {
	for _, file := range []string{stateDir + "/rescue/rollback", "/etc/systemd/system/nox-mesh-host-rollback.service"} {
		if !s.has(file) {
			err = errors.Join(err, fmt.Errorf("%s is not there", file))
		}
	}
	return err
}
