package lab

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// smallState puts the state directory on a file system of a few MiB.
func smallState(size string) func(ctx context.Context, s *site) error {
	return func(ctx context.Context, s *site) error {
		if err := s.prepare(ctx); err != nil {
			return err
		}
		if _, err := s.sh(ctx, "mkdir -p "+stateDir+" && mount -t tmpfs -o mode=0700,size="+size+" tmpfs "+stateDir); err != nil {
			return err
		}
		if err := s.dpkg(ctx, current); err != nil {
			return err
		}
		s.target = current
		return s.confirmed(ctx, current)
	}
}

// smallPrograms leaves that much room for new files in /usr/bin.
func smallPrograms(size string) func(ctx context.Context, s *site) error {
	return shell("mkdir /mnt/small && mount -t tmpfs -o size=" + size + ` tmpfs /mnt/small && mkdir /mnt/small/upper /mnt/small/work &&
		mount -t overlay -o lowerdir=/usr/bin,upperdir=/mnt/small/upper,workdir=/mnt/small/work overlay /usr/bin`)
}

func disks() []scenario {
	return []scenario{
		{name: "disk full before the install", right: mustBeFormer, run: steps(smallState("50m"), upgrade(next)),
			note: "a small file system for the state directory: the package is not even fetched"},
		{name: "disk full while dpkg unpacks", right: mustBeFormer, run: steps(setUp(current), smallPrograms("2m"), upgrade(next)),
			check: func(_ context.Context, s *site) error {
				if said := s.diary.notInstalled(s.name, next); !strings.Contains(said, "No space left") {
					return fmt.Errorf("the mesh was told %q", said)
				}
				return nil
			}, note: "a small file system for /usr/bin"},
		{name: "disk full at rollback, no room for the record", right: mustFail, long: time.Minute, cause: "cannot write .*/rollback, so .* is not rolled back.*Free some space",
			run: steps(smallState("150m"), upgrade("2.0.0+fill")), check: freeSpaceAndGoOn("rm "+stateDir+"/junk", "then: "),
			note: "the bad version fills the disk before it crashes; when there is space again, the command that the journal gives brings the former version back"},
		{name: "disk full at rollback, no room for the program", right: mustFail, long: time.Minute, cause: "No space left on device",
			run: steps(setUp(current), smallPrograms("64m"), upgrade("2.0.0+late"), installed("2.0.0+late"),
				shell("dd if=/dev/zero of=/mnt/small/filler bs=64k || true")), check: freeSpaceAndGoOn("rm /mnt/small/filler", "Mend that, then: "),
			note: "when there is space again, the command that the journal gives brings the former version back"},
	}
}

// freeSpaceAndGoOn does what the rollback asked for in the journal.
func freeSpaceAndGoOn(free, before string) func(ctx context.Context, s *site) error {
	return func(ctx context.Context, s *site) error {
		journal, err := s.Journal(ctx, rollbackUnit, "-o", "cat")
		if err != nil {
			return err
		}
		_, command, found := strings.Cut(journal, before)
		if !found {
			return fmt.Errorf("the journal does not say what to do:\n%s", journal)
		}
		command, _, _ = strings.Cut(command, "\n")
		if _, err := s.sh(ctx, free+" && "+command); err != nil {
			return err
		}
		_, err = s.end(ctx, 60*time.Second, isFormer)
		return err
	}
}

// parachutes are rollbacks whose means were damaged.
func parachutes() []scenario {
	deb := stateDir + "/packages/nox-mesh-host_" + current + "_"
	lost := func(change func(s *site) error) func(ctx context.Context, s *site) error {
		return steps(bad("2.0.0+late"), installed("2.0.0+late"), func(ctx context.Context, s *site) error {
			return errors.Join(s.Kill(), change(s), s.Boot(ctx))
		})
	}
	known := stateDir + "/known-good"
	list := []scenario{
		{name: "known-good empty after a power loss", cause: "known-good holds no version, so there is nothing to go back to",
			run: lost(func(s *site) error { return s.WriteFile(known, nil, 0o644) })},
		{name: "known-good garbage after a power loss", cause: "known-good holds no version, so there is nothing to go back to",
			run: lost(func(s *site) error { return s.WriteFile(known, []byte("\x00\xff\x00; rm -rf /\n"), 0o644) })},
		{name: "known-good missing after a power loss", cause: "no version was ever confirmed on this machine",
			run: lost(func(s *site) error { return s.Remove(known) })},
		{name: "retained package missing", cause: "cannot go back to .*the retained package .* is missing",
			run: steps(bad("2.0.0+late"), installed("2.0.0+late"), shell("rm "+deb+"*.deb"))},
		{name: "retained package truncated", cause: "cannot go back to .* does not have its checksum",
			run: steps(bad("2.0.0+late"), installed("2.0.0+late"), shell("truncate -s 100000 "+deb+"*.deb"))},
		{name: "retained package of another package", cause: "cannot go back to .* holds 'other-package " + current + "'",
			run: steps(bad("2.0.0+late"), installed("2.0.0+late"), anotherPackage)},
	}
	for i := range list {
		list[i].right, list[i].long = mustFail, time.Minute+20*time.Second
	}
	return append(list, scenario{name: "package cache wiped by the admin", right: mustBeFormer,
		run: steps(bad("2.0.0+late"), installed("2.0.0+late"), shell("apt-get clean && rm -rf /var/cache/apt /var/lib/apt/lists"))})
}

// anotherPackage puts another package, with its right checksum, in the place of
// the retained one.
func anotherPackage(ctx context.Context, s *site) error {
	dir, err := s.lab.Dir("other-" + s.name)
	if err != nil {
		return err
	}
	arch, err := output(ctx, "dpkg", "--print-architecture")
	if err != nil {
		return err
	}
	control := fmt.Sprintf("Package: other-package\nVersion: %s\nArchitecture: %s\nMaintainer: nobody <nobody@example.invalid>\nDescription: another one\n", current, arch)
	if err := errors.Join(os.MkdirAll(filepath.Join(dir, "tree", "DEBIAN"), 0o755),
		os.WriteFile(filepath.Join(dir, "tree", "DEBIAN", "control"), []byte(control), 0o644)); err != nil {
		return err
	}
	if out, err := exec.CommandContext(ctx, "dpkg-deb", "--build", filepath.Join(dir, "tree"), filepath.Join(dir, "other.deb")).CombinedOutput(); err != nil {
		return fmt.Errorf("dpkg-deb: %w: %s", err, lastLines(out, 2))
	}
	raw, err := os.ReadFile(filepath.Join(dir, "other.deb"))
	if err != nil {
		return err
	}
	name := "nox-mesh-host_" + current + "_" + arch + ".deb"
	return errors.Join(s.WriteFile(stateDir+"/packages/"+name, raw, 0o644),
		s.WriteFile(stateDir+"/packages/"+name+".sha256", fmt.Appendf(nil, "%x  %s\n", sha256.Sum256(raw), name), 0o644))
}
