package nodeagent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// The rescue kit is what brings the machine back when a version does not start:
// scripts, and the units around them. Each package brings its own, and a bad
// version's may be broken like the rest of it. So a confirmed version keeps a
// copy where no later package writes: scripts in rescue/ of the state directory,
// units in /etc/systemd/system, where they win over those in /usr/lib. The files
// come verbatim out of the package's KitDir, from its folders of these names.
const (
	kitScripts = "rescue"
	kitUnits   = "system"

	fileKitVersion = dirRescue + "/version"
	// While it is there, the service manager may not know all unit files yet.
	fileKitReload = dirRescue + "/reload"
)

// keepKit makes the rescue kit that of the running version, which is
// known-good. Only a halt comes back as an error: trouble with the kit is shown,
// and is no reason to doubt the version.
func (a *Agent) keepKit() error {
	err := a.keepKitSteps()
	if errors.Is(err, errHalted) {
		return err
	}
	if err != nil {
		a.problem("rescue", fmt.Sprintf("the rescue kit of %s is not in place, so a bad upgrade may be harder to undo: %v", a.cfg.Version, err))
	} else {
		a.problem("rescue", "")
	}
	poke(a.kit)
	return nil
}

func (a *Agent) keepKitSteps() error {
	if a.cfg.KitDir == "" {
		return nil
	}
	scripts, units := filepath.Join(a.cfg.KitDir, kitScripts), filepath.Join(a.cfg.KitDir, kitUnits)
	if _, err := os.Stat(scripts); errors.Is(err, fs.ErrNotExist) {
		return nil // not installed as a package
	}
	if _, err := copyTree(scripts, a.state.path(dirRescue)); err != nil {
		return err
	}
	if err := a.step("rescue-scripts"); err != nil {
		return err
	}
	// The note comes first: after a stop between the files and the reload nothing
	// else would tell that there is something to reload.
	differ, err := differs(units, a.cfg.UnitDir)
	if err != nil {
		return err
	}
	if differ {
		if err := a.state.write(fileKitReload, nil); err != nil {
			return err
		}
		if err := a.step("rescue-reload"); err != nil {
			return err
		}
		if _, err := copyTree(units, a.cfg.UnitDir); err != nil {
			return err
		}
		if err := a.step("rescue-units"); err != nil {
			return err
		}
	}
	if a.state.readVersion(fileKitVersion) == a.cfg.Version {
		return nil
	}
	if err := a.state.write(fileKitVersion, []byte(a.cfg.Version+"\n")); err != nil {
		return err
	}
	return a.step("rescue-version")
}

// adoptKit has the service manager read changed unit files. It does so beside
// the confirmation, since a reload can take longer than a start may.
func (a *Agent) adoptKit(ctx context.Context) {
	for tries := 0; ; {
		var again <-chan time.Time
		if _, changed := a.state.read(fileKitReload); changed {
			err := a.cfg.Supervisor.AdoptKit(ctx)
			if err == nil {
				err = a.state.remove(fileKitReload)
			}
			switch {
			case ctx.Err() != nil:
				return
			case err != nil:
				tries++
				again = time.After(backoff(tries, a.cfg.Timings.RetryLeast, a.cfg.Timings.RetryMost))
				a.problem("rescue-reload", fmt.Sprintf("the service manager has not taken the rescue kit over: %v", err))
			default:
				tries = 0
				a.problem("rescue-reload", "")
				a.log.Info().Msg("the rescue kit is in place")
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-again:
		case <-a.kit:
		}
	}
}

// differs says whether copyTree would change anything.
func differs(from, to string) (bool, error) { return eachOfTree(from, to, false) }

// copyTree makes the files and links below to what they are below from, each
// there whole or not at all; what else is there stays. It says whether anything
// was changed.
func copyTree(from, to string) (bool, error) { return eachOfTree(from, to, true) }

func eachOfTree(from, to string, write bool) (changed bool, err error) {
	err = filepath.WalkDir(from, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		dst := filepath.Join(to, rel)
		switch {
		case strings.Contains(e.Name(), ".dpkg-"):
			return nil // left behind by a dpkg that was cut short
		case e.IsDir():
			if !write {
				return nil
			}
			if err := os.MkdirAll(dst, 0o755); err != nil {
				return err
			}
			return syncDir(filepath.Dir(dst))
		case e.Type() == fs.ModeSymlink:
			c, err := copyLink(path, dst, write)
			changed = changed || c
			return err
		case e.Type().IsRegular():
			c, err := copyFile(path, dst, write)
			changed = changed || c
			return err
		}
		return fmt.Errorf("%s is neither a file nor a link", path)
	})
	return changed, err
}

func copyFile(from, to string, write bool) (bool, error) {
	raw, err := os.ReadFile(from)
	if err != nil {
		return false, err
	}
	info, err := os.Stat(from)
	if err != nil {
		return false, err
	}
	mode := info.Mode().Perm()
	if have, err := os.Lstat(to); err == nil && have.Mode() == mode {
		if old, err := os.ReadFile(to); err == nil && bytes.Equal(old, raw) {
			return false, nil
		}
	}
	if !write {
		return true, nil
	}
	return true, writeDurablyWith(to, raw, mode)
}

func copyLink(from, to string, write bool) (bool, error) {
	target, err := os.Readlink(from)
	if err != nil {
		return false, err
	}
	if have, err := os.Readlink(to); err == nil && have == target {
		return false, nil
	}
	if !write {
		return true, nil
	}
	tmp := filepath.Join(filepath.Dir(to), "."+filepath.Base(to)+".new")
	if err := os.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return true, err
	}
	if err := os.Symlink(target, tmp); err != nil {
		return true, err
	}
	if err := os.Rename(tmp, to); err != nil {
		return true, err
	}
	return true, syncDir(filepath.Dir(to))
}

// kitTrouble says what is wrong with the kept kit, empty when nothing is, or
// when this machine has none.
func (s *State) kitTrouble(knownGood string) string {
	if _, err := os.Stat(s.path(dirRescue)); errors.Is(err, fs.ErrNotExist) {
		return ""
	}
	switch version := s.readVersion(fileKitVersion); version {
	case knownGood:
	case "":
		return "the rescue kit is not complete"
	default:
		return fmt.Sprintf("the rescue kit is of %s and known-good is %s", version, knownGood)
	}
	if info, err := os.Stat(s.path(dirRescue + "/rollback")); err != nil || info.Size() == 0 {
		return "the rescue kit has no rollback script"
	}
	return ""
}
