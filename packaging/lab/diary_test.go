package lab

import (
	"bufio"
	"context"
	"os/exec"
	"sync"
	"time"

	"noxmesh/events"
)

// diary is the event log as it grows, read once for all scenarios.
type diary struct {
	mu      sync.Mutex
	entries []entry
	err     error // of an event that does not read
}

type entry struct {
	subject string
	fact    events.Fact
}

// keepDiary follows the log until the lab ends.
func keepDiary(l *Lab, m *mesh) (*diary, error) {
	cmd := exec.Command(m.program, "log", "--follow", "--json", "--data-dir", m.data)
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := l.Start(cmd); err != nil {
		return nil, err
	}
	d := &diary{}
	go func() {
		lines := bufio.NewScanner(out)
		lines.Buffer(nil, 4<<20)
		for lines.Scan() {
			d.add(lines.Bytes())
		}
		_ = cmd.Wait()
	}()
	return d, nil
}

func (d *diary) add(line []byte) {
	e, err := events.Decode(line)
	var fact events.Fact
	if err == nil {
		fact, err = e.Fact()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if err != nil {
		d.err = err
		return
	}
	d.entries = append(d.entries, entry{e.Subject, fact})
}

// told gives the facts of one kind about a node.
func told[T events.Fact](d *diary, node string) []T {
	d.mu.Lock()
	defer d.mu.Unlock()
	var found []T
	for _, e := range d.entries {
		if f, ok := e.fact.(T); ok && e.subject == node {
			found = append(found, f)
		}
	}
	return found
}

// confirmations counts how often a node confirmed a version.
func (d *diary) confirmations(node, version string) (n int) {
	for _, f := range told[*events.NodeConfirmed](d, node) {
		if f.Version == version {
			n++
		}
	}
	return n
}

// rollbacks counts the rollbacks of a node from a version.
func (d *diary) rollbacks(node, from string) (n int) {
	for _, f := range told[*events.NodeRolledBack](d, node) {
		if f.From == from {
			n++
		}
	}
	return n
}

// notInstalled is what a node said about a version that it did not install:
// refused, or failed to apply; empty if nothing.
func (d *diary) notInstalled(node, version string) string {
	for _, f := range told[*events.NodeRefused](d, node) {
		if f.Version == version {
			return "refused: " + f.Reason
		}
	}
	declared := map[uint64]bool{}
	for _, f := range told[*events.Declared](d, node) {
		if h := f.Host(); h != nil && h.Version == version {
			declared[f.Revision] = true
		}
	}
	for _, f := range told[*events.NodeFailedToApply](d, node) {
		if declared[f.Revision] {
			return "failed to apply: " + f.Error
		}
	}
	return ""
}

// wait waits until the diary says so.
func (d *diary) wait(ctx context.Context, what string, within time.Duration, says func() bool) error {
	return WaitFor(ctx, what, within, func(context.Context) error {
		if !says() {
			return errNotYet
		}
		return nil
	})
}
