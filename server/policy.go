package server

import (
	"fmt"
	"strconv"
	"strings"

	"noxmesh/events"
	"noxmesh/rollout"
)

// ParseMaxFailed reads what a batch after the canaries may have in failures: a
// number of nodes, a percentage of the batch like "5%", or "auto", which is
// what empty text means too. The results are the policy's Tolerate and
// MaxFailed.
func ParseMaxFailed(s string) (tolerate string, most int, err error) {
	s = strings.TrimSpace(s)
	if s == "" || s == events.TolerateAuto {
		return events.TolerateAuto, 0, nil
	}
	number, percent := strings.CutSuffix(s, "%")
	v, err := strconv.Atoi(number)
	switch {
	case err != nil:
		return "", 0, fmt.Errorf("max-failed %q is neither a number of nodes, a percentage of the batch like 5%%, nor auto", s)
	case v < 0:
		return "", 0, fmt.Errorf("max-failed %q is negative: with 0 any failure halts", s)
	case percent && v > 100:
		return "", 0, fmt.Errorf("max-failed %q is more than the whole batch", s)
	case percent:
		return strconv.Itoa(v) + "%", 0, nil
	}
	return "", v, nil
}

// policyOf fills what the operator left open.
func policyOf(q StartRequest) (events.Policy, error) {
	p, d := q.Policy, rollout.DefaultPolicy()
	if len(p.Batches) == 0 {
		p.Batches = d.Batches
	}
	if p.Window == 0 {
		p.Window = d.Window
	}
	if p.Soak == 0 {
		// A short window asks for a short soak.
		p.Soak = min(d.Soak, p.Window/2)
	}
	if p.Presence == 0 {
		p.Presence = d.Presence
	}
	if q.MaxFailed != "" || p.Tolerate == "" && p.MaxFailed == 0 {
		var err error
		if p.Tolerate, p.MaxFailed, err = ParseMaxFailed(q.MaxFailed); err != nil {
			return p, err
		}
	}
	return p, nil
}
