package nodeagent

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// saying is a systemd-run whose dpkg says something into the log and fails,
// or works for an empty text.
func saying(t *testing.T, log string, texts ...string) (Dpkg, *int) {
	calls := 0
	return Dpkg{Log: log, run: func(_ context.Context, name string, args ...string) ([]byte, error) {
		if name != "systemd-run" || !slices.Contains(args, "--wait") || !slices.Contains(args, "--unit=nox-mesh-host-install") || args[len(args)-1] != "/x.deb" {
			t.Errorf("it ran %s %q", name, args)
		}
		text := texts[min(calls, len(texts)-1)]
		calls++
		if text == "" {
			return nil, nil
		}
		if strings.HasPrefix(text, "systemd: ") {
			return []byte(text), errors.New("exit status 1")
		}
		if err := os.WriteFile(log, []byte(text), 0o644); err != nil {
			t.Error(err)
		}
		return nil, errors.New("exit status 2")
	}}, &calls
}

func TestDpkg(t *testing.T) {
	const locked = "dpkg: error: dpkg frontend lock was locked by another process with pid 4242\nNote: removing the lock file is always wrong"
	for _, c := range []struct {
		name  string
		texts []string
		calls int
		want  string // of the error, empty for none
	}{
		{"it works", []string{""}, 1, ""},
		{"it is in use for a while", []string{locked, locked, ""}, 3, ""},
		{"an installation from before a restart runs", []string{"systemd: Failed to start transient service unit: Unit nox-mesh-host-install.service already exists.", ""}, 2, ""},
		{"it is in use for ever", []string{locked}, -1, "dpkg is in use by somebody else: dpkg: error"},
		{"it fails", []string{"a\nb\ndpkg: error processing archive /x.deb (--install):\n no space left\nc\nd\ne\nf\n"}, 1, "dpkg -i: dpkg: error processing archive /x.deb (--install): | no space left"},
		{"systemd fails", []string{"systemd: Failed to connect to bus"}, 1, "dpkg -i: systemd: Failed to connect to bus"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				log := filepath.Join(t.TempDir(), "install.log")
				if err := os.WriteFile(log, []byte("of an older try: no space left"), 0o644); err != nil {
					t.Fatal(err)
				}
				d, calls := saying(t, log, c.texts...)
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				err := d.Install(ctx, "/x.deb")
				if (err == nil) != (c.want == "") || err != nil && !strings.HasPrefix(err.Error(), c.want) {
					t.Errorf("got %v", err)
				}
				if c.calls >= 0 && *calls != c.calls || *calls > 8 {
					t.Errorf("dpkg ran %d times", *calls)
				}
			})
		})
	}
}

func TestMend(t *testing.T) {
	for _, c := range []struct {
		name, state, says string
		mended            bool
		err               error // that it is, if any
	}{
		{name: "installed", state: "ii "},
		{name: "installed and held", state: "hi "},
		{name: "removed, its state kept", state: "rc "},
		{name: "unpacked only", state: "iU ", mended: true},
		{name: "half-configured", state: "iF ", mended: true},
		{name: "half-installed, to be reinstalled", state: "iHR", mended: true},
		{name: "somebody is at work", state: "iU ", says: "dpkg: error: dpkg frontend lock was locked by another process with pid 7", err: ErrBusy},
	} {
		t.Run(c.name, func(t *testing.T) {
			ran := false
			d := Dpkg{Log: filepath.Join(t.TempDir(), "install.log"), run: func(_ context.Context, name string, args ...string) ([]byte, error) {
				if name == "dpkg-query" {
					return []byte(c.state), nil
				}
				ran = true
				if name != "systemd-run" || args[len(args)-1] != "/x.deb" {
					t.Errorf("it ran %s %q", name, args)
				}
				if c.says != "" {
					return []byte(c.says), errors.New("exit status 2")
				}
				return nil, nil
			}}
			mended, err := d.Mend(t.Context(), "/x.deb")
			if mended != c.mended || !errors.Is(err, c.err) || ran != (c.mended || c.err != nil) {
				t.Errorf("mended %v, error %v, dpkg ran %v", mended, err, ran)
			}
		})
	}
}
