package server

import (
	"context"
	"testing"
	"time"

	"noxmesh/events"
	"noxmesh/projections"
)

// readTogether is a fold of the log and of heartbeats that a test makes, since no
// test waits for five minutes.
type readTogether struct {
	mesh  *projections.Mesh
	log   *events.Log
	beats uint64
}

func (r *readTogether) Settled() <-chan struct{} {
	done := make(chan struct{})
	close(done)
	return done
}

func (r *readTogether) View(fn func(*projections.Mesh)) { fn(r.mesh) }

func (r *readTogether) WaitEvent(ctx context.Context, _ uint64) error {
	return r.log.Read(ctx, events.ReadOptions{From: r.mesh.EventSeq + 1}, r.mesh.ApplyEvent)
}

// hears folds heartbeats of nodes at a moment, after a pulse of a mesh that has
// listened since another.
func (r *readTogether) hears(since, at time.Time, nodes ...string) {
	r.beats++
	r.mesh.Pulse(r.beats, at, since)
	for _, id := range nodes {
		r.beats++
		r.mesh.Heard(id, r.beats, at, events.Heartbeat{StartID: "s", Version: "1.0.0", KnownGood: "1.0.0"})
	}
}

// TestAbsencesAreRecordedOnce: a node that is heard again has an event that says
// since when it was not. Two servers write one; deaf time and nodes that are shut
// out make none.
func TestAbsencesAreRecordedOnce(t *testing.T) {
	ctx := testContext(t)
	m := startMesh(t, t.TempDir())
	log := events.NewLog(m.js)
	start := time.Now().UTC().Add(-24 * time.Hour).Truncate(time.Second)
	at := func(minutes int) time.Time { return start.Add(time.Duration(minutes) * time.Minute) }
	write := func(id string, fact events.Fact, expected uint64) uint64 {
		t.Helper()
		seq, err := log.Append(ctx, events.New(id, fact, events.Origin{Source: "test", Actor: "test"}, start.Add(-time.Minute)), expected)
		if err != nil {
			t.Fatal(err)
		}
		return seq
	}
	for _, id := range []string{"laptop", "server", "shut-out"} {
		write(id, &events.NodeEnrolled{PublicKey: "U" + id}, 0)
	}
	var servers []*awayKeeper
	var folds []*readTogether
	for range 2 {
		r := &readTogether{mesh: projections.NewMesh(), log: log}
		folds = append(folds, r)
		servers = append(servers, &awayKeeper{log: log, runner: r, source: "test", logger: testLog(t)})
	}
	catchUp := func() {
		t.Helper()
		for _, r := range folds {
			if err := r.WaitEvent(ctx, 0); err != nil {
				t.Fatal(err)
			}
		}
	}
	look := func() {
		t.Helper()
		for _, k := range servers { // neither has read what the other wrote
			if err := k.look(ctx); err != nil {
				t.Fatal(err)
			}
		}
		catchUp()
	}
	hears := func(since, when time.Time, nodes ...string) {
		for _, r := range folds {
			r.hears(since, when, nodes...)
		}
	}
	recorded := func() (out []events.NodeAway) {
		t.Helper()
		err := log.Read(ctx, events.ReadOptions{}, func(rec events.Record) error {
			fact, err := rec.Event.Fact()
			if f, ok := fact.(*events.NodeAway); ok {
				if rec.Event.Subject != "laptop" || rec.Event.Actor != "mesh" {
					t.Errorf("event %d is about %s, by %s", rec.Seq, rec.Event.Subject, rec.Event.Actor)
				}
				out = append(out, *f)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	catchUp()
	all := []string{"laptop", "server", "shut-out"}
	hears(start, at(0), all...)
	hears(start, at(3), "server")
	look()
	if got := recorded(); len(got) != 0 {
		t.Fatalf("while it is away: %+v", got)
	}
	write("shut-out", &events.NodeRevoked{}, folds[0].mesh.Nodes["shut-out"].EventSeq)
	catchUp()
	for minute := 6; minute < 20; minute += 3 {
		hears(start, at(minute), "server")
	}
	hears(start, at(20), all...)
	look()
	look()
	want := events.NodeAway{From: at(0), To: at(20), FromHeartbeat: 2, Listened: events.Duration(20 * time.Minute)}
	got := recorded()
	if len(got) != 1 || got[0].From != want.From || got[0].To != want.To || got[0].FromHeartbeat != want.FromHeartbeat || got[0].Listened != want.Listened || got[0].ToHeartbeat <= 2 {
		t.Fatalf("once it is back: %+v, want %+v", got, want)
	}
	// The mesh is down for an hour, and hears everybody again.
	hears(at(80), at(81), all...)
	look()
	if got := recorded(); len(got) != 1 {
		t.Errorf("deaf time is on record as absence: %+v", got)
	}
	// A server that starts anew and has but the last of the heartbeats finds
	// nothing that is not on record.
	fresh := &readTogether{mesh: projections.NewMesh(), log: log}
	if err := fresh.WaitEvent(ctx, 0); err != nil {
		t.Fatal(err)
	}
	fresh.hears(start, at(0), all...)
	fresh.hears(start, at(20), all...)
	if list := fresh.mesh.Absences(); len(list) != 1 || list[0].Node != "server" {
		t.Errorf("a server that starts anew wants to record %+v; only the server's beats are lost to it", list)
	}
	if away := fresh.mesh.Nodes["laptop"].Away; len(away) != 1 || away[0] != (projections.Span{From: at(0), To: at(20)}) {
		t.Errorf("the laptop's absences on record are %v", away)
	}
}
