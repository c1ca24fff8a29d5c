package main

import (
	"fmt"
	"io"
	"strings"
	"time"

	"noxmesh/projections"
	"noxmesh/server"
)

func printFleet(out io.Writer, f server.Fleet) {
	if len(f.Nodes) == 0 {
		if f.Past != nil {
			fmt.Fprintln(out, "there was no node")
			printPast(out, f.Past)
			return
		}
		fmt.Fprintln(out, "no node yet: invite one with nox-mesh node invite NAME")
		return
	}
	now := momentOf(f.Past)
	t := newTable(out, "NODE", "LABELS", "DECLARED", "RUNNING", "KNOWN GOOD", "LAST HEARD", "NOTE")
	for _, n := range f.Nodes {
		t.row(n.Node, labelText(n.Labels), dash(n.Declared), dash(n.Running), dash(n.KnownGood), agoFrom(n.LastHeard, now), note(n))
	}
	t.end()
	if f.Past != nil {
		fmt.Fprintf(out, "%s; LAST HEARD is counted from then\n", plural(len(f.Nodes), "node"))
		printPast(out, f.Past)
		return
	}
	fmt.Fprintf(out, "%s, as of event %d and heartbeat %d\n", plural(len(f.Nodes), "node"), f.EventSeq, f.HeartbeatSeq)
}

// printNode is one node in full detail.
func printNode(out io.Writer, f server.Fleet) {
	n, now := f.Nodes[0], momentOf(f.Past)
	fmt.Fprintln(out, "node "+n.Node)
	field(out, "labels", labelText(n.Labels))
	field(out, "declared", fmt.Sprintf("%s, revision %d", orNothing(n.Declared, "no version"), n.Revision))
	running := orNothing(n.Running, "unknown")
	if n.Architecture != "" {
		running += " on " + n.Architecture
	}
	field(out, "running", fmt.Sprintf("%s, revision %d applied", running, n.Applied))
	good := orNothing(n.KnownGood, "none")
	switch {
	case n.NoWayBack != "":
		good += "; it could not roll back: " + n.NoWayBack
	case n.Retained:
		good += ", retained: it could roll back"
	}
	field(out, "good", "known good "+good)
	field(out, "heard", heardText(n, now))
	if n.Waiting != "" {
		field(out, "waiting", n.Waiting)
	}
	if n.Refused != "" {
		field(out, "refused", n.Refused)
	}
	if rb := n.RolledBack; rb != nil {
		field(out, "rollback", strings.TrimSuffix(fmt.Sprintf("%s, from %s to %s: %s", minute(rb.At), rb.From, rb.To, rb.Reason), ": "))
	}
	label := "problems"
	for _, p := range n.Problems {
		field(out, label, p)
		label = ""
	}
	field(out, "away", awayText(n.Away, now))
	if f.Past != nil {
		printPast(out, f.Past)
		return
	}
	fmt.Fprintf(out, "  as of event %d and heartbeat %d\n", f.EventSeq, f.HeartbeatSeq)
}

func orNothing(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}

func minute(t time.Time) string { return t.Local().Format("2006-01-02 15:04") }

func heardText(n projections.NodeView, now time.Time) string {
	if n.LastHeard == nil {
		return "never"
	}
	text := agoFrom(n.LastHeard, now)
	if now.Sub(*n.LastHeard) > projections.Gap {
		return fmt.Sprintf("%s, at %s: not since then", text, minute(*n.LastHeard))
	}
	if n.HeardSince != nil {
		text += ", without a gap since " + minute(*n.HeardSince)
	}
	return text
}

// awayDays is the time that absences are summed up over.
const awayDays = 30

// awayText sums up the absences on record of the last days.
func awayText(list []projections.AwayView, now time.Time) string {
	begin := now.Add(-awayDays * 24 * time.Hour)
	count, sum := 0, time.Duration(0)
	var longest projections.AwayView
	for _, a := range list {
		if !a[1].After(begin) {
			continue
		}
		count++
		if from := a[0]; from.Before(begin) {
			sum += a[1].Sub(begin)
		} else {
			sum += a[1].Sub(from)
		}
		if a[1].Sub(a[0]) > longest[1].Sub(longest[0]) {
			longest = a
		}
	}
	if count == 0 {
		return fmt.Sprintf("not once on record in the last %d days", awayDays)
	}
	return fmt.Sprintf("%s in the last %d days, %s in all; longest %s to %s", timesText(count), awayDays, hours(sum), minute(longest[0]), minute(longest[1]))
}

func timesText(n int) string {
	if n == 1 {
		return "once"
	}
	return fmt.Sprintf("%d times", n)
}

func hours(d time.Duration) string {
	if d < 2*time.Hour {
		return plural(int(d.Round(time.Minute)/time.Minute), "minute")
	}
	return plural(int(d.Round(time.Hour)/time.Hour), "hour")
}
