package lab

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// cgroups gives the directories of this process's control group in which a
// systemd in a container keeps its own: one on a current system, two where the
// old hierarchy is still in use. Machines need one each: the systemds of two
// in the same one would take each other's services for their own.
func cgroups() ([]string, error) {
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return nil, err
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	var dirs []string
	for line := range strings.Lines(string(own)) {
		_, rest, _ := strings.Cut(strings.TrimSpace(line), ":")
		controllers, path, _ := strings.Cut(rest, ":")
		if controllers != "" && controllers != "name=systemd" {
			continue
		}
		for mount := range strings.Lines(string(mounts)) {
			if dir, ok := cgroupDir(mount, controllers, path); ok {
				dirs = append(dirs, dir)
				break
			}
		}
	}
	if len(dirs) == 0 {
		return nil, errors.New("no control group file system of systemd's kind is mounted below /sys/fs/cgroup")
	}
	return dirs, nil
}

// cgroupDir gives the directory of a control group if a line of
// /proc/self/mountinfo is the mount of its hierarchy.
func cgroupDir(mount, controllers, path string) (string, bool) {
	head, tail, _ := strings.Cut(strings.TrimSpace(mount), " - ")
	fields, fs := strings.Fields(head), strings.Fields(tail)
	if len(fields) < 5 || len(fs) < 3 {
		return "", false
	}
	switch {
	case controllers == "" && fs[0] == "cgroup2":
	case controllers != "" && fs[0] == "cgroup" && strings.Contains(fs[2], controllers):
	default:
		return "", false
	}
	below, err := filepath.Rel(fields[3], path) // fields[3] is the root of the mount
	if err != nil || strings.HasPrefix(below, "..") {
		below = "."
	}
	return filepath.Join(fields[4], below), true
}

// makeCgroups makes a control group of a name in each of the directories.
func makeCgroups(dirs []string, name string) ([]string, error) {
	var made []string
	for _, dir := range dirs {
		dir = filepath.Join(dir, name)
		if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
			return nil, fmt.Errorf("making a control group: %w", err)
		}
		made = append(made, dir)
	}
	return made, nil
}
