package lab

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"regexp"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// outsiders are people, other programs and the world around the host.
func outsiders() []scenario {
	return []scenario{
		{name: "three manual restarts of a healthy host", right: mustBeNew,
			run: steps(setUp(current), upgraded(next), shell("for i in 1 2 3 4; do systemctl restart "+hostUnit+" || true; done")),
			check: steps(saidBy(rollbackUnit, "restarted from outside more often than its start limit allows. Starting it again, once, with no rollback"),
				noRollback), note: "a fourth one follows, which systemd refuses; the host runs again, with no rollback"},
		{name: "stop timeout", right: mustFail, long: time.Minute, cause: "was told to stop and had to be killed",
			run: steps(setUp(current), upgraded(next), stopSlowly), check: noRollback,
			note: "an ExecStop= that hangs, in a drop-in; no rollback"},
		{name: "dpkg's lock held for 40 s during the upgrade", right: mustBeNew, long: time.Minute, run: steps(setUp(current), func(ctx context.Context, s *site) error {
			unlock, err := s.lockDpkg(ctx)
			if err != nil {
				return err
			}
			defer unlock()
			if err := s.upgrade(ctx, next); err != nil {
				return err
			}
			return s.pass(ctx, stateDir+"/installing", "version="+next, 40*time.Second)
		})},
		{name: "dpkg's lock held for 40 s during the rollback", right: mustBeFormer, long: 80 * time.Second,
			run: steps(bad("2.0.0+late"), installed("2.0.0+late"), func(ctx context.Context, s *site) error {
				unlock, err := s.lockDpkg(ctx)
				if err != nil {
					return err
				}
				defer unlock()
				return s.pass(ctx, stateDir+"/rollback", "status=begun", 40*time.Second)
			}), check: saidBy(rollbackUnit, "another process holds dpkg's lock")},
		{name: "no network during the whole rollback", right: mustBeFormer, ownNetwork: true, long: 40 * time.Second, run: steps(bad("2.0.0+late"), backWithoutNetwork),
			note: "cut when the bad package is fetched, mended when the former version is confirmed"},
		{name: "apt-get upgrade after a rollback", right: mustBeFormer, long: 40 * time.Second, run: steps(bad("2.0.0+crash"), aptUpgrade),
			note: "from a repository with the bad version, which apt would install but for the pin"},
		{name: "held package", right: mustBeFormer, run: steps(setUp(current), shell("apt-mark hold nox-mesh-host"), upgrade("2.0.0+crash")),
			note: "dpkg -i heeds no hold and clears it"},
		{name: "clock set back a year", right: mustBeFormer, long: 40 * time.Second, run: steps(bad("2.0.0+crash"), wentBack, dateAhead, upgrade("2.0.1+crash")),
			note: "no clock is set, since machines share that of this one: after a first rollback, all times in the state directory (of files and in them) are put a year ahead, which is what a host finds after that, and the machine is restarted"},
	}
}

// noRollback checks that there was none.
func noRollback(_ context.Context, s *site) error {
	if s.has(pinFile) || s.has(stateDir+"/rollback") || s.has(stateDir+"/rollback.last") {
		return fmt.Errorf("%s was rolled back", s.name)
	}
	return nil
}

func stopSlowly(ctx context.Context, s *site) error {
	if err := s.WriteFile("/etc/systemd/system/nox-mesh-host.service.d/90-slow.conf", []byte("[Service]\nExecStop=/bin/sleep 1000\n"), 0o644); err != nil {
		return err
	}
	_, err := s.sh(ctx, "systemctl daemon-reload && systemctl stop "+hostUnit)
	return err
}

// pass waits for a moment that a file tells, and then for a time.
func (s *site) pass(ctx context.Context, file, text string, wait time.Duration) error {
	err := WaitFor(ctx, file+" of "+s.name+" says "+text, 90*time.Second, func(context.Context) error {
		if !s.holds(file, text) {
			return errNotYet
		}
		return nil
	})
	if err != nil {
		return err
	}
	select {
	case <-time.After(wait):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// lockDpkg takes dpkg's locks, as another dpkg at work would. It waits for one
// that is at work.
func (s *site) lockDpkg(ctx context.Context) (unlock func(), err error) {
	err = WaitFor(ctx, "dpkg of "+s.name+" is at rest", 30*time.Second, func(context.Context) (err error) {
		unlock, err = s.tryLockDpkg()
		return err
	})
	return unlock, err
}

func (s *site) tryLockDpkg() (unlock func(), err error) {
	var files []*os.File
	unlock = func() {
		for _, f := range files {
			_ = f.Close()
		}
	}
	for _, name := range []string{"var/lib/dpkg/lock-frontend", "var/lib/dpkg/lock"} {
		f, err := s.disk.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o640)
		if err == nil {
			files = append(files, f)
			err = unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_WRLCK})
		}
		if err != nil {
			unlock()
			return nil, fmt.Errorf("%s: locking %s: %w", s.name, name, err)
		}
	}
	return unlock, nil
}

func backWithoutNetwork(ctx context.Context, s *site) error {
	if err := s.pass(ctx, stateDir+"/installing", "version="+s.target, 0); err != nil {
		return err
	}
	if err := s.CutNetwork(ctx); err != nil {
		return err
	}
	if err := s.pass(ctx, stateDir+"/rollback.last", "status=done", 0); err != nil {
		return err
	}
	// Confirmed, it tells that it is ready a moment later.
	if err := WaitFor(ctx, s.name+" runs "+s.former, 30*time.Second, func(ctx context.Context) error {
		return wantRuns(ctx, s.Machine, s.former)
	}); err != nil {
		return err
	}
	if s.diary.rollbacks(s.name, s.target) > 0 {
		return errors.New("the mesh heard of the rollback through a cut cable")
	}
	return s.MendNetwork(ctx)
}

// aptUpgrade gives the machine a repository with the bad version in it, and has
// apt upgrade all that there is.
func aptUpgrade(ctx context.Context, s *site) error {
	if err := s.rolledBack(ctx); err != nil {
		return err
	}
	raw, err := os.ReadFile(s.packages[s.target])
	if err != nil {
		return err
	}
	control, err := output(ctx, "dpkg-deb", "--field", s.packages[s.target])
	if err != nil {
		return err
	}
	index := fmt.Sprintf("%s\nFilename: ./bad.deb\nSize: %d\nSHA256: %x\n", control, len(raw), sha256.Sum256(raw))
	if err := errors.Join(
		s.WriteFile("/srv/apt/bad.deb", raw, 0o644),
		s.WriteFile("/srv/apt/Packages", []byte(index), 0o644),
		s.Remove("/etc/apt/sources.list.d"),
		s.WriteFile("/etc/apt/sources.list", []byte("deb [trusted=yes] file:/srv/apt ./\n"), 0o644)); err != nil {
		return err
	}
	would, err := s.sh(ctx, "apt-get update >&2 && apt-get --simulate --option Dir::Etc::PreferencesParts=/nowhere upgrade")
	if err != nil {
		return err
	}
	if !strings.Contains(would, "Inst nox-mesh-host") {
		return fmt.Errorf("apt would not install %s even without the pin, so nothing is tested: %s", s.target, would)
	}
	_, err = s.sh(ctx, "apt-get --yes upgrade && apt-get --yes dist-upgrade")
	return err
}

// dateAhead makes all that the host and its scripts have written a year later
// than now, with the machine off.
func dateAhead(ctx context.Context, s *site) error {
	if err := s.Kill(); err != nil {
		return err
	}
	later := time.Now().AddDate(1, 0, 0)
	now, then := fmt.Sprint(time.Now().UTC().Year()), fmt.Sprint(later.UTC().Year())
	stamp := regexp.MustCompile(`\b` + now + `(-\d\d-\d\dT)`)
	changed := 0
	err := fs.WalkDir(s.disk.FS(), strings.TrimPrefix(stateDir, "/"), func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		if !strings.HasSuffix(path, ".deb") {
			raw, err := s.disk.ReadFile(path)
			if err != nil {
				return err
			}
			if ahead := stamp.ReplaceAll(raw, []byte(then+"$1")); string(ahead) != string(raw) {
				changed++
				if err := s.disk.WriteFile(path, ahead, 0o644); err != nil {
					return err
				}
			}
		}
		return s.disk.Chtimes(path, later, later)
	})
	if err == nil && changed < 2 {
		err = fmt.Errorf("only %d files of the state directory have a time in them", changed)
	}
	return errors.Join(err, s.Boot(ctx))
}
