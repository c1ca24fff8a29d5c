package server

import (
	"time"

	"noxmesh/events"
)

// A node reports a handful of facts for each version that it is given, and one
// for each resource that does not apply. One that sends more has gone wrong, or
// means harm: each report is an event in a log that cannot be purged.
const (
	// reportBurst is for the node that comes back after long with a full outbox,
	// or is declared many resources that do not apply.
	reportBurst = 50
	// reportEvery gives the reports after that; 1,440 a day is far more than a
	// node has to say, and little in a log that is kept for years.
	reportEvery = time.Minute
	// rollbackReserve of the burst are for rollbacks alone: rollouts stop on
	// them, and the host that restarts all the time, and says so each time, is the
	// one that is about to be rolled back.
	rollbackReserve = 10
)

// allowance is how much of something is allowed: so many at once, and one in a
// while after that. The zero value is full.
type allowance struct {
	used float64 // as of at
	at   time.Time
}

// take is the allowance after one more at a time, and whether that is within it.
// A clock that goes backwards gives nothing, and counts from there.
func (a allowance) take(at time.Time, most int, every time.Duration) (allowance, bool) {
	if since := at.Sub(a.at); since > 0 {
		a.used = max(0, a.used-float64(since)/float64(every))
	}
	a.at = at
	if a.used+1 > float64(most) {
		return a, false
	}
	a.used++
	return a, true
}

// allow says whether a node's report is within its allowance, and takes it from
// that. It is asked for enrolled nodes only, which bounds what it keeps.
func (in *intake) allow(node, kind string, at time.Time) bool {
	most := reportBurst
	if kind != events.ReportRolledBack {
		most -= rollbackReserve
	}
	if in.allowances == nil {
		in.allowances = map[string]allowance{}
	}
	a, ok := in.allowances[node].take(at, most, reportEvery)
	in.allowances[node] = a
	return ok
}
