package nodeagent

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"noxmesh/events"
)

func confirmedReport(id string) events.Report {
	return events.NewReport(id, time.Unix(0, 0), &events.NodeConfirmed{Version: "1.0.0", StartID: id})
}

func TestOutboxKeepsOrderOverARestart(t *testing.T) {
	s := newState(t)
	for i := range 3 { // each with a new process
		o := newOutbox(s, zerolog.Nop())
		for range 2 { // the same one twice
			if err := o.add(events.ReportConfirmed, confirmedReport(fmt.Sprintf("id-%d", 9-i))); err != nil {
				t.Fatal(err)
			}
		}
	}
	names := outboxFiles(s)
	if len(names) != 3 || !strings.Contains(names[0], "id-9") || !strings.Contains(names[2], "id-7") {
		t.Errorf("the outbox holds %v", names)
	}
}

func TestOutboxTakesNoReportThatTheMeshWouldNot(t *testing.T) {
	o := newOutbox(newState(t), zerolog.Nop())
	if err := o.add(events.ReportConfirmed, confirmedReport("")); err == nil {
		t.Error("a report without an id was taken")
	}
	if err := o.add("gossip", confirmedReport("x")); err == nil {
		t.Error("a report of no kind was taken")
	}
}

func TestAFullOutboxDropsTheOldestButNoRollback(t *testing.T) {
	s := newState(t)
	o := newOutbox(s, zerolog.Nop())
	if err := o.add(events.ReportRolledBack, events.NewReport("rb", time.Unix(0, 0), &events.NodeRolledBack{From: "2.0", To: "1.0"})); err != nil {
		t.Fatal(err)
	}
	for i := range maxOutbox + 1 {
		if err := o.add(events.ReportConfirmed, confirmedReport(fmt.Sprintf("id-%d", i))); err != nil {
			t.Fatal(err)
		}
	}
	names := outboxFiles(s)
	if len(names) != maxOutbox || !strings.Contains(names[0], "-rb.") || !strings.Contains(names[1], "-id-2.") {
		t.Errorf("%d reports wait, the first are %v", len(names), names[:2])
	}
}

func TestAckError(t *testing.T) {
	for _, c := range []struct {
		raw      string
		ok, ever bool
	}{
		{`{"stream":"REPORTS","seq":7}`, true, true},
		{`{"stream":"REPORTS","seq":7,"duplicate":true}`, true, true},
		{`{"stream":"OTHER","seq":7}`, false, true},
		{`{"error":{"code":400,"err_code":10054,"description":"message size exceeds maximum allowed"},"stream":"REPORTS","seq":0}`, false, false},
		{`{"error":{"code":503,"err_code":10077,"description":"maximum bytes exceeded"},"stream":"REPORTS","seq":0}`, false, true},
		{`+OK`, false, true},
		{``, false, true},
	} {
		err := ackError([]byte(c.raw))
		if (err == nil) != c.ok || errors.Is(err, errRejected) == c.ever {
			t.Errorf("%s: %v", c.raw, err)
		}
	}
}
