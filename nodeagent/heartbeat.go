package nodeagent

import (
	"context"
	"encoding/json"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"noxmesh/events"
)

// sendHeartbeats says what the node runs: at once when the link comes up or
// something changed, and then at the interval. They are sent and forgotten.
func (a *Agent) sendHeartbeats(ctx context.Context) {
	timer := time.NewTimer(about(a.cfg.Timings.Heartbeat))
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-a.beat:
		case <-timer.C:
			poke(a.dirty) // so that status.json is never much older
		}
		if nc := a.link.conn(); nc != nil {
			raw, err := json.Marshal(a.heartbeat())
			if err == nil {
				a.mu.Lock()
				node := a.node
				a.mu.Unlock()
				err = nc.Publish(events.HeartbeatSubject(node), raw)
			}
			if err != nil {
				a.log.Debug().Err(err).Msg("heartbeat")
			}
		}
		timer.Reset(about(a.cfg.Timings.Heartbeat))
	}
}

func (a *Agent) heartbeat() events.Heartbeat {
	a.mu.Lock()
	defer a.mu.Unlock()
	return events.Heartbeat{
		At: time.Now().UTC(), StartID: a.startID, Version: a.cfg.Version, KnownGood: a.knownGood,
		Revision: a.applied, Architecture: a.cfg.Architecture, OS: osName(), Kernel: kernel(),
		Retained: a.parachute == nil, Problems: a.problemLines(), Drill: a.state.drillOf(a.knownGood),
	}
}

// problemLines lists the problems, bounded for a heartbeat; a.mu is held.
func (a *Agent) problemLines() []string {
	lines := make([]string, 0, len(a.problems))
	for _, key := range slices.Sorted(maps.Keys(a.problems)) {
		lines = append(lines, events.Printable(a.problems[key], 300))
	}
	for _, line := range a.state.Trouble() {
		lines = append(lines, events.Printable(line, 300))
	}
	return lines[:min(len(lines), 20)]
}

func osName() string {
	raw, err := os.ReadFile("/etc/os-release")
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(raw)) {
		if v, ok := strings.CutPrefix(strings.TrimSpace(line), "PRETTY_NAME="); ok {
			return events.Printable(strings.Trim(v, `"'`), 64)
		}
	}
	return ""
}

func kernel() string {
	raw, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		return ""
	}
	return events.Printable(strings.TrimSpace(string(raw)), 64)
}
