package main

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"noxmesh/projections"
	"noxmesh/server"
)

// TestAwayText: what is on record of the last thirty days, in words.
func TestAwayText(t *testing.T) {
	now := time.Date(2026, 11, 29, 12, 0, 0, 0, time.Local)
	at := func(days, hours float64) time.Time {
		return now.Add(-time.Duration((days*24 - hours) * float64(time.Hour)))
	}
	for _, tt := range []struct {
		name string
		list []projections.AwayView
		want string
	}{
		{"never", nil, "not once on record in the last 30 days"},
		{"long ago", []projections.AwayView{{at(40, 0), at(31, 0)}}, "not once on record in the last 30 days"},
		{"once", []projections.AwayView{{at(2, 0), at(2, 0.5)}}, "once in the last 30 days, 30 minutes in all; longest 2026-11-27 12:00 to 2026-11-27 12:30"},
		{"often", []projections.AwayView{{at(20, 0), at(20, 10)}, {at(10, 0), at(9, 1)}, {at(1, 0), at(1, 2)}},
			"3 times in the last 30 days, 37 hours in all; longest 2026-11-19 12:00 to 2026-11-20 13:00"},
		{"since before", []projections.AwayView{{at(33, 0), at(29, 0)}}, "once in the last 30 days, 24 hours in all; longest " + minute(at(33, 0)) + " to " + minute(at(29, 0))},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := awayText(tt.list, now); got != tt.want {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
		})
	}
}

// TestNodeThatIsAway: the report says since when it is not heard.
func TestNodeThatIsAway(t *testing.T) {
	last, since := time.Now().Add(-3*time.Hour), time.Now().Add(-30*time.Hour)
	n := projections.NodeView{Node: "ams-01", Declared: "1.1.0", Revision: 2, Running: "1.0.0", LastHeard: &last, HeardSince: &since,
		Problems: []string{"disk full", "clock is off"}, Waiting: "not heard since it was declared"}
	var out bytes.Buffer
	printNode(&out, server.Fleet{Nodes: []projections.NodeView{n}, EventSeq: 7, HeartbeatSeq: 9})
	for _, want := range []string{"node ams-01\n", "  heard     3h ago, at " + minute(last) + ": not since then\n", "  problems  disk full\n            clock is off\n",
		"  waiting   not heard since it was declared\n", "  as of event 7 and heartbeat 9\n"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is missing in\n%s", want, out.String())
		}
	}
}
