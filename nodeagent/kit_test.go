package nodeagent_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"noxmesh/nodeagent"
)

// aKit is a package's rescue kit in a directory of its own.
func aKit(t *testing.T, version string) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range map[string]string{
		"rescue/rollback":                   "#!/bin/sh\n# of " + version + "\n",
		"system/x-rollback.service":         "[Service]\n# of " + version + "\n",
		"system/x.service.d/50-x.conf":      "[Unit]\n",
		"system/timers.target.wants/README": "",
	} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(filepath.Join(dir, "rescue/rollback"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("../x-rescue.timer", filepath.Join(dir, "system/timers.target.wants/x-rescue.timer")); err != nil {
		t.Fatal(err)
	}
	return dir
}

// lives runs a host with no link until it is confirmed and the service manager
// knows the kit, or until it halts.
func (b *box) lives(t *testing.T, kit, units string, s *stopper) {
	t.Helper()
	cfg := b.config("/nonexistent", "")
	cfg.KitDir, cfg.UnitDir = kit, units
	cfg.HaltAfter(s.after)
	r := start(t, cfg)
	for deadline := time.Now().Add(patience); b.has("rescue/reload") && time.Now().Before(deadline); {
		select {
		case <-r.done:
			r.wait()
			return
		case <-time.After(time.Millisecond):
		}
	}
	r.stop()
}

// tree lists all files below a directory with mode and content.
func tree(t *testing.T, dir string) string {
	t.Helper()
	var b strings.Builder
	err := filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		info := must(e.Info())
		content := ""
		if info.Mode().IsRegular() {
			content = string(must(os.ReadFile(path)))
		} else {
			content = "-> " + must(os.Readlink(path))
		}
		b.WriteString(strings.TrimPrefix(path, dir) + " " + info.Mode().String() + " " + content + "\n")
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// TestTheKitIsKeptAtConfirmation stops the host after each step on the way from
// one version's kit to the next one's.
func TestTheKitIsKeptAtConfirmation(t *testing.T) {
	old, next := aKit(t, "1.0.0"), aKit(t, "1.1.0")
	everyStop(t, []string{"known-good", "rescue-scripts", "rescue-reload", "rescue-units", "rescue-version", "starts"},
		func(t *testing.T, s *stopper) string {
			b, units := newBox(t, "1.0.0"), filepath.Join(t.TempDir(), "system")
			b.lives(t, old, units, &stopper{})
			if b.adopted != 1 {
				t.Errorf("the service manager was told %d times", b.adopted)
			}
			b.installed, b.adopted = "1.1.0", 0
			b.lives(t, next, units, s)
			b.lives(t, next, units, &stopper{})
			if b.adopted < 1 {
				t.Error("the service manager was never told of the new kit")
			}
			told := b.adopted
			b.lives(t, next, units, &stopper{})
			if b.adopted != told {
				t.Error("a start that changes nothing has the service manager read its files again")
			}
			return tree(t, filepath.Join(b.dir, "rescue")) + tree(t, units)
		})
}

func TestTheKeptKit(t *testing.T) {
	b, units := newBox(t, "1.0.0"), filepath.Join(t.TempDir(), "system")
	if err := os.MkdirAll(units, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(units, "other.service"), []byte("somebody else's"), 0o644); err != nil {
		t.Fatal(err)
	}
	b.lives(t, aKit(t, "1.0.0"), units, &stopper{})
	want := `/other.service -rw-r--r-- somebody else's
/timers.target.wants/README -rw-r--r-- 
/timers.target.wants/x-rescue.timer Lrwxrwxrwx -> ../x-rescue.timer
/x-rollback.service -rw-r--r-- [Service]
# of 1.0.0

/x.service.d/50-x.conf -rw-r--r-- [Unit]

`
	if got := tree(t, units); got != want {
		t.Errorf("units:\n%s", got)
	}
	if got := tree(t, filepath.Join(b.dir, "rescue")); got != "/rollback -rwxr-xr-x #!/bin/sh\n# of 1.0.0\n\n/version -rw-r--r-- 1.0.0\n\n" {
		t.Errorf("scripts:\n%s", got)
	}
	// What somebody changed or deleted is mended at the next start.
	if err := os.WriteFile(filepath.Join(b.dir, "rescue/rollback"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Join(units, "timers.target.wants")); err != nil {
		t.Fatal(err)
	}
	told := b.adopted
	b.lives(t, aKit(t, "1.0.0"), units, &stopper{})
	if got := tree(t, units); got != want || !strings.Contains(b.file("rescue/rollback"), "of 1.0.0") || b.adopted != told+1 {
		t.Errorf("after a repair: told %d times, units:\n%s", b.adopted, got)
	}
}

func TestWithoutAKitNothingIsDone(t *testing.T) {
	for _, kit := range []string{"", "/nonexistent/kit"} {
		b, units := newBox(t, "1.0.0"), filepath.Join(t.TempDir(), "system")
		b.lives(t, kit, units, &stopper{})
		if _, err := os.Stat(units); !errors.Is(err, os.ErrNotExist) || b.has("rescue") || b.adopted != 0 {
			t.Errorf("with the kit %q something was done", kit)
		}
	}
}

// TestAKitThatCannotBeKeptIsShown: the version is confirmed all the same.
func TestAKitThatCannotBeKeptIsShown(t *testing.T) {
	b := newBox(t, "1.0.0")
	units := filepath.Join(t.TempDir(), "system")
	b.write("blocked", "")
	cfg := b.config("/nonexistent", "")
	cfg.KitDir, cfg.UnitDir = aKit(t, "1.0.0"), filepath.Join(b.dir, "blocked", "system")
	r := start(t, cfg)
	b.awaitStatus("/nonexistent", func(o nodeagent.Overview) bool {
		return o.Host != nil && o.Host.Confirmed && strings.Contains(strings.Join(o.Problems, "\n"), "the rescue kit of 1.0.0 is not in place")
	})
	if b.file("known-good") != "1.0.0" {
		t.Error("it is not confirmed")
	}
	r.stop()
	cfg.UnitDir = units
	r = start(t, cfg)
	b.awaitStatus("/nonexistent", func(o nodeagent.Overview) bool {
		return !strings.Contains(strings.Join(o.Problems, "\n"), "rescue kit")
	})
	r.stop()
}

// TestAServiceManagerThatDoesNotAnswer is told again, and the host is ready
// without it.
func TestAServiceManagerThatDoesNotAnswer(t *testing.T) {
	b := newBox(t, "1.0.0")
	cfg := b.config("/nonexistent", "")
	cfg.KitDir, cfg.UnitDir = aKit(t, "1.0.0"), filepath.Join(t.TempDir(), "system")
	deaf := &deafSupervisor{box: b, left: 3, heard: make(chan struct{})}
	cfg.Supervisor = deaf
	r := start(t, cfg)
	select {
	case <-deaf.heard:
	case <-time.After(patience):
		t.Error("it was not told again")
	}
	r.stop()
	if b.has("rescue/reload") {
		t.Error("the note that there is something to reload stays")
	}
}

type deafSupervisor struct {
	*box
	left  int
	heard chan struct{}
}

func (d *deafSupervisor) AdoptKit(ctx context.Context) error {
	if d.left--; d.left > 0 {
		return errors.New("no answer")
	}
	if d.left == 0 {
		close(d.heard)
	}
	return d.box.AdoptKit(ctx)
}
