package nodeagent

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"noxmesh/events"
)

// Names in the state directory. Those that the scripts in packaging/ read or
// write are the contract with them.
const (
	fileKnownGood    = "known-good"          // scripts read it
	filePrevious     = "known-good.previous" // the known-good before that
	fileStarts       = "starts"              // the gate writes it
	fileRestarted    = "restarted"           // the gate writes it
	fileInstalling   = "installing"          // the rollback script reads it
	fileRollback     = "rollback"            // the rollback script writes it
	fileRollbackLast = "rollback.last"
	fileRefused      = "refused.json"
	fileReported     = "reported.json"
	fileDeclaration  = "declaration.json"
	fileVerified     = "verified.json"
	fileDenied       = "declaration-refused.json"
	fileApplied      = "applied"
	fileStatus       = "status.json"
	fileDrill        = "drill.json"
	fileLock         = "lock"
	dirRescue        = "rescue" // scripts run from it; see kit.go
	dirPackages      = "packages"
	dirIncoming      = "incoming"
	dirOutbox        = "outbox"
	dirRejected      = "outbox/rejected"
)

// maxStateFile bounds what is read of one file, in bytes.
const maxStateFile = 4 << 20

// State is a node's state directory. Its readers survive missing, empty and
// damaged files: what does not read is set aside as NAME.corrupt and said in
// [State.Trouble], unless the directory was opened to look only.
type State struct {
	dir      string
	readOnly bool

	mu      sync.Mutex
	trouble []string
}

// OpenState opens a state directory for the host, making what is missing.
func OpenState(dir string) (*State, error) {
	s := &State{dir: dir}
	for _, d := range []string{"", dirPackages, dirIncoming, dirRejected} {
		if err := os.MkdirAll(s.path(d), 0o755); err != nil {
			return nil, fmt.Errorf("state directory: %w", err)
		}
	}
	return s, nil
}

// LookAtState opens a state directory to look at; it changes nothing there.
func LookAtState(dir string) *State { return &State{dir: dir, readOnly: true} }

func (s *State) path(name string) string { return filepath.Join(s.dir, name) }

// Trouble lists what was damaged or unreadable so far, one line each.
func (s *State) Trouble() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.trouble)
}

func (s *State) note(format string, args ...any) {
	line := fmt.Sprintf(format, args...)
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.trouble) < 20 && !slices.Contains(s.trouble, line) {
		s.trouble = append(s.trouble, line)
	}
}

// setAside moves a damaged file out of the way, where a person can look at it.
func (s *State) setAside(name, why string) {
	if s.readOnly {
		s.note("%s is damaged: %s", name, why)
		return
	}
	if err := os.Rename(s.path(name), s.path(name)+".corrupt"); err != nil && !errors.Is(err, fs.ErrNotExist) {
		s.note("%s is damaged (%s) and cannot be set aside: %v", name, why, err)
		return
	}
	s.note("%s was damaged (%s): set aside as %s.corrupt", name, why, name)
}

// read gives a file's content, and false when there is none to be had.
func (s *State) read(name string) ([]byte, bool) {
	f, err := os.Open(s.path(name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, false
	}
	if err != nil {
		s.note("%s cannot be read: %v", name, err)
		return nil, false
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil && !info.Mode().IsRegular() {
		s.setAside(name, "no regular file")
		return nil, false
	}
	raw, err := io.ReadAll(io.LimitReader(f, maxStateFile+1))
	if err != nil {
		s.note("%s cannot be read: %v", name, err)
		return nil, false
	}
	if len(raw) > maxStateFile {
		s.setAside(name, "too large")
		return nil, false
	}
	return raw, true
}

// readJSON reads a file into v; false when it is missing or damaged.
func (s *State) readJSON(name string, v any) bool {
	raw, ok := s.read(name)
	if !ok {
		return false
	}
	if err := json.Unmarshal(raw, v); err != nil {
		s.setAside(name, err.Error())
		return false
	}
	return true
}

// readVersion reads a file that holds one version; empty when there is none.
func (s *State) readVersion(name string) string {
	raw, ok := s.read(name)
	if !ok {
		return ""
	}
	v := strings.TrimSpace(string(raw))
	if err := events.CheckVersion(v); err != nil {
		s.setAside(name, err.Error())
		return ""
	}
	return v
}

// KnownGood is the confirmed version, or empty when none ever was.
func (s *State) KnownGood() string { return s.readVersion(fileKnownGood) }

func (s *State) write(name string, raw []byte) error { return writeDurably(s.path(name), raw) }

func (s *State) writeJSON(name string, v any) error {
	raw, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return fmt.Errorf("writing %s: %w", name, err)
	}
	return s.write(name, append(raw, '\n'))
}

// remove takes a file away for good; a missing one is fine.
func (s *State) remove(name string) error {
	err := os.Remove(s.path(name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return syncDir(filepath.Dir(s.path(name)))
}

func (s *State) rename(from, to string) error {
	if err := os.Rename(s.path(from), s.path(to)); err != nil {
		return err
	}
	return syncDir(s.dir)
}

// lock makes sure that one host only works in the directory. The lock belongs
// to the open file, so it ends with the process.
func (s *State) lock() (unlock func(), err error) {
	f, err := os.OpenFile(s.path(fileLock), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("state directory: %w", err)
	}
	l := unix.Flock_t{Type: unix.F_WRLCK}
	if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &l); err != nil {
		f.Close()
		return nil, fmt.Errorf("state directory %s is in use by another host: stop it first (systemctl stop nox-mesh-host): %w", s.dir, err)
	}
	return func() {
		// Explicitly: a child between fork and exec has the file open as well.
		l := unix.Flock_t{Type: unix.F_UNLCK}
		_ = unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &l)
		f.Close()
	}, nil
}

// hostRuns says whether a host works in the directory now. It only asks: taking
// the lock to find out could cost a host that starts at that moment its start.
func (s *State) hostRuns() bool {
	f, err := os.Open(s.path(fileLock))
	if err != nil {
		return false
	}
	defer f.Close()
	l := unix.Flock_t{Type: unix.F_RDLCK}
	return unix.FcntlFlock(f.Fd(), unix.F_OFD_GETLK, &l) == nil && l.Type != unix.F_UNLCK
}

// writeDurably puts a file in place so that after a power cut it is the old
// one or the new one, whole.
func writeDurably(path string, raw []byte) error {
	return writeDurablyWith(path, raw, 0o644)
}

func writeDurablyWith(path string, raw []byte, mode fs.FileMode) error {
	if err := writeBeside(path, raw, mode, true); err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	return syncDir(filepath.Dir(path))
}

// writeBeside writes a file next to its place and swaps it in.
func writeBeside(path string, raw []byte, mode fs.FileMode, sync bool) error {
	tmp := filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".new")
	f, err := os.OpenFile(tmp, os.O_CREATE|os.O_WRONLY|os.O_TRUNC|syscall.O_NOFOLLOW, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(raw)
	if err == nil {
		err = f.Chmod(mode) // whatever the umask, and whatever was left there
	}
	if err == nil && sync {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return errors.Join(err, os.Remove(tmp))
	}
	return os.Rename(tmp, path)
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
