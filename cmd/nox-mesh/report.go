package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"noxmesh/events"
	"noxmesh/projections"
	"noxmesh/rollout"
)

// outcomes in the order in which people want to read them.
var outcomes = []projections.Outcome{
	projections.Passed, projections.Outcome(events.RolledBack), projections.Outcome(events.Unstable),
	projections.Outcome(events.NotApplied), projections.Outcome(events.Silent), projections.Waiting,
	projections.GivenBack, projections.Recalled, projections.Undeclared, projections.Decommissioned,
}

// countText words how many nodes have each of some outcomes.
func countText(counts map[projections.Outcome]int, which func(projections.Outcome) bool) string {
	var parts []string
	for _, o := range outcomes {
		if n := counts[o]; n > 0 && (which == nil || which(o)) {
			parts = append(parts, fmt.Sprintf("%d %s", n, outcomeText(o)))
		}
	}
	return strings.Join(parts, ", ")
}

func outcomeText(o projections.Outcome) string { return strings.ReplaceAll(string(o), "-", " ") }

// labelWidth is the width of the labels in a report, with what is before them.
const labelWidth = 12

// field prints one labelled text of a report. Long texts go on below.
func field(out io.Writer, label, text string) {
	for _, line := range wrapWords(text, screen-labelWidth) {
		fmt.Fprintf(out, "  %-10s%s\n", label, line)
		label = ""
	}
}

// wrapWords breaks a text into lines of a width.
func wrapWords(text string, width int) []string {
	var out []string
	line := ""
	for word := range strings.FieldsSeq(text) {
		switch {
		case line == "":
			line = word
		case utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) <= width:
			line += " " + word
		default:
			out, line = append(out, line), word
		}
	}
	return append(out, line)
}

// printStatus is the report of a rollout: what, how far, why, what to do next.
func printStatus(out io.Writer, s *rollout.Status) { printStatusFrom(out, s, time.Now()) }

// printStatusFrom is [printStatus] of a moment.
func printStatusFrom(out io.Writer, s *rollout.Status, now time.Time) {
	fmt.Fprintf(out, "rollout %s of %s: %s\n", s.ID, s.Version, strings.ToUpper(string(s.State)))
	field(out, "started", fmt.Sprintf("%s by %s, %s", agoFrom(&s.Started, now), s.Actor, policyText(s.Policy)))
	if s.Selector != "" {
		field(out, "selected", s.Selector)
	}
	field(out, "progress", fmt.Sprintf("%s, %d of %s declared: %s", batchText(s), s.Declared, plural(s.Cohort, "node"), countText(s.Counts, nil)))
	pause, waiting := pausedText(s)
	if pause != "" {
		field(out, "paused", pause)
	}
	if s.Held != "" {
		field(out, "held", fmt.Sprintf("%s: nobody is declared %s until nox-mesh release lift %s", s.Held, s.Version, s.Version))
	}
	if s.Diagnosis != "" {
		field(out, "diagnosis", string(s.Diagnosis))
	}
	if s.Reason != "" && s.Paused == nil {
		field(out, "reason", s.Reason)
	}
	if text := countText(s.Counts, projections.Outcome.Failed); text != "" {
		field(out, "failed", text)
	}
	label := "in common"
	for _, t := range s.Common {
		field(out, label, traitText(t))
		label = ""
	}
	if c := s.Control; c.Nodes > 0 {
		field(out, "control", controlText(c))
	}
	if text := sparedText(s); text != "" {
		field(out, "spared", text)
	}
	if text := tailText(s); text != "" {
		field(out, "tail", text)
	}
	for i, w := range waiting {
		if i == 5 {
			field(out, "", fmt.Sprintf("and %d more", len(waiting)-i))
			break
		}
		field(out, "waiting", w)
	}
	printNodes(out, s)
	label = "next"
	for _, command := range s.Next {
		line := command
		if means := meaning(command); means != "" {
			line = fmt.Sprintf("%-44s  %s", command, means)
		}
		fmt.Fprintf(out, "  %-10s%s\n", label, line)
		label = ""
	}
	fmt.Fprintf(out, "  as of event %d and heartbeat %d\n", s.EventSeq, s.HeartbeatSeq)
}

// batchText says how far the batches are. A resumed rollout opens another batch
// for the same place in its plan.
func batchText(s *rollout.Status) string {
	if s.Stage == s.Batch {
		return fmt.Sprintf("batch %d of %d", s.Batch, s.Batches)
	}
	return fmt.Sprintf("batch %d, for planned batch %d of %d", s.Batch, s.Stage, s.Batches)
}

func pauseText(p *events.RolloutPaused) string {
	if p.Because == events.ByLink {
		return fmt.Sprintf("waiting for the link: %d of %s that were told nothing fell silent since %s; goes on by itself when they are back",
			p.Control.Silent, plural(p.Control.Nodes, "node"), p.Control.Since.Local().Format(time.TimeOnly))
	}
	if p.Reason == "" {
		return "by an operator"
	}
	return "by an operator: " + p.Reason
}

// pausedText words why a rollout is paused, and gives what it waits for besides
// that. The stager's own word for the link has the newest numbers.
func pausedText(s *rollout.Status) (pause string, waiting []string) {
	if s.Paused == nil {
		return "", s.Waiting
	}
	pause, waiting = pauseText(s.Paused), s.Waiting
	if len(waiting) > 0 {
		switch first := waiting[0]; {
		case strings.HasPrefix(first, "for the link: "):
			return "waiting " + first, waiting[1:]
		case strings.HasPrefix(first, "paused: "):
			return pause, waiting[1:]
		}
	}
	return pause, waiting
}

func traitText(t events.Trait) string {
	return fmt.Sprintf("%s %s: %d of %d that failed, %d of %d others (%s)",
		t.Attribute, t.Value, t.Failed, t.FailedOf, t.Others, t.OthersOf, probability(t.P))
}

func probability(p float64) string {
	if p < 0.0001 {
		return "p < 0.0001"
	}
	return fmt.Sprintf("p %.2g", p)
}

func controlText(c events.Control) string {
	text := fmt.Sprintf("of %s that were told nothing meanwhile %d fell silent", plural(c.Nodes, "node"), c.Silent)
	if c.Silent > 0 && !c.Since.IsZero() {
		text += " since " + c.Since.Local().Format(time.TimeOnly)
	}
	return text
}

// sparedText counts whom a rollout that stopped did not reach.
func sparedText(s *rollout.Status) string {
	switch s.State {
	case projections.Halted, projections.Aborted, projections.Reverted:
		taken := s.Counts[projections.Recalled]
		switch {
		case s.Spared == 0:
			return ""
		case taken == 0:
			return plural(s.Spared, "node") + " never heard of it"
		default:
			return fmt.Sprintf("%s never heard of it, or had not applied it when it was taken back (%d)", plural(s.Spared, "node"), taken)
		}
	}
	return ""
}

// tailText counts whom a completed rollout has still to tell.
func tailText(s *rollout.Status) string {
	n := s.Counts[projections.Undeclared] + s.Counts[projections.Recalled]
	switch {
	case s.State != projections.Completed || n == 0:
		return ""
	case s.Held != "":
		return pluralOf(n, "node was", "nodes were") + " not heard in time; nobody tells them while the release is held"
	}
	return pluralOf(n, "node was", "nodes were") + " not heard in time; each is told when it is next heard, and watched by itself"
}

// meaning says what a command to go on with does, as far as this program knows
// it.
func meaning(command string) string {
	for _, m := range []struct{ part, text string }{
		{"--retry", "the failed try it again"},
		{"--leave-out", "the failed keep what they run"},
		{"rollout resume", "go on"},
		{"rollout pause", "open no further batch"},
		{"rollout abort", "end it, nodes keep what they run"},
		{"rollout revert", "end it, nodes get back what they had"},
		{"rollout watch", "follow it"},
		{"release lift", "let it be declared again"},
		{"release hold", "nobody is declared it any more"},
		{"log", "read what happened"},
	} {
		if strings.Contains(command, m.part) {
			return m.text
		}
	}
	return ""
}

const maxRows = 20 // of nodes in a report

// printNodes is the table of the nodes that were declared the version: all of
// them if they are few, else those that did not pass.
func printNodes(out io.Writer, s *rollout.Status) {
	var rows []rollout.NodeStatus
	for _, n := range s.Nodes {
		if n.Batch > 0 && (n.Outcome != projections.Passed || s.Declared <= maxRows) {
			rows = append(rows, n)
		}
	}
	if len(rows) == 0 {
		return
	}
	cutOff := max(len(rows)-maxRows, 0)
	if cutOff > 0 {
		// What failed must not be among the rows that are cut off.
		slices.SortStableFunc(rows, func(a, b rollout.NodeStatus) int { return rank(a.Outcome) - rank(b.Outcome) })
		rows = rows[:maxRows]
	}
	name, outcome := len("NODE"), len("OUTCOME")
	for _, n := range rows {
		name, outcome = max(name, len(n.Node)), max(outcome, len(n.Outcome))
	}
	const gaps = 2 + 2 + len("BATCH") + 2 + 2
	detail := max(screen-name-outcome-gaps, 20)
	t := newTable(out, "  NODE", "BATCH", "OUTCOME", "DETAIL")
	for _, n := range rows {
		t.row("  "+n.Node, n.Batch, n.Outcome, dash(cut(n.Detail, detail)))
	}
	t.end()
	if cutOff > 0 {
		fmt.Fprintf(out, "  and %d more (--json shows all)\n", cutOff)
	}
}

// rank orders rows of a report that is cut off: failures come first.
func rank(o projections.Outcome) int {
	if o.Failed() {
		return -1
	}
	return slices.Index(outcomes, o)
}
