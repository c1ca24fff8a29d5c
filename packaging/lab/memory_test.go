package lab

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// limitMemory bounds what the machine may use to 512 MiB, where this machine's
// control groups can do that; otherwise it does nothing.
func limitMemory(_ context.Context, s *site) error {
	const limit = "536870912"
	for _, dir := range s.cgroups { // one hierarchy for all
		if os.WriteFile(filepath.Join(dir, "memory.max"), []byte(limit), 0o644) == nil {
			return nil
		}
	}
	parent, err := memoryCgroup()
	if err != nil || parent == "" {
		return err
	}
	// A hierarchy of its own for memory. The reaper deletes what is on its list.
	dir := filepath.Join(parent, "nox-mesh-"+filepath.Base(s.lab.dir)+"-"+s.name)
	list, err := os.OpenFile(filepath.Join(s.lab.dir, "cgroups"), os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	defer list.Close()
	if _, err := fmt.Fprintln(list, dir); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "memory.limit_in_bytes"), []byte(limit), 0o644); err != nil {
		return err
	}
	// Processes that it starts from now on are in it too.
	return os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(s.leader)), 0o644)
}

// memoryCgroup is this process's control group of the old memory hierarchy;
// empty if there is none.
func memoryCgroup() (string, error) {
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return "", err
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(own)) {
		_, rest, _ := strings.Cut(strings.TrimSpace(line), ":")
		if controllers, path, _ := strings.Cut(rest, ":"); controllers == "memory" {
			for mount := range strings.Lines(string(mounts)) {
				if dir, ok := cgroupDir(mount, controllers, path); ok {
					return dir, nil
				}
			}
		}
	}
	return "", nil
}
