package server

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"noxmesh/events"
)

// TestPastIsAPrefixOfTheLog: which events were there at a moment, also where the
// clocks of servers differ or once were wrong.
func TestPastIsAPrefixOfTheLog(t *testing.T) {
	ctx := testContext(t)
	m := startMesh(t, t.TempDir())
	log := events.NewLog(m.js)
	a := &api{js: m.js, log: events.NewLog(m.js)}
	base := time.Now().Add(-time.Hour).UTC().Truncate(time.Second)
	at := func(seconds int) time.Time { return base.Add(time.Duration(seconds) * time.Second) }
	const year = 365 * 24 * 3600
	// The times of events 1 to 7, in seconds. Two clocks were a year ahead, the
	// fifth one's two seconds behind.
	for i, seconds := range []int{0, year, 100, 102, 100, 300, year} {
		e := events.New(fmt.Sprintf("n%d", i+1), &events.NodeEnrolled{}, events.Origin{Source: "test", Actor: "test"}, at(seconds))
		if _, err := log.Append(ctx, e, 0); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		at   time.Time
		want uint64
	}{
		{at(-1), 0},
		{at(0), 1},
		{at(59), 1},
		{time.Now(), 7}, // by the broker's clock they are no later
	} {
		p, err := a.past(ctx, tt.at)
		if err != nil {
			t.Fatal(err)
		}
		if p.EventSeq != tt.want || len(p.mesh.Nodes) != int(tt.want) {
			t.Errorf("at %s the log has %d events and %d nodes, want %d", tt.at.Sub(base), p.EventSeq, len(p.mesh.Nodes), tt.want)
		}
	}
	if _, err := a.past(ctx, time.Now().Add(time.Minute)); err == nil || !strings.Contains(err.Error(), "is in the future") {
		t.Errorf("the future is answered with %v", err)
	}
	if a, err := a.past(ctx, at(59)); err != nil || len(a.Notes) != 0 {
		t.Errorf("without heartbeats there are notes %v, %v", a.Notes, err)
	}
}

// TestPastGoesOnOverSmallDisorder: servers' clocks differ by a little.
func TestPastGoesOnOverSmallDisorder(t *testing.T) {
	ctx := testContext(t)
	m := startMesh(t, t.TempDir())
	log := events.NewLog(m.js)
	a := &api{js: m.js, log: events.NewLog(m.js)}
	base := time.Now().Add(-time.Hour).UTC().Truncate(time.Second)
	for i, seconds := range []int{0, 30, 20, 40, 200} {
		e := events.New(fmt.Sprintf("n%d", i+1), &events.NodeEnrolled{}, events.Origin{Source: "test", Actor: "test"}, base.Add(time.Duration(seconds)*time.Second))
		if _, err := log.Append(ctx, e, 0); err != nil {
			t.Fatal(err)
		}
	}
	for seconds, want := range map[int]uint64{0: 1, 19: 1, 20: 3, 25: 3, 30: 3, 40: 4, 199: 4, 200: 5} {
		p, err := a.past(ctx, base.Add(time.Duration(seconds)*time.Second))
		if err != nil || p.EventSeq != want {
			t.Errorf("after %d s the log has %d events, want %d (%v)", seconds, p.EventSeq, want, err)
		}
	}
}

// TestPastIsReplayedOnce: a moment that was asked for is kept, and one replay runs
// at a time.
func TestPastIsReplayedOnce(t *testing.T) {
	ctx := testContext(t)
	m := startMesh(t, t.TempDir())
	a := &api{js: m.js, log: events.NewLog(m.js)}
	moments := []time.Time{time.Now().Add(-3 * time.Hour), time.Now().Add(-2 * time.Hour), time.Now().Add(-time.Hour)}
	var asked []*pastMesh
	for _, at := range moments {
		p, err := a.past(ctx, at)
		if err != nil {
			t.Fatal(err)
		}
		asked = append(asked, p)
	}
	for i, kept := range []bool{false, true, true} {
		if got := a.moments.kept(moments[i].UTC()) == asked[i]; got != kept {
			t.Errorf("moment %d is kept: %v, want %v", i, got, kept)
		}
	}
	if p, err := a.past(ctx, moments[2]); err != nil || p != asked[2] {
		t.Errorf("a moment that is kept is replayed again (%v)", err)
	}
	a.moments.turn <- struct{}{} // somebody replays
	short, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
	defer cancel()
	if _, err := a.past(short, moments[0]); !errors.Is(err, errBusy) {
		t.Errorf("beside another replay the answer is %v", err)
	}
}

// TestPastSaysWhatHasAgedOut: a view says if heartbeats of then are missing.
func TestPastSaysWhatHasAgedOut(t *testing.T) {
	ctx := testContext(t)
	m := startMesh(t, t.TempDir())
	a := &api{js: m.js, log: events.NewLog(m.js)}
	var last jetstream.PubAckFuture
	for i := range 1010 { // a node's heartbeats are kept up to 1,000
		var err error
		last, err = m.js.PublishAsync(events.HeartbeatSubject("a"), []byte(fmt.Sprintf(`{"start_id":"s","version":"1.0.%d"}`, i)))
		if err != nil {
			t.Fatal(err)
		}
	}
	select {
	case <-last.Ok():
	case err := <-last.Err():
		t.Fatal(err)
	case <-ctx.Done():
		t.Fatal(ctx.Err())
	}
	for _, tt := range []struct {
		at         time.Time
		heartbeats uint64
		note       string
	}{
		{time.Now(), 1010, "have aged out: a node that was heard before that only is shown as it had confirmed last"},
		{time.Now().Add(-time.Hour), 0, "no heartbeat of then is left"},
	} {
		p, err := a.past(ctx, tt.at)
		if err != nil {
			t.Fatal(err)
		}
		if p.HeartbeatSeq != tt.heartbeats || len(p.Notes) != 1 || !strings.Contains(p.Notes[0], tt.note) {
			t.Errorf("up to heartbeat %d, notes %q; want %d, %q", p.HeartbeatSeq, p.Notes, tt.heartbeats, tt.note)
		}
	}
}
