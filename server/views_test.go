package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"noxmesh/events"
	"noxmesh/events/schematest"
	"noxmesh/projections"
)

func TestWhichViewsAreWritten(t *testing.T) {
	t0 := time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
	entry := func(eventSeq, heartbeatSeq uint64, running string, heard time.Duration) projections.Entry {
		at := t0.Add(heard)
		raw, err := json.Marshal(projections.NodeView{Node: "n1", Running: running, LastHeard: &at})
		if err != nil {
			t.Fatal(err)
		}
		return projections.Entry{Key: "n1", Version: 1, EventSeq: eventSeq, HeartbeatSeq: heartbeatSeq, Value: raw}
	}
	gone := func(eventSeq, heartbeatSeq uint64) projections.Entry {
		return projections.Entry{Key: "n1", Version: 1, EventSeq: eventSeq, HeartbeatSeq: heartbeatSeq}
	}
	newer := entry(5, 50, "1.0.0", 0)
	newer.Version = 2
	has := func(e projections.Entry) held { return holds(7, t0, projections.BucketFleet, e) }
	for _, c := range []struct {
		name string
		held held
		want projections.Entry
		now  time.Duration // after it was written
		is   verdict
	}{
		{"nothing there", held{}, entry(5, 50, "1.0.0", 0), 0, write},
		{"the same", has(entry(5, 50, "1.0.0", 0)), entry(6, 60, "1.0.0", 0), time.Hour, upToDate},
		{"the same, and read less", has(entry(5, 50, "1.0.0", 0)), entry(4, 40, "1.0.0", 0), 0, upToDate},
		{"another version", has(entry(5, 50, "1.0.0", 0)), entry(5, 51, "1.1.0", time.Second), 0, write},
		{"another projection", has(entry(5, 50, "1.0.0", 0)), newer, 0, write},
		{"heard again", has(entry(5, 50, "1.0.0", 0)), entry(5, 51, "1.0.0", 10*time.Second), 10 * time.Second, writeLater},
		{"heard again, a minute later", has(entry(5, 50, "1.0.0", 0)), entry(5, 51, "1.0.0", 10*time.Second), time.Minute, write},
		{"read fewer events", has(entry(5, 50, "1.1.0", 0)), entry(4, 60, "1.0.0", 0), time.Hour, readOn},
		{"read fewer heartbeats", has(entry(5, 50, "1.1.0", 0)), entry(6, 49, "1.0.0", 0), time.Hour, readOn},
		{"it left", has(entry(5, 50, "1.0.0", 0)), gone(6, 50), 0, write},
		{"it left, seen from before", has(entry(5, 50, "1.0.0", 0)), gone(4, 50), 0, readOn},
		{"it was never there", held{}, gone(6, 50), 0, upToDate},
		{"it had left", has(gone(6, 50)), gone(7, 50), 0, upToDate},
		{"it is back", has(gone(6, 50)), entry(7, 50, "1.0.0", 0), 0, write},
	} {
		if got := c.held.judge(projections.BucketFleet, c.want, t0.Add(c.now), time.Minute); got != c.is {
			t.Errorf("%s: %d, want %d", c.name, got, c.is)
		}
	}
}

// bucket is what a bucket holds, by key, and each key's sequence in it.
func bucket(t *testing.T, js jetstream.JetStream, name string) (map[string]projections.Entry, map[string]uint64) {
	t.Helper()
	out, seqs := map[string]projections.Entry{}, map[string]uint64{}
	err := events.ReadStream(testContext(t), js, projections.BucketStream(name), events.ReadOptions{}, func(msg events.Message) error {
		var e projections.Entry
		key := strings.TrimPrefix(msg.Subject, projections.KeySubject(name, ""))
		if json.Unmarshal(msg.Data, &e) != nil || e.Key != key {
			e = projections.Entry{Value: msg.Data} // of no version
		}
		out[key], seqs[key] = e, msg.Seq
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out, seqs
}

// inBuckets waits until the buckets hold what the fold says, to the letter.
func (w *whole) inBuckets(t *testing.T) {
	t.Helper()
	w.until(t, "the buckets hold what the fold says", func() (bool, string) {
		for _, name := range projections.Buckets {
			has, _ := bucket(t, w.api.js, name)
			want := map[string]string{}
			w.api.runner.View(func(m *projections.Mesh) {
				for _, e := range m.Entries(name, m.TouchedKeys(name, projections.Touched{All: true})) {
					if e.Value != nil {
						want[e.Key] = string(e.Value)
					}
				}
			})
			got := map[string]string{}
			for key, e := range has {
				if e.Version != projections.Version || e.EventSeq == 0 {
					return false, fmt.Sprintf("%s reflects %+v", key, e)
				}
				if e.Value != nil {
					got[key] = string(e.Value)
				}
			}
			if !maps.Equal(got, want) {
				return false, fmt.Sprintf("%s has\n%v\nwant\n%v", name, got, want)
			}
		}
		return true, ""
	})
}

func TestBucketsHoldTheViews(t *testing.T) {
	dir := t.TempDir()
	w := startServer(t, dir)
	ctx := testContext(t)
	for _, name := range []string{"n1", "n2", "n3"} {
		w.beat(t, w.node(t, name, map[string]string{"site": "ams"}), name, "1.0.0")
	}
	w.addRelease(t, "1.0.0")
	w.addRelease(t, "1.1.0")
	if _, err := w.client.StartRollout(ctx, StartRequest{Version: "1.1.0"}); err != nil {
		t.Fatal(err)
	}
	w.inBuckets(t)
	_, held := w.client.Hold(ctx, "1.1.0", "slow")
	_, gone := w.client.Decommission(ctx, DecommissionRequest{Node: "n3"})
	if err := errors.Join(held, gone); err != nil {
		t.Fatal(err)
	}
	w.inBuckets(t)
	// It is what tools were promised.
	for _, name := range projections.Buckets {
		fits := schematest.Validator(t, name+".json")
		err := events.ReadStream(ctx, w.api.js, projections.BucketStream(name), events.ReadOptions{}, func(msg events.Message) error { return fits(msg.Data) })
		if err != nil {
			t.Error(err)
		}
		if fits([]byte(`{"key":"x","value":{}}`)) == nil {
			t.Errorf("nonsense passes for an entry of %s", name)
		}
	}
	fleet, _ := bucket(t, w.api.js, projections.BucketFleet)
	if e, ok := fleet["n3"]; !ok || e.Value != nil {
		t.Errorf("a node that left is %+v", e)
	}
	// Tools of the broker see a bucket like any other.
	kv, err := w.api.js.KeyValue(ctx, projections.BucketFleet)
	if err != nil {
		t.Fatal(err)
	}
	keys, err := kv.Keys(ctx)
	slices.Sort(keys)
	if err != nil || !slices.Equal(keys, []string{"n1", "n2"}) {
		t.Errorf("its keys are %v, %v", keys, err)
	}

	// Started again, it writes what differs and nothing else.
	before := map[string]map[string]uint64{}
	for _, name := range projections.Buckets {
		_, before[name] = bucket(t, w.api.js, name)
	}
	if _, err := w.nc.Request(projections.KeySubject(projections.BucketRollouts, "r1"), []byte("damaged"), patience); err != nil {
		t.Fatal(err)
	}
	if _, err := w.nc.Request(projections.KeySubject(projections.BucketReleases, "9_9_9_amd64"), []byte(`{"key":"9_9_9_amd64"}`), patience); err != nil {
		t.Fatal(err)
	}
	if err := w.api.js.DeleteStream(ctx, projections.BucketStream(projections.BucketFleet)); err != nil {
		t.Fatal(err)
	}
	w.stop(t)
	w.client = nil
	again := startServer(t, dir)
	again.inBuckets(t)
	for _, name := range []string{projections.BucketRollouts, projections.BucketReleases} {
		_, after := bucket(t, again.api.js, name)
		delete(after, "9_9_9_amd64")
		delete(after, "r1")
		delete(before[name], "r1")
		if !maps.Equal(before[name], after) {
			t.Errorf("bucket %s was\n%v\nand is\n%v", name, before[name], after)
		}
	}
}

// TestOlderViewIsNotWritten: of two servers the one that has read less leaves
// what the other wrote, until it has read as far.
func TestOlderViewIsNotWritten(t *testing.T) {
	m := startMesh(t, t.TempDir())
	ctx, cancel := context.WithCancel(testContext(t))
	log := events.NewLog(m.js)
	write := func(subject string, fact events.Fact, expected uint64) uint64 {
		t.Helper()
		seq, err := log.Append(ctx, events.New(subject, fact, events.Origin{Source: "s", Actor: "a"}, time.Now()), expected)
		if err != nil {
			t.Fatal(err)
		}
		return seq
	}
	enrolled := write("n1", &events.NodeEnrolled{PublicKey: "k"}, 0)
	other := projections.Entry{Key: "n1", Version: projections.Version, EventSeq: 3, Value: json.RawMessage(`{"node":"n1","labels":{"written":"by another"}}`)}
	raw, err := json.Marshal(other)
	if err != nil {
		t.Fatal(err)
	}
	runner := projections.NewRunner(m.js, log)
	done := make(chan error, 2)
	go func() { done <- runner.Run(ctx) }()
	<-runner.Ready()
	v := &views{js: m.js, runner: runner, logger: testLog(t), beatEvery: time.Minute}
	if err := v.load(ctx); err != nil {
		t.Fatal(err)
	}
	// The other server writes after this one has looked, and has read more.
	if _, err := m.js.Publish(ctx, projections.KeySubject("fleet", "n1"), raw); err != nil {
		t.Fatal(err)
	}
	round := func() projections.Entry {
		t.Helper()
		runner.View(func(mesh *projections.Mesh) { v.touch(mesh, projections.Touched{All: true}) })
		for range 2 { // a conflict is looked at in the next round
			if err := v.round(ctx); err != nil {
				t.Fatal(err)
			}
		}
		has, _ := bucket(t, m.js, "fleet")
		return has["n1"]
	}
	if got := round(); string(got.Value) != string(other.Value) {
		t.Errorf("an older view took the place of a newer one: %s", got.Value)
	}
	write("n1", &events.NodeRevoked{}, enrolled)
	seq := write("n2", &events.NodeEnrolled{PublicKey: "k2"}, 0)
	if err := runner.WaitEvent(ctx, seq); err != nil {
		t.Fatal(err)
	}
	if got := round(); got.EventSeq != seq || !json.Valid(got.Value) || string(got.Value) == string(other.Value) {
		t.Errorf("it has read as far, and the bucket holds %+v", got)
	}
	cancel()
	<-done
}

// TestViewsGoOnWithoutTheirBuckets: what goes wrong with a bucket is no reason to
// stop.
func TestViewsGoOnWithoutTheirBuckets(t *testing.T) {
	w := startServer(t, t.TempDir())
	if err := w.api.js.DeleteStream(testContext(t), projections.BucketStream(projections.BucketFleet)); err != nil {
		t.Fatal(err)
	}
	w.beat(t, w.node(t, "n1", nil), "n1", "1.0.0")
	v := &views{js: w.api.js, runner: w.api.runner, logger: testLog(t), beatEvery: time.Minute}
	if err := v.load(testContext(t)); !errors.Is(err, jetstream.ErrStreamNotFound) {
		t.Errorf("reading a bucket that is not there: %v", err)
	}
	if w.Err() != nil {
		t.Error(w.Err())
	}
}

// TestHeardAgainIsWrittenNowAndThen: a node that beats costs one write each while, and
// the last beat is told of even if none comes after it.
func TestHeardAgainIsWrittenNowAndThen(t *testing.T) {
	m := startMesh(t, t.TempDir())
	ctx, cancel := context.WithCancel(testContext(t))
	log := events.NewLog(m.js)
	if _, err := log.Append(ctx, events.New("n1", &events.NodeEnrolled{PublicKey: "k"}, events.Origin{Source: "s", Actor: "a"}, time.Now()), 0); err != nil {
		t.Fatal(err)
	}
	runner := projections.NewRunner(m.js, log)
	var parts sync.WaitGroup
	defer parts.Wait()
	defer cancel()
	parts.Go(func() { _ = runner.Run(ctx) })
	v := &views{js: m.js, runner: runner, logger: testLog(t), beatEvery: 2 * time.Second}
	parts.Go(func() { _ = v.run(ctx) })
	raw, err := json.Marshal(events.Heartbeat{StartID: "s", Version: "1.0.0"})
	if err != nil {
		t.Fatal(err)
	}
	const beats = 100
	begin := time.Now()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for range beats {
		if _, err := m.js.Publish(ctx, events.HeartbeatSubject("n1"), raw); err != nil {
			t.Fatal(err)
		}
		<-tick.C
	}
	var writes uint64
	(&whole{}).until(t, "the last beat is in the bucket", func() (bool, string) {
		has, seqs := bucket(t, m.js, projections.BucketFleet)
		writes = seqs["n1"]
		var got projections.NodeView
		if err := json.Unmarshal(has["n1"].Value, &got); err != nil {
			return false, err.Error()
		}
		var want time.Time
		runner.View(func(m *projections.Mesh) { want = m.Nodes["n1"].LastHeard() })
		return has["n1"].HeartbeatSeq == beats && got.LastHeard != nil && got.LastHeard.Equal(want), fmt.Sprint(got.LastHeard, want)
	})
	// Enrolled, heard for the first time, and then once each while.
	if most := 3 + uint64(time.Since(begin)/v.beatEvery); writes > most {
		t.Errorf("%d beats led to %d writes, want %d at most", beats, writes, most)
	}
}
