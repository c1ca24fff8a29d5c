package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"noxmesh/events"
	"noxmesh/projections"
	"noxmesh/rollout"
	"noxmesh/server"
)

func at(clock string) time.Time {
	v, err := time.ParseInLocation(time.TimeOnly, clock, time.Local)
	if err != nil {
		panic(err)
	}
	return v
}

func reportOf(state projections.State, cohort int, counts map[projections.Outcome]int) *rollout.Status {
	return &rollout.Status{RolloutView: projections.RolloutView{
		ID: "r1", Version: "1.2.0", State: state, Started: time.Now().Add(-5*time.Minute - time.Second), Actor: "operator",
		Cohort: cohort, Batch: 2, Batches: 3, Stage: 2, Declared: 50, Counts: counts,
		Policy: events.Policy{Batches: []string{"2", "10%", "100%"}, Window: events.Duration(10 * time.Minute),
			Soak: events.Duration(time.Minute), Tolerate: events.TolerateAuto},
	}, EventSeq: 70, HeartbeatSeq: 900}
}

func TestReports(t *testing.T) {
	halted := reportOf(projections.Halted, 500, map[projections.Outcome]int{"passed": 46, "rolled-back": 3, "silent": 1, "undeclared": 450})
	halted.Diagnosis, halted.Reason = events.DiagnosisRelease, "3 rolled back, 1 silent of 48 in batch 2: 3 of 50 that were told to run it gave it up or keep restarting, by chance less than 1 in 10,000"
	halted.Spared = 450
	halted.Common = []events.Trait{
		{Attribute: "architecture", Value: "riscv64", Failed: 4, FailedOf: 4, Others: 3, OthersOf: 46, P: 0.00015},
		{Attribute: "site", Value: "fra", Failed: 3, FailedOf: 4, Others: 9, OthersOf: 46, P: 0.021},
		{Attribute: "kernel", Value: "6.1", Failed: 4, FailedOf: 4, Others: 0, OthersOf: 46, P: 1e-9},
	}
	halted.Control = events.Control{Nodes: 448, Silent: 2, Since: at("12:03:10")}
	halted.Nodes = []rollout.NodeStatus{
		{Node: "n001", Batch: 1, Outcome: projections.Passed},
		{Node: "n017", Batch: 2, Outcome: "rolled-back", Detail: "rolled back from 1.2.0 to 1.1.0: version 1.2.0 failed to start 3 times in a row"},
		{Node: "n018", Batch: 2, Outcome: "silent", Detail: "not heard for 11m, 10m of it listening"},
		{Node: "n400", Outcome: projections.Undeclared},
	}
	halted.Next = []string{"nox-mesh log explain r1", "nox-mesh rollout resume r1 --retry"}

	link := reportOf(projections.Paused, 500, map[projections.Outcome]int{"waiting": 20, "undeclared": 480})
	link.Paused = &events.RolloutPaused{Because: events.ByLink, Reason: "not shown twice", Control: events.Control{Nodes: 480, Silent: 240, Since: at("12:03:10")}}
	link.Reason = link.Paused.Reason
	newer := *link
	newer.Waiting = []string{"for the link: 200 of 480 nodes that were told nothing are silent, since 12:03:10. It halts after 1h0m0s", "n1: last heard 5m ago"}
	byHand := *link
	byHand.Paused = &events.RolloutPaused{Because: events.ByOperator, Reason: "lunch"}
	byHand.Waiting = []string{"paused: lunch"}
	link.Next = []string{"nox-mesh rollout resume r1", "nox-mesh something new"}

	done := reportOf(projections.Completed, 12, map[projections.Outcome]int{"passed": 10, "undeclared": 1, "recalled": 1, "decommissioned": 0})
	done.Batch, done.Stage, done.Declared = 4, 3, 10
	done.Policy.Tolerate, done.Policy.MaxFailed, done.Selector = "", 2, "site=ams"

	tailHeld := reportOf(projections.Completed, 12, map[projections.Outcome]int{"passed": 11, "undeclared": 1})
	tailHeld.Held, tailHeld.Declared = "leaks", 11

	reverted := reportOf(projections.Reverted, 12, map[projections.Outcome]int{"given-back": 8, "recalled": 2, "undeclared": 2})
	reverted.Declared, reverted.Spared, reverted.Reason = 10, 4, "loses data"

	for _, c := range []struct {
		name string
		s    *rollout.Status
		want string
	}{
		{"halted", halted, `
rollout r1 of 1.2.0: HALTED
  started   5m ago by operator, batches 2,10%,100%, window 10m0s, soak 1m0s, max-failed auto
  progress  batch 2 of 3, 50 of 500 nodes declared: 46 passed, 3 rolled back, 1 silent, 450
            undeclared
  diagnosis release
  reason    3 rolled back, 1 silent of 48 in batch 2: 3 of 50 that were told to run it gave it up or
            keep restarting, by chance less than 1 in 10,000
  failed    3 rolled back, 1 silent
  in common architecture riscv64: 4 of 4 that failed, 3 of 46 others (p 0.00015)
            site fra: 3 of 4 that failed, 9 of 46 others (p 0.021)
            kernel 6.1: 4 of 4 that failed, 0 of 46 others (p < 0.0001)
  control   of 448 nodes that were told nothing meanwhile 2 fell silent since 12:03:10
  spared    450 nodes never heard of it
  NODE  BATCH  OUTCOME      DETAIL
  n017  2      rolled-back  rolled back from 1.2.0 to 1.1.0: version 1.2.0 failed to start 3 time...
  n018  2      silent       not heard for 11m, 10m of it listening
  next      nox-mesh log explain r1                       read what happened
            nox-mesh rollout resume r1 --retry            the failed try it again
  as of event 70 and heartbeat 900
`},
		{"paused for the link", link, `
rollout r1 of 1.2.0: PAUSED
  started   5m ago by operator, batches 2,10%,100%, window 10m0s, soak 1m0s, max-failed auto
  progress  batch 2 of 3, 50 of 500 nodes declared: 20 waiting, 480 undeclared
  paused    waiting for the link: 240 of 480 nodes that were told nothing fell silent since
            12:03:10; goes on by itself when they are back
  next      nox-mesh rollout resume r1                    go on
            nox-mesh something new
  as of event 70 and heartbeat 900
`},
		{"still paused for the link", &newer, `
rollout r1 of 1.2.0: PAUSED
  started   5m ago by operator, batches 2,10%,100%, window 10m0s, soak 1m0s, max-failed auto
  progress  batch 2 of 3, 50 of 500 nodes declared: 20 waiting, 480 undeclared
  paused    waiting for the link: 200 of 480 nodes that were told nothing are silent, since
            12:03:10. It halts after 1h0m0s
  waiting   n1: last heard 5m ago
  as of event 70 and heartbeat 900
`},
		{"paused by hand", &byHand, `
rollout r1 of 1.2.0: PAUSED
  started   5m ago by operator, batches 2,10%,100%, window 10m0s, soak 1m0s, max-failed auto
  progress  batch 2 of 3, 50 of 500 nodes declared: 20 waiting, 480 undeclared
  paused    by an operator: lunch
  as of event 70 and heartbeat 900
`},
		{"completed with a tail, after a resumed halt", done, `
rollout r1 of 1.2.0: COMPLETED
  started   5m ago by operator, batches 2,10%,100%, window 10m0s, soak 1m0s, max-failed 2
  selected  site=ams
  progress  batch 4, for planned batch 3 of 3, 10 of 12 nodes declared: 10 passed, 1 recalled, 1
            undeclared
  tail      2 nodes were not heard in time; each is told when it is next heard, and watched by
            itself
  as of event 70 and heartbeat 900
`},
		{"completed and held", tailHeld, `
rollout r1 of 1.2.0: COMPLETED
  started   5m ago by operator, batches 2,10%,100%, window 10m0s, soak 1m0s, max-failed auto
  progress  batch 2 of 3, 11 of 12 nodes declared: 11 passed, 1 undeclared
  held      leaks: nobody is declared 1.2.0 until nox-mesh release lift 1.2.0
  tail      1 node was not heard in time; nobody tells them while the release is held
  as of event 70 and heartbeat 900
`},
		{"reverted", reverted, `
rollout r1 of 1.2.0: REVERTED
  started   5m ago by operator, batches 2,10%,100%, window 10m0s, soak 1m0s, max-failed auto
  progress  batch 2 of 3, 10 of 12 nodes declared: 8 given back, 2 recalled, 2 undeclared
  reason    loses data
  spared    4 nodes never heard of it, or had not applied it when it was taken back (2)
  as of event 70 and heartbeat 900
`},
	} {
		var out strings.Builder
		printStatus(&out, c.s)
		if got := out.String(); got != c.want[1:] {
			t.Errorf("%s reads\n%s\nwant\n%s", c.name, got, c.want[1:])
		}
	}
}

// TestLargeReport: of many nodes the ones that failed are shown, and the lines
// fit a screen.
func TestLargeReport(t *testing.T) {
	s := reportOf(projections.Halted, 5000, map[projections.Outcome]int{"passed": 4900, "waiting": 60, "silent": 40})
	s.Declared = 5000
	s.Reason = strings.Repeat("a long reason ", 20)
	for i := range 5000 {
		n := rollout.NodeStatus{Node: fmt.Sprintf("a-name-of-some-length-%04d", i), Batch: 2, Outcome: projections.Passed}
		switch {
		case i < 60:
			n.Outcome, n.Detail = projections.Waiting, strings.Repeat("waits ", 30)
		case i >= 4960:
			n.Outcome, n.Detail = "silent", strings.Repeat("not heard ", 30)
		}
		s.Nodes = append(s.Nodes, n)
	}
	var out strings.Builder
	printStatus(&out, s)
	lines := strings.Split(out.String(), "\n")
	silent := 0
	for _, line := range lines {
		if n := utf8.RuneCountInString(line); n > screen {
			t.Errorf("a line has %d columns: %s", n, line)
		}
		if strings.Contains(line, "  silent") && strings.Contains(line, "a-name") {
			silent++
		}
	}
	if silent != maxRows || !strings.Contains(out.String(), "\n  and 80 more (--json shows all)\n") {
		t.Errorf("%d of %d rows are of silent nodes:\n%s", silent, maxRows, out.String())
	}
}

func TestPlanIsCutSensibly(t *testing.T) {
	p := server.PlanReply{Version: "1.2.0", Cohort: 3000, Batches: 3, Seed: 7, Policy: reportOf(projections.Running, 1, nil).Policy, EventSeq: 5, HeartbeatSeq: 6}
	names := func(n int) (out []string) {
		for i := range n {
			out = append(out, fmt.Sprintf("node-%04d", i))
		}
		return out
	}
	p.Schedule = rollout.Schedule{
		Batches: []rollout.PlannedBatch{{Batch: 1, Target: 2, Nodes: names(2)}, {Batch: 2, Target: 300, Nodes: names(298)}},
		Absent:  names(1),
	}
	var out strings.Builder
	printPlan(&out, p, "nox-mesh rollout start 1.2.0 --seed 7")
	want := `
dry run, nothing is started: 1.2.0 over 3000 nodes in 3 batches
  policy    batches 2,10%,100%, window 10m0s, soak 1m0s, max-failed auto
  BATCH  DECLARED IN ALL  NODES
  1      2                node-0000 node-0001
  2      300              node-0000 node-0001 node-0002 node-0003 node-0004 node-0005 node-0006
                          node-0007 node-0008 node-0009 node-0010 node-0011 node-0012 node-0013
                          node-0014 node-0015 node-0016 node-0017 node-0018 node-0019 node-0020
                          node-0021 node-0022 node-0023 node-0024 node-0025 node-0026 node-0027
                          node-0028 node-0029 node-0030 node-0031 node-0032 node-0033 node-0034
                          and 263 more (--json shows all)
  later     1 batch more, from nodes that are not heard now
  absent    node-0000
            1 node is not heard now: each is told when it is next heard
as of event 5 and heartbeat 6; start exactly this, while the same nodes are heard, with
  nox-mesh rollout start 1.2.0 --seed 7
`
	if out.String() != want[1:] {
		t.Errorf("the plan reads\n%s\nwant\n%s", out.String(), want[1:])
	}
	out.Reset()
	p.Schedule = rollout.Schedule{Absent: names(3000)}
	printPlan(&out, p, "again")
	if text := out.String(); strings.Contains(text, "BATCH") || !strings.Contains(text, "  waiting   too few nodes are heard now for a first batch") ||
		!strings.Contains(text, "3000 nodes are not heard now") {
		t.Errorf("a plan without anybody reads\n%s", text)
	}
}

func TestWrapNames(t *testing.T) {
	for _, c := range []struct {
		names string
		lines int
		want  []string
	}{
		{"", 2, nil},
		{"aaaa", 2, []string{"aaaa"}},
		{"aaaa bbbb cccc", 2, []string{"aaaa bbbb", "cccc"}},
		{"aaaa bbbb cccc dddd", 2, []string{"aaaa bbbb", "cccc dddd"}},
		{"aaaa bbbb cccc dddd e", 2, []string{"aaaa bbbb", "and 3 more (--json shows all)"}},
		{"a-name-of-any-length b", 2, []string{"a-name-of-any-length", "b"}},
	} {
		if got := wrapNames(strings.Fields(c.names), 9, c.lines); !slices.Equal(got, c.want) {
			t.Errorf("%q in %d lines is %q, want %q", c.names, c.lines, got, c.want)
		}
	}
}

func TestShellWord(t *testing.T) {
	for in, want := range map[string]string{
		"1.2.0~rc1":         "'1.2.0~rc1'",
		"2,25%,100%":        "2,25%,100%",
		"site in (ams,fra)": "'site in (ams,fra)'",
		"!laptop":           "'!laptop'",
		"it's":              `'it'\''s'`,
		"":                  "''",
		"é":                 "'é'",
	} {
		if got := shellWord(in); got != want {
			t.Errorf("%q is quoted as %s, want %s", in, got, want)
		}
	}
}
