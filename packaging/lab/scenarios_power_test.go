package lab

import (
	"context"
	"fmt"
	"regexp"
	"time"
)

// moment is a point at which the power goes. It is made anew for each machine,
// since some have to remember what they saw.
type moment struct {
	name string
	is   func(s *site) func() bool
}

// dpkgIsDone is when dpkg has noted that a version is installed; the host, which
// waits for that, ends a moment later.
func dpkgIsDone(version string) func(s *site) func() bool {
	done := regexp.MustCompile(`(?s)\nPackage: nox-mesh-host\nStatus: install ok installed\n([^\n]+\n)*Version: ` + regexp.QuoteMeta(version) + `\n`)
	return func(s *site) func() bool {
		return func() bool {
			raw, err := s.ReadFile("/var/lib/dpkg/status")
			return err == nil && done.Match(raw)
		}
	}
}

// powerCuts end all processes of a machine at one moment and boot it again.
func powerCuts() []scenario {
	const unpacking = hostBinary + ".dpkg-new"
	file := func(path, text string) func(s *site) func() bool {
		return func(s *site) func() bool { return func() bool { return s.holds(path, text) } }
	}
	// unpacked: the new files were there beside the old ones, and are no more.
	unpacked := func(s *site) func() bool {
		seen := false
		return func() bool {
			there := s.has(unpacking)
			seen = seen || there
			return seen && !there
		}
	}
	either := []string{isNew, isFormer}
	cut := func(during string, to string, right []string, m moment) scenario {
		return scenario{name: fmt.Sprintf("power cut during %s: %s", during, m.name), right: right, long: 50 * time.Second, within: 2 * time.Minute,
			run: steps(bad(to), func(ctx context.Context, s *site) error { return s.cutWhen(ctx, m.name, m.is(s)) })}
	}
	var list []scenario
	for _, m := range []moment{
		{"just before dpkg", file(stateDir+"/installing", "version="+next)},
		{"dpkg unpacks", func(s *site) func() bool { return func() bool { return s.has(unpacking) } }},
		{"dpkg has unpacked", unpacked},
		{"dpkg configures", file(stateDir+"/install.log", "Setting up nox-mesh-host")},
		{"dpkg is done", dpkgIsDone(next)},
	} {
		list = append(list, cut("install", next, either, m))
	}
	for _, m := range []moment{
		{"the first start of the new version", file(stateDir+"/starts", next)},
		{"known-good is just written", file(stateDir+"/known-good", next)},
		{"the rescue kit is just renewed", file(stateDir+"/rescue/version", next)},
	} {
		list = append(list, cut("confirmation", next, mustBeNew, m))
	}
	for _, m := range []moment{
		{"its record is just written", file(stateDir+"/rollback", "status=begun")},
		{"dpkg unpacks", func(s *site) func() bool {
			return func() bool { return s.holds(stateDir+"/rollback", "status=begun") && s.has(unpacking) }
		}},
		{"dpkg has unpacked", func(s *site) func() bool {
			done := unpacked(s)
			return func() bool { return s.holds(stateDir+"/rollback", "status=") && done() }
		}},
		{"its record says done", file(stateDir+"/rollback", "status=done")},
	} {
		list = append(list, cut("rollback", "2.0.0+crash", mustBeFormer, m))
	}
	return list
}
