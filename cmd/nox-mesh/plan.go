package main

import (
	"fmt"
	"io"
	"strings"

	"noxmesh/events"
	"noxmesh/rollout"
	"noxmesh/server"
)

const (
	screen   = 100 // columns that reports keep to
	maxLines = 6   // of names for one batch
)

// printPlan says what a rollout would do now; again is the command that does it.
func printPlan(out io.Writer, p server.PlanReply, again string) {
	fmt.Fprintf(out, "dry run, nothing is started: %s over %s in %s\n", p.Version, plural(p.Cohort, "node"), pluralOf(p.Batches, "batch", "batches"))
	field(out, "policy", policyText(p.Policy))
	printBatches(out, p.Schedule.Batches)
	if n := len(p.Schedule.Batches); n == 0 {
		field(out, "waiting", "too few nodes are heard now for a first batch; the rollout would wait for them")
	} else if n < p.Batches {
		field(out, "later", fmt.Sprintf("%s more, from nodes that are not heard now", pluralOf(p.Batches-n, "batch", "batches")))
	}
	if n := len(p.Schedule.Absent); n > 0 {
		label := "absent"
		for _, line := range wrapNames(p.Schedule.Absent, screen-labelWidth, maxLines) {
			fmt.Fprintf(out, "  %-10s%s\n", label, line)
			label = ""
		}
		fmt.Fprintf(out, "  %-10s%s not heard now: each is told when it is next heard\n", "", pluralOf(n, "node is", "nodes are"))
	}
	fmt.Fprintf(out, "as of event %d and heartbeat %d; start exactly this, while the same nodes are heard, with\n  %s\n", p.EventSeq, p.HeartbeatSeq, again)
}

func printBatches(out io.Writer, batches []rollout.PlannedBatch) {
	if len(batches) == 0 {
		return
	}
	const indent = 2 + len("BATCH") + 2 + len("DECLARED IN ALL") + 2
	t := newTable(out, "  BATCH", "DECLARED IN ALL", "NODES")
	for _, b := range batches {
		number, target := fmt.Sprintf("  %d", b.Batch), fmt.Sprint(b.Target)
		for _, line := range wrapNames(b.Nodes, screen-indent, maxLines) {
			t.row(number, target, line)
			number, target = "", ""
		}
	}
	t.end()
}

func policyText(p events.Policy) string {
	return fmt.Sprintf("batches %s, window %s, soak %s, max-failed %s", strings.Join(p.Batches, ","), p.Window, p.Soak, toleranceText(p))
}

func toleranceText(p events.Policy) string {
	if p.Tolerate != "" {
		return p.Tolerate
	}
	return fmt.Sprint(p.MaxFailed)
}

// wrapNames puts names into lines of a width. What does not fit is counted in
// the last line.
func wrapNames(names []string, width, lines int) []string {
	var out []string
	line := ""
	for i, name := range names {
		switch {
		case line == "":
			line = name
		case len(line)+1+len(name) <= width:
			line += " " + name
		case len(out) == lines-1:
			return append(out, fmt.Sprintf("and %d more (--json shows all)", len(names)-shown(out)))
		default:
			out, line = append(out, line), name
		}
		if i == len(names)-1 {
			out = append(out, line)
		}
	}
	return out
}

// shown counts the names in lines.
func shown(lines []string) int {
	n := 0
	for _, l := range lines {
		n += len(strings.Fields(l))
	}
	return n
}
