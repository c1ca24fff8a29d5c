package lab

import (
	"context"
	"fmt"
	"strings"
	"time"
)

// scenarios are all of them, in the order of the table.
func scenarios() []scenario {
	var list []scenario
	for _, part := range [][]scenario{crashes(), packagesGoneWrong(), outsiders(), disks(), parachutes(), histories(), powerCuts()} {
		list = append(list, part...)
	}
	return list
}

// steps runs one after the other until one fails.
func steps(list ...func(ctx context.Context, s *site) error) func(ctx context.Context, s *site) error {
	return func(ctx context.Context, s *site) error {
		for _, step := range list {
			if err := step(ctx, s); err != nil {
				return err
			}
		}
		return nil
	}
}

func setUp(version string) func(ctx context.Context, s *site) error {
	return func(ctx context.Context, s *site) error { return s.install(ctx, version) }
}

func upgrade(version string) func(ctx context.Context, s *site) error {
	return func(ctx context.Context, s *site) error { return s.upgrade(ctx, version) }
}

func installed(version string) func(ctx context.Context, s *site) error {
	return func(ctx context.Context, s *site) error { return s.installed(ctx, version) }
}

func shell(script string) func(ctx context.Context, s *site) error {
	return func(ctx context.Context, s *site) error {
		_, err := s.sh(ctx, script)
		return err
	}
}

// bad upgrades a machine that works to a version that does not.
func bad(version string) func(ctx context.Context, s *site) error {
	return steps(setUp(current), upgrade(version))
}

var (
	mustBeNew    = []string{isNew}
	mustBeFormer = []string{isFormer}
	mustFail     = []string{isFailed}
)

// crashes are versions that do not start, or not for long.
func crashes() []scenario {
	return []scenario{
		{name: "a good version", right: mustBeNew, run: bad(next), check: steps(cleanUnits, cleanScripts), note: "nothing goes wrong; " +
			"systemd-analyze verify and shellcheck of that Debian find nothing in its units and scripts"},
		{name: "crash at once", right: mustBeFormer, run: bad("2.0.0+crash")},
		{name: "segfault", right: mustBeFormer, run: bad("2.0.0+segfault"), check: journalSays("status=11/SEGV"), note: "killed by a real SIGSEGV"},
		{name: "crash 60 s after the start, before confirmation", right: mustBeFormer, long: 2 * time.Minute, within: 3 * time.Minute,
			run: steps(bad("2.0.0+unconfirmed"), countStarts("2.0.0+unconfirmed", 10)), check: journalSays("never confirmed"),
			note: "the gate's counter is set to its limit by hand after the first start, which saves nine more minutes of the same"},
		{name: "hang", right: mustBeFormer, long: 3 * time.Minute, within: 4 * time.Minute, run: bad("2.0.0+hang"), note: "three start timeouts of 25 s"},
		{name: "exits 0 in a loop", right: mustBeFormer, run: bad("2.0.0+exit0"), note: "each time after it said that it is ready"},
		{name: "killed for memory", right: mustBeFormer, run: steps(setUp(current), limitMemory, upgrade("2.0.0+memory")),
			check: steps(journalSays("status=9/KILL"), sayWhoKilled)},
	}
}

// countStarts sets the gate's counter as if a version had been started so often.
func countStarts(version string, count int) func(ctx context.Context, s *site) error {
	return func(ctx context.Context, s *site) error {
		err := WaitFor(ctx, s.name+" has started "+version, 60*time.Second, func(ctx context.Context) error {
			if !s.holds(stateDir+"/starts", version+" 1\n") {
				return errNotYet
			}
			return wantActive(ctx, s.Machine)
		})
		if err != nil {
			return err
		}
		return s.WriteFile(stateDir+"/starts", fmt.Appendf(nil, "%s %d\n", version, count), 0o644)
	}
}

// journalSays checks that the host's own journal has a text.
func journalSays(text string) func(ctx context.Context, s *site) error {
	return func(ctx context.Context, s *site) error {
		journal, err := s.Journal(ctx, hostUnit)
		if err == nil && !strings.Contains(journal, text) {
			err = fmt.Errorf("the journal of %s does not say %q, so something else was tested", hostUnit, text)
		}
		return err
	}
}

// cleanUnits has systemd check all units of the package, with what it put into
// /etc.
func cleanUnits(ctx context.Context, s *site) error {
	out, err := s.sh(ctx, "systemd-analyze verify --man=no $(cd / && ls /usr/lib/systemd/system/nox-mesh-host* /etc/systemd/system/nox-mesh-host*.service /etc/systemd/system/nox-mesh-host*.timer 2>/dev/null) 2>&1")
	if err == nil && out != "" {
		err = fmt.Errorf("systemd-analyze verify: %s", out)
	}
	return err
}

// cleanScripts has shellcheck read all scripts of the package.
func cleanScripts(ctx context.Context, s *site) error {
	out, err := s.sh(ctx, "shellcheck /usr/lib/nox-mesh-host/gate /usr/lib/nox-mesh-host/rollback /usr/lib/nox-mesh-host/kit/rescue/* "+
		"/var/lib/dpkg/info/nox-mesh-host.postinst /var/lib/dpkg/info/nox-mesh-host.prerm /var/lib/dpkg/info/nox-mesh-host.postrm 2>&1")
	if err != nil {
		err = fmt.Errorf("shellcheck: %w: %s", err, out)
	}
	return err
}

// sayWhoKilled notes in the table who ended the process that took too much.
func sayWhoKilled(ctx context.Context, s *site) error {
	journal, err := s.Journal(ctx, hostUnit)
	if strings.Contains(journal, "nobody stops") {
		s.note("no memory limit can be set here, so the process kills itself with SIGKILL")
	} else {
		s.note("the kernel's OOM killer ends the process at a limit on the machine's memory")
	}
	return err
}
