package server

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// dataLock keeps other servers off a data directory. The kernel gives it up
// when the process dies, however it dies.
type dataLock struct {
	file *os.File
}

// lockDataDir makes the directory if need be, makes sure that it can be
// written, and locks it.
func lockDataDir(dir string) (*dataLock, error) {
	if dir == "" {
		return nil, errors.New("no data directory given: name one with --data-dir")
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, dirTrouble(dir, err)
	}
	file, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, dirTrouble(dir, err)
	}
	err = syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		who := make([]byte, 32)
		n, _ := file.ReadAt(who, 0)
		file.Close()
		pid := ""
		if s := strings.TrimSpace(string(who[:n])); s != "" {
			pid = " (process " + s + ")"
		}
		return nil, fmt.Errorf("data directory %s is in use by another server%s: stop that one, or choose another directory with --data-dir", dir, pid)
	}
	if err != nil {
		file.Close()
		return nil, fmt.Errorf("locking data directory %s: %w: it must be on a local file system", dir, err)
	}
	// For people only: the lock is what counts.
	if err := errors.Join(file.Truncate(0), writeAt(file, fmt.Sprintf("%d\n", os.Getpid()))); err != nil {
		file.Close()
		return nil, dirTrouble(dir, err)
	}
	return &dataLock{file: file}, nil
}

func (l *dataLock) release() error { return l.file.Close() }

func writeAt(f *os.File, s string) error {
	_, err := f.WriteAt([]byte(s), 0)
	return err
}

func dirTrouble(dir string, err error) error {
	return fmt.Errorf("data directory %s cannot be used: %w: make it writable for this user, or choose another with --data-dir", dir, err)
}

// writeFile writes a file that is there whole or not at all, and that only the
// owner reads.
func writeFile(path string, data []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*") // mode 0600
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		if err = os.Rename(f.Name(), path); err == nil {
			return syncDir(filepath.Dir(path))
		}
	}
	return errors.Join(err, os.Remove(f.Name()))
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
