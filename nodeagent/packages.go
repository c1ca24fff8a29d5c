package nodeagent

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"noxmesh/events"
)

// PackagePath is where the package of one version is retained.
func (s *State) PackagePath(version, architecture string) string {
	return filepath.Join(s.dir, dirPackages, events.PackageFile(version, architecture))
}

// ErrNotRetained: the machine has no package of that version.
var ErrNotRetained = errors.New("package is not retained")

// Retained checks the retained package of a version and gives its sha256. The
// error is [ErrNotRetained], or says what is wrong with the package.
func (s *State) Retained(version, architecture string) (string, error) {
	file := s.PackagePath(version, architecture)
	sum, err := fileSHA256(file)
	if errors.Is(err, fs.ErrNotExist) {
		return "", ErrNotRetained
	}
	if err != nil {
		return "", fmt.Errorf("retained package does not read: %w", err)
	}
	raw, err := os.ReadFile(file + ".sha256")
	if err != nil {
		return "", fmt.Errorf("retained package has no checksum: %w", err)
	}
	want, name, _ := strings.Cut(strings.TrimRight(string(raw), "\n"), "  ")
	if name != filepath.Base(file) || want != sum {
		return "", fmt.Errorf("retained package %s does not match its checksum", filepath.Base(file))
	}
	return sum, nil
}

// Retain takes a file in as the package of a version, with the checksum that it
// has now. The file must be on the same file system, whole and on disk.
func (s *State) Retain(from, version, architecture string) error {
	to := s.PackagePath(version, architecture)
	sum, err := fileSHA256(from)
	if err != nil {
		return fmt.Errorf("retaining %s: %w", filepath.Base(to), err)
	}
	if err := os.Rename(from, to); err != nil {
		return fmt.Errorf("retaining %s: %w", filepath.Base(to), err)
	}
	// The name is in sha256sum's format, so that a script can check it.
	line := fmt.Sprintf("%s  %s\n", sum, filepath.Base(to))
	if err := writeDurably(to+".sha256", []byte(line)); err != nil {
		return fmt.Errorf("retaining %s: %w", filepath.Base(to), err)
	}
	return nil
}

// prune deletes retained packages of all versions but the given.
func (s *State) prune(architecture string, keep ...string) error {
	entries, err := os.ReadDir(s.path(dirPackages))
	if err != nil {
		return err
	}
	kept := map[string]bool{}
	for _, v := range keep {
		if v != "" {
			name := events.PackageFile(v, architecture)
			kept[name], kept[name+".sha256"] = true, true
		}
	}
	var errs []error
	for _, e := range entries {
		name := e.Name()
		if kept[name] || !strings.HasPrefix(name, events.HostPackage+"_") {
			continue // somebody else's file is not ours to delete
		}
		if strings.HasSuffix(name, ".deb") || strings.HasSuffix(name, ".deb.sha256") {
			errs = append(errs, os.Remove(filepath.Join(s.path(dirPackages), name)))
		}
	}
	return errors.Join(errs...)
}

// clearIncoming deletes what downloads left behind when the process ended.
func (s *State) clearIncoming() error {
	entries, err := os.ReadDir(s.path(dirIncoming))
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		errs = append(errs, os.RemoveAll(filepath.Join(s.path(dirIncoming), e.Name())))
	}
	return errors.Join(errs...)
}

func fileSHA256(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}
