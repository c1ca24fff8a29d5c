package server

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"noxmesh/events"
	"noxmesh/events/eventstest"
)

// report sends a report and waits for the broker to have it.
func report(t *testing.T, nc *nats.Conn, node, kind string, raw []byte) {
	t.Helper()
	if _, err := nc.RequestWithContext(testContext(t), events.ReportSubject(node, kind), raw); err != nil {
		t.Fatal(err)
	}
}

func confirmed(t *testing.T, id, version string) []byte {
	t.Helper()
	raw, err := json.Marshal(events.NewReport(id, time.Unix(0, 0), &events.NodeConfirmed{Version: version, StartID: "s"}))
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// nodeEvents gives the types and summaries of the events about a node.
func (w *whole) nodeEvents(t *testing.T, name string) []events.Fact {
	t.Helper()
	var out []events.Fact
	err := w.client.ReadLog(testContext(t), LogRequest{Node: name}, false, func(rec events.Record) error {
		fact, err := rec.Event.Fact()
		switch fact.(type) {
		case *events.Declared, *events.NodeInvited:
		default:
			out = append(out, fact)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func (w *whole) waitFacts(t *testing.T, name string, n int) []events.Fact {
	t.Helper()
	var facts []events.Fact
	w.until(t, fmt.Sprintf("%d events about %s", n, name), func() (bool, string) {
		facts = w.nodeEvents(t, name)
		return len(facts) >= n, fmt.Sprint(facts)
	})
	if len(facts) != n {
		t.Fatalf("%d events about %s, want %d: %v", len(facts), name, n, facts)
	}
	return facts
}

func TestReportBecomesOneEvent(t *testing.T) {
	dir := t.TempDir()
	w := startServer(t, dir)
	nc := w.node(t, "n1", nil)
	report(t, nc, "n1", events.ReportConfirmed, confirmed(t, "a", "1.0.0"))
	report(t, nc, "n1", events.ReportConfirmed, confirmed(t, "a", "1.0.0")) // sent again: its answer was lost
	report(t, nc, "n1", events.ReportConfirmed, confirmed(t, "b", "1.1.0"))
	invited, enrolled := eventstest.Type[*events.NodeInvited](), eventstest.Type[*events.NodeEnrolled]()
	if err := eventstest.ExpectExactly(w.about(t, "n1"), invited, enrolled, isReport("a", "1.0.0", 1), isReport("b", "1.1.0", 3)); err != nil {
		t.Error(err)
	}
	// After a restart nothing is recorded again, and a repeat is still known.
	w.stop(t)
	w = startServer(t, dir)
	nc = w.node(t, "n1", nil)
	report(t, nc, "n1", events.ReportConfirmed, confirmed(t, "b", "1.1.0"))
	report(t, nc, "n1", events.ReportConfirmed, confirmed(t, "c", "1.2.0"))
	if err := eventstest.ExpectExactly(w.about(t, "n1"), invited, enrolled, isReport("a", "1.0.0", 1), isReport("b", "1.1.0", 3),
		invited, enrolled, isReport("c", "1.2.0", 5)); err != nil {
		t.Error(err)
	}
}

// about watches the events about a node, from the first on.
func (w *whole) about(t *testing.T, node string) *eventstest.Watcher {
	t.Helper()
	return eventstest.NewWatcher(t, w.api.log, events.ReadOptions{Subjects: []string{events.EventSubject(events.AggregateNode, node)}})
}

// isReport is what a report that a version was confirmed becomes.
func isReport(id, version string, seq uint64) eventstest.Filter {
	return eventstest.Match(func(f *events.NodeConfirmed) error {
		if f.ReportID != id || f.Version != version || f.ReportSeq != seq {
			return fmt.Errorf("it is of %s, the report %s at %d; want %s, %s at %d", f.Version, f.ReportID, f.ReportSeq, version, id, seq)
		}
		return nil
	})
}

func TestBadReportsAreRejectedOnceAndHarmNobody(t *testing.T) {
	w := startServer(t, t.TempDir())
	nc, other := w.node(t, "n1", nil), w.node(t, "n2", nil)
	for _, bad := range []struct{ kind, payload string }{
		{events.ReportConfirmed, "\x00\xff garbage"},
		{events.ReportConfirmed, `{"id":"x"}`},
		{events.ReportConfirmed, `{"id":"x","data":{"version":"* \u001b[2J","start_id":"s"}}`},
		{events.ReportRolledBack, `{"id":"x","data":[]}`},
		{events.ReportConfirmed, `{"id":"` + strings.Repeat("x", 100) + `","data":{}}`},
	} {
		report(t, nc, "n1", bad.kind, []byte(bad.payload))
	}
	report(t, nc, "n1", events.ReportConfirmed, confirmed(t, "good", "1.0.0"))
	report(t, other, "n2", events.ReportConfirmed, confirmed(t, "good", "1.0.0"))
	rejected := eventstest.Match(func(f *events.NodeReportRejected) error {
		if !strings.Contains(f.Reason, "does not read") || f.ReportSeq != 1 {
			return fmt.Errorf("report %d is rejected since it %s", f.ReportSeq, f.Reason)
		}
		return nil
	})
	invited, enrolled := eventstest.Type[*events.NodeInvited](), eventstest.Type[*events.NodeEnrolled]()
	if err := eventstest.ExpectExactly(w.about(t, "n1"), invited, enrolled, rejected /* for all the bad ones */, isReport("good", "1.0.0", 6)); err != nil {
		t.Error(err)
	}
	w.waitFacts(t, "n2", 2)

	// A bad heartbeat is counted against its node, and the next good one counts.
	if err := nc.Publish(events.HeartbeatSubject("n1"), []byte(`{"version":"nonsense"}`)); err != nil {
		t.Fatal(err)
	}
	w.beat(t, nc, "n1", "1.0.0")
	f, err := w.client.Fleet(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	if p := fmt.Sprint(f.Nodes[0].Problems); !strings.Contains(p, "1 of its heartbeats did not read") || !strings.Contains(p, "report was rejected") {
		t.Errorf("the fleet shows these problems: %s", p)
	}
}
