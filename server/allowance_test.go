package server

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"noxmesh/events"
)

func TestAllowance(t *testing.T) {
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	var a allowance
	after := func(d time.Duration, most, n int) (taken int) {
		for range n {
			next, ok := a.take(start.Add(d), most, time.Minute)
			if a = next; ok {
				taken++
			}
		}
		return taken
	}
	for _, tt := range []struct {
		after   time.Duration
		most, n int
		want    int
	}{
		{0, 40, 45, 40},
		{0, 50, 8, 8},                        // rollbacks have a reserve
		{30 * time.Second, 50, 5, 2},         // which ends too
		{59 * time.Second, 50, 5, 0},         //
		{time.Minute, 50, 5, 1},              // one a minute
		{time.Minute, 40, 5, 0},              //
		{10 * time.Minute, 50, 50, 9},        //
		{time.Hour, 40, 50, 40},              // full again, not more
		{-time.Hour, 40, 50, 0},              // the clock was put back
		{-time.Hour + time.Minute, 40, 5, 1}, // and goes on from there
		{1000 * time.Hour, 50, 60, 50},
	} {
		if got := after(tt.after, tt.most, tt.n); got != tt.want {
			t.Errorf("after %s %d of %d reports are within the allowance, want %d", tt.after, got, tt.n, tt.want)
		}
	}
}

// A node that reports without end gets its allowance and a word about it; its
// rollback is recorded all the same, and others do not notice.
func TestFloodOfReports(t *testing.T) {
	w := startServer(t, t.TempDir())
	bad, good := w.node(t, "n1", nil), w.node(t, "n2", nil)
	const flood = 400
	for i := range flood {
		if err := bad.Publish(events.ReportSubject("n1", events.ReportConfirmed), confirmed(t, fmt.Sprint("flood-", i), "1.0.0")); err != nil {
			t.Fatal(err)
		}
		if i%100 == 50 {
			report(t, good, "n2", events.ReportConfirmed, confirmed(t, fmt.Sprint("good-", i), "1.0.0"))
		}
	}
	raw, err := json.Marshal(events.NewReport("rollback", time.Now(), &events.NodeRolledBack{From: "1.0.1", To: "1.0.0", Reason: "3 starts failed"}))
	if err != nil {
		t.Fatal(err)
	}
	report(t, bad, "n1", events.ReportRolledBack, raw)
	report(t, good, "n2", events.ReportConfirmed, confirmed(t, "last", "1.0.0"))
	n2 := w.waitFacts(t, "n2", 6) // enrolled, and each of its own
	if f, ok := n2[5].(*events.NodeConfirmed); !ok || f.ReportID != "last" {
		t.Errorf("the last is %+v", n2[5])
	}
	const want = reportBurst - rollbackReserve
	n1 := w.waitFacts(t, "n1", want+3) // enrolled, the allowance, a word, the rollback
	rejected, ok := n1[want+1].(*events.NodeReportRejected)
	if !ok || !strings.Contains(rejected.Reason, "more than 50 reports") || rejected.Kind != events.ReportConfirmed {
		t.Errorf("the flood ends with %+v", n1[want+1])
	}
	if f, ok := n1[want+2].(*events.NodeRolledBack); !ok || f.ReportID != "rollback" {
		t.Errorf("the rollback is %+v", n1[want+2])
	}
}

func TestBrokerDoesNotDrownTheLog(t *testing.T) {
	var out bytes.Buffer
	log := &brokerLog{log: zerolog.New(&out)}
	for range 10_000 {
		log.Errorf("refused %d", 1)
		log.Noticef("a detail")
	}
	if n := strings.Count(out.String(), "refused 1"); n < lineBurst || n > 2*lineBurst {
		t.Errorf("10,000 refusals are %d lines", n)
	}
	log.lines = allowance{} // as after a while
	log.Warnf("the next")
	if last := out.String()[strings.LastIndex(out.String(), "{"):]; !strings.Contains(last, "the next") || !strings.Contains(last, `"left_out_before":99`) {
		t.Errorf("the line after them is %s", last)
	}
}
