package lab

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// Release is a Debian release by its code name.
type Release string

// Releases that the lab was tried with.
const (
	Debian12 Release = "bookworm"
	Debian13 Release = "trixie"
)

// recipe makes a base root: $1 the release, $2 the directory, $3 the mirror, if
// any. Each machine gets its own name and id later. It is a part of the name
// under which the root is kept, so a changed one makes a new root.
const recipe = `
set -e
debootstrap --variant=minbase --include=systemd,systemd-sysv,dbus,shellcheck "$1" "$2" $3
rm -rf "$2"/var/cache/apt/archives/*.deb "$2"/var/lib/apt/lists/* "$2"/var/log/*.log
mkdir -p "$2"/var/log/journal # so that the journal outlives a power cut
: >"$2"/etc/machine-id
`

// Root gives the base root of a release. The first time ever it is made, which
// takes a minute. Nobody may write there.
func (l *Lab) Root(ctx context.Context, release Release) (string, error) {
	sum := sha256.Sum256([]byte(recipe))
	root := filepath.Join(l.base, fmt.Sprintf("%s-%x", release, sum[:4]))
	if _, err := os.Stat(root); err == nil {
		return root, nil
	}
	// One lab makes it, others wait.
	var lock *os.File
	err := WaitFor(ctx, "no other lab makes a base root", 15*time.Minute, func(context.Context) (err error) {
		var taken bool
		if lock, taken, err = lockDir(l.base); taken {
			return errors.New("one still does")
		}
		return err
	})
	if err != nil {
		return "", err
	}
	defer lock.Close()
	if _, err := os.Stat(root); err == nil {
		return root, nil
	}
	return root, l.makeRoot(ctx, release, root)
}

// makeRoot works in the lab's own directory and moves the whole into place, so
// one that was interrupted is never used.
func (l *Lab) makeRoot(ctx context.Context, release Release, root string) error {
	mirror := aptMirror(ctx, release)
	l.Say("lab", "making the base root of %s, once, in about a minute; from %s", release, or(mirror, "debootstrap's own mirror"))
	tmp := filepath.Join(l.dir, string(release))
	var log bytes.Buffer
	err := l.run(ctx, &log, "/bin/sh", "-c", "mount -t proc proc /proc\n"+recipe, "sh", string(release), tmp, mirror)
	if err != nil {
		return fmt.Errorf("debootstrap of %s from %s: %w: %s", release, or(mirror, "its own mirror"), err, lastLines(log.Bytes(), 5))
	}
	syscall.Sync() // a root must not be named before all of it is on the disk
	return os.Rename(tmp, root)
}

// aptMirror is where apt on this machine finds Debian; empty if it does not
// say. A mirror has all releases, so another one's serves as well.
func aptMirror(ctx context.Context, release Release) string {
	out, err := exec.CommandContext(ctx, "apt-get", "indextargets", "--format", "$(CODENAME) $(REPO_URI)",
		"Created-By: Packages", "Origin: Debian").Output()
	if err != nil {
		return ""
	}
	first := ""
	for line := range strings.Lines(string(out)) {
		name, uri, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch {
		case name == string(release):
			return uri
		case first == "" && !strings.Contains(name, "-"): // not updates, security or backports
			first = uri
		}
	}
	return first
}

func or(s, instead string) string {
	if s == "" {
		return instead
	}
	return s
}
