package server

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"

	"noxmesh/events"
	"noxmesh/events/eventstest"
	"noxmesh/projections"
	"noxmesh/rollout"
)

// twice gives a command two times under one id, as a client does that had no
// answer, and gives both answers.
func (w *whole) twice(t *testing.T, command string, q any) [2]reply {
	t.Helper()
	msg := nats.NewMsg(events.APISubject(FirstOperator, command))
	msg.Header.Set(headerCommand, "twice-"+t.Name()+command)
	var err error
	if msg.Data, err = json.Marshal(q); err != nil {
		t.Fatal(err)
	}
	var out [2]reply
	for i := range out {
		m, err := w.client.nc.RequestMsgWithContext(testContext(t), msg)
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(m.Data, &out[i]); err != nil {
			t.Fatal(err)
		}
		if out[i].Error != "" {
			t.Fatalf("%s, time %d, is answered with: %s", command, i+1, out[i].Error)
		}
	}
	return out
}

// count says how many events of one type are in the log.
func (w *whole) count(t *testing.T, typ string) int {
	t.Helper()
	n := 0
	err := w.client.ReadLog(testContext(t), LogRequest{}, false, func(rec events.Record) error {
		if rec.Event.Type == typ {
			n++
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func (w *whole) once(t *testing.T, fact events.Fact, want int) {
	t.Helper()
	if n := w.count(t, fact.EventType()); n != want {
		t.Errorf("%s is in the log %d times, want %d", fact.EventType(), n, want)
	}
}

func refused(t *testing.T, what string, err error, want string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%s is answered with %v, want a refusal with %q", what, err, want)
	}
}

// rollsBack has a node say that it gave a version up.
func rollsBack(t *testing.T, nc *nats.Conn, node, version string) {
	t.Helper()
	raw, err := json.Marshal(events.NewReport(uuid.NewString(), time.Now(),
		&events.NodeRolledBack{From: version, To: "1.0.0", Reason: "3 starts failed", Restarts: 3}))
	if err != nil {
		t.Fatal(err)
	}
	report(t, nc, node, events.ReportRolledBack, raw)
}

func (w *whole) status(t *testing.T, id string) *rollout.Status {
	t.Helper()
	s, err := w.client.Rollout(testContext(t), id)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func (w *whole) inState(t *testing.T, id string, state projections.State) *rollout.Status {
	t.Helper()
	var s *rollout.Status
	w.until(t, id+" is "+string(state), func() (bool, string) {
		s = w.status(t, id)
		return s.State == state, fmt.Sprintf("%s: %s", s.State, s.Reason)
	})
	return s
}

// fleetOf enrols nodes that are heard on 1.0.0 and adds a release.
func (w *whole) fleetOf(t *testing.T, names ...string) map[string]*nats.Conn {
	t.Helper()
	out := map[string]*nats.Conn{}
	for _, name := range names {
		out[name] = w.node(t, name, nil)
		w.beat(t, out[name], name, "1.0.0")
	}
	if _, err := w.addFor(t, "1.0.0", "amd64", false); err != nil {
		t.Fatal(err)
	}
	if _, err := w.addFor(t, "1.1.0", "amd64", false); err != nil {
		t.Fatal(err)
	}
	return out
}

var twoByOne = events.Policy{Batches: []string{"1", "100%"}}

func TestPauseAndResume(t *testing.T) {
	w := startServer(t, t.TempDir())
	ctx := testContext(t)
	w.fleetOf(t, "n1", "n2")
	pause := func(id string) error { _, err := w.client.PauseRollout(ctx, id, ""); return err }
	resume := func(id string, mode events.ResumeMode) error {
		_, err := w.client.ResumeRollout(ctx, id, mode, "")
		return err
	}
	refused(t, "pausing nothing", pause("latest"), "there is no rollout yet")
	if _, err := w.client.StartRollout(ctx, StartRequest{Version: "1.1.0", Policy: twoByOne}); err != nil {
		t.Fatal(err)
	}
	refused(t, "pausing another one", pause("r9"), `there is no rollout "r9": nox-mesh rollout ls shows all`)
	refused(t, "resuming a running one", resume("r1", ""), "r1 is running: there is nothing to resume")

	for i, r := range w.twice(t, cmdRolloutPause, RolloutRequest{ID: "latest", Reason: "lunch\x1b[2J"}) {
		var s rollout.Status
		if err := json.Unmarshal(r.Result, &s); err != nil {
			t.Fatal(err)
		}
		if s.ID != "r1" || s.State != projections.Paused || s.Paused == nil || s.Paused.Because != events.ByOperator || s.Paused.Reason != "lunch?[2J" {
			t.Errorf("answer %d to a pause is %s %s %+v", i+1, s.ID, s.State, s.Paused)
		}
	}
	w.once(t, &events.RolloutPaused{}, 1)
	refused(t, "pausing a paused one", pause("r1"), "r1 is paused already: go on with nox-mesh rollout resume r1")
	refused(t, "retrying after a pause", resume("r1", events.ResumeRetry), "paused, not halted")
	refused(t, "a mode that there is not", resume("r1", "later"), "paused, not halted")

	w.twice(t, cmdRolloutResume, RolloutRequest{ID: "r1"})
	w.once(t, &events.RolloutResumed{}, 1)
	if s := w.status(t, "r1"); s.State != projections.Running || s.Paused != nil {
		t.Errorf("the resumed rollout is %s, paused by %+v", s.State, s.Paused)
	}
}

func TestHaltedRolloutIsResumed(t *testing.T) {
	w := startServer(t, t.TempDir())
	ctx := testContext(t)
	conns := w.fleetOf(t, "n1", "n2", "n3")
	s, err := w.client.StartRollout(ctx, StartRequest{Version: "1.1.0", Policy: twoByOne})
	if err != nil {
		t.Fatal(err)
	}
	id := s.ID
	canary := w.batch(t, id, 1).Nodes[0]
	rollsBack(t, conns[canary], canary, "1.1.0")
	halted := w.inState(t, id, projections.Halted)
	if !slices.Contains(halted.Next, "nox-mesh rollout resume r1 --retry") || halted.Spared != 2 {
		t.Errorf("the halt spared %d nodes and says to go on with %q", halted.Spared, halted.Next)
	}
	resume := func(mode events.ResumeMode) error {
		_, err := w.client.ResumeRollout(ctx, id, mode, "")
		return err
	}
	_, err = w.client.PauseRollout(ctx, id, "")
	refused(t, "pausing a halted one", err, "r1 is halted")
	refused(t, "resuming without a mode", resume(""), "say what becomes of the failed nodes")
	refused(t, "a mode that there is not", resume("later"), "say what becomes of the failed nodes")

	w.twice(t, cmdRolloutResume, RolloutRequest{ID: id, Mode: events.ResumeRetry, Reason: "again"})
	w.once(t, &events.RolloutResumed{}, 1)
	again := w.batch(t, id, 2)
	if !slices.Equal(again.Nodes, []string{canary}) || !again.Retry || again.Stage != 1 {
		t.Errorf("the resumed rollout opened %+v, want %s again", again, canary)
	}
	rollsBack(t, conns[canary], canary, "1.1.0")
	w.inState(t, id, projections.Halted)
	if err := resume(events.ResumeLeaveOut); err != nil {
		t.Fatal(err)
	}
	if other := w.batch(t, id, 3); len(other.Nodes) != 1 || other.Nodes[0] == canary {
		t.Errorf("without %s the rollout opened %+v", canary, other)
	}
}

// batch waits for a batch to be opened and declared.
func (w *whole) batch(t *testing.T, id string, number int) (out *events.BatchOpened) {
	t.Helper()
	log := eventstest.NewWatcher(t, w.api.log, events.ReadOptions{})
	err := eventstest.Expect(log, eventstest.About(id, eventstest.Match(func(f *events.BatchOpened) error {
		if f.Batch != number {
			return fmt.Errorf("it is batch %d, not %d", f.Batch, number)
		}
		out = f
		return nil
	})))
	if err != nil {
		t.Fatal(err)
	}
	declared := eventstest.Match(func(f *events.Declared) error {
		if f.Because.Rollout != id || f.Because.Batch != number {
			return fmt.Errorf("it is because of %+v", f.Because)
		}
		return nil
	})
	if err := eventstest.Expect(log, slices.Repeat([]eventstest.Filter{declared}, len(out.Nodes))...); err != nil {
		t.Fatal(err)
	}
	return out
}

func TestAbortAndRevert(t *testing.T) {
	w := startServer(t, t.TempDir())
	ctx := testContext(t)
	w.fleetOf(t, "n1", "n2")
	abort := func(id string) error { _, err := w.client.AbortRollout(ctx, id, ""); return err }
	revert := func(id string) error { _, err := w.client.RevertRollout(ctx, id, ""); return err }
	refused(t, "aborting nothing", abort("latest"), "there is no rollout yet")
	refused(t, "reverting nothing", revert("latest"), "there is no rollout yet")
	if _, err := w.client.StartRollout(ctx, StartRequest{Version: "1.1.0", Policy: twoByOne}); err != nil {
		t.Fatal(err)
	}
	w.batch(t, "r1", 1)
	w.twice(t, cmdRolloutAbort, RolloutRequest{ID: "latest", Reason: "wrong version"})
	w.once(t, &events.RolloutAborted{}, 1)
	if s := w.status(t, "r1"); s.State != projections.Aborted || s.Reason != "wrong version" {
		t.Errorf("the aborted rollout is %s: %s", s.State, s.Reason)
	}
	refused(t, "aborting twice", abort("r1"), "r1 is aborted already")
	refused(t, "reverting an aborted one", revert("r1"), "r1 is aborted: to go back, start a rollout of the former version")
	_, err := w.client.ResumeRollout(ctx, "r1", "", "")
	refused(t, "resuming an aborted one", err, "r1 is aborted: start another one")

	// What the canary of the next one is told is taken back by a declaration.
	if _, err := w.client.StartRollout(ctx, StartRequest{Version: "1.1.0", Policy: twoByOne}); err != nil {
		t.Fatal(err)
	}
	canary := w.batch(t, "r2", 1).Nodes[0]
	w.twice(t, cmdRolloutRevert, RolloutRequest{ID: "r2", Reason: "loses data"})
	w.once(t, &events.RolloutReverted{}, 1)
	w.until(t, canary+" gets back what it had", func() (bool, string) {
		s := w.status(t, "r2")
		return s.State == projections.Reverted && s.Counts[projections.GivenBack] == 1, fmt.Sprint(s.State, s.Counts)
	})
	f, err := w.client.Fleet(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range f.Nodes {
		if n.Node == canary && n.Declared != "1.0.0" {
			t.Errorf("%s should run %q after the revert", canary, n.Declared)
		}
	}
	refused(t, "reverting twice", revert("r2"), "r2 is reverted")
}
