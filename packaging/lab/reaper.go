package lab

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
)

// reap deletes what a lab leaves in the file system: its directory and the
// control groups that are listed in it. It waits for the end of standard
// input, which is when the lab closes its end of the pipe or is no more.
// Processes that are still dying hold control groups for a moment, hence the
// tries.
const reap = `
trap '' INT TERM HUP
cat >/dev/null
dir=$1
tries=100
groups=$(cat "$dir/cgroups")
while :; do
	left=
	IFS='
'
	for g in $groups; do
		[ ! -d "$g" ] || find "$g" -depth -type d -exec rmdir {} + || left=1
	done
	[ -n "$left" ] || rm -rf --one-file-system "$dir" || left=1
	[ -n "$left" ] || exit 0
	tries=$((tries - 1))
	[ "$tries" -gt 0 ] || exit 1
	sleep 0.1
done
`

// reaper is the shell that cleans up behind a lab.
type reaper struct {
	cmd  *exec.Cmd
	pipe io.Closer
	dir  string
}

// startReaper gives the reaper the lab's directory and the lock on it, so that
// no other lab takes the place before it is clean.
func startReaper(dir string, lock *os.File) (*reaper, error) {
	cmd := exec.Command("/bin/sh", "-c", reap, "sh", dir)
	cmd.Dir, cmd.Env = "/", []string{"PATH=" + path}
	cmd.ExtraFiles = []*os.File{lock}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	pipe, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return nil, fmt.Errorf("starting what cleans up: %w", err)
	}
	return &reaper{cmd: cmd, pipe: pipe, dir: dir}, nil
}

// finish lets the reaper do its work and waits for it.
func (r *reaper) finish() error {
	if err := errors.Join(r.pipe.Close(), r.cmd.Wait()); err != nil {
		return fmt.Errorf("%s could not be deleted (%w): see what holds it, then delete it", r.dir, err)
	}
	return nil
}

// lockDir takes the lock on a directory, or says that another process has it.
// The lock ends with the file, or with the process.
func lockDir(dir string) (f *os.File, taken bool, err error) {
	f, err = os.Open(dir)
	if err != nil {
		return nil, false, err
	}
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return nil, true, f.Close()
	}
	if err != nil {
		return nil, false, errors.Join(fmt.Errorf("locking %s: %w", dir, err), f.Close())
	}
	// Between the two calls its holder may have deleted it and another lab made it anew.
	held, err := f.Stat()
	if now, statErr := os.Stat(dir); err != nil || statErr != nil || !os.SameFile(held, now) {
		return nil, true, f.Close()
	}
	return f, false, nil
}

// sweep deletes what labs left that ended without a reaper. A lab that lives
// holds the lock on its directory.
func sweep(dir string) error {
	old, err := filepath.Glob(filepath.Join(dir, slotPrefix+"*"))
	if err != nil {
		return err
	}
	for _, dead := range old {
		lock, taken, err := lockDir(dead)
		if taken || errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		cmd := exec.Command("/bin/sh", "-c", reap, "sh", dead)
		cmd.Env = []string{"PATH=" + path}
		out, err := cmd.CombinedOutput()
		if err = errors.Join(err, lock.Close()); err != nil {
			return fmt.Errorf("deleting %s, which a former lab left: %w: %s", dead, err, strings.TrimSpace(string(out)))
		}
	}
	return nil
}
