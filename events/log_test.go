package events_test

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"noxmesh/events"
)

// patience bounds waits for things that do happen.
const patience = 30 * time.Second

func testContext(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// startServer runs a broker; a port of -1 is a free one.
func startServer(t testing.TB, dir string, port int) *server.Server {
	t.Helper()
	s, err := server.NewServer(&server.Options{
		Host: "127.0.0.1", Port: port, JetStream: true, StoreDir: dir, NoSigs: true, NoLog: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() { stopServer(s) })
	if !s.ReadyForConnections(patience) {
		t.Fatal("the broker does not answer")
	}
	return s
}

func stopServer(s *server.Server) {
	s.Shutdown()
	s.WaitForShutdown()
}

func connect(t testing.TB, s *server.Server) jetstream.JetStream {
	t.Helper()
	nc, err := nats.Connect(s.ClientURL(), nats.MaxReconnects(-1), nats.ReconnectWait(10*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	return js
}

func newLog(t testing.TB, dir string) (*server.Server, *events.Log) {
	t.Helper()
	s := startServer(t, dir, -1)
	js := connect(t, s)
	if _, err := js.CreateStream(testContext(t), jetstream.StreamConfig{
		Name: events.StreamEvents, Subjects: []string{"mesh.event.*.*"}, Discard: jetstream.DiscardNew, DenyDelete: true, DenyPurge: true,
	}); err != nil {
		t.Fatal(err)
	}
	return s, events.NewLog(js)
}

var origin = events.Origin{Source: "test", Actor: "test", Cause: "test"}

func declared(node string, revision uint64) events.Event {
	return events.New(node, &events.Declared{Node: node, Revision: revision}, origin, time.Now())
}

func mustAppend(t testing.TB, l *events.Log, e events.Event, expected uint64) uint64 {
	t.Helper()
	seq, err := l.Append(testContext(t), e, expected)
	if err != nil {
		t.Fatal(err)
	}
	return seq
}

func readAll(t testing.TB, l *events.Log, opts events.ReadOptions) []events.Record {
	t.Helper()
	var all []events.Record
	if err := l.Read(testContext(t), opts, func(r events.Record) error { all = append(all, r); return nil }); err != nil {
		t.Fatal(err)
	}
	return all
}

func TestAppendExpectsTheLastSequence(t *testing.T) {
	_, l := newLog(t, t.TempDir())
	ctx := testContext(t)
	var heard []uint64
	l.Appended = func(seq uint64, _ events.Event) { heard = append(heard, seq) }
	first := mustAppend(t, l, declared("a", 1), 0)
	mustAppend(t, l, declared("b", 1), 0)
	if _, err := l.Append(ctx, declared("a", 2), 0); !errors.Is(err, events.ErrConflict) {
		t.Errorf("appending as the first: %v, want a conflict", err)
	}
	if _, err := l.Append(ctx, declared("a", 2), first+1); !errors.Is(err, events.ErrConflict) {
		t.Errorf("appending behind another subject's sequence: %v, want a conflict", err)
	}
	if _, err := l.Append(ctx, declared("c", 1), first); !errors.Is(err, events.ErrConflict) {
		t.Errorf("appending behind what is not there: %v, want a conflict", err)
	}
	second := mustAppend(t, l, declared("a", 2), first)
	e, seq, err := l.Last(ctx, events.EventSubject(events.AggregateDeclaration, "a"))
	if err != nil || seq != second || e.Subject != "a" {
		t.Errorf("last: %d %+v %v, want sequence %d", seq, e, err, second)
	}
	if _, seq, err := l.Last(ctx, events.EventSubject(events.AggregateDeclaration, "none")); seq != 0 || err != nil {
		t.Errorf("last of an empty subject: %d %v", seq, err)
	}
	if all := readAll(t, l, events.ReadOptions{}); len(all) != 3 || !slices.Equal(heard, []uint64{1, 2, 3}) {
		t.Errorf("%d events are stored, heard of %v; want 3", len(all), heard)
	}
}

func TestAppendAgainIsTheSameEvent(t *testing.T) {
	_, l := newLog(t, t.TempDir())
	e := declared("a", 1)
	first := mustAppend(t, l, e, 0)
	if seq := mustAppend(t, l, e, 0); seq != first {
		t.Errorf("appended again at %d, was at %d", seq, first)
	}
	if all := readAll(t, l, events.ReadOptions{}); len(all) != 1 {
		t.Errorf("%d copies", len(all))
	}
}

func TestOneOfTwoWritersWins(t *testing.T) {
	s, l := newLog(t, t.TempDir())
	other := events.NewLog(connect(t, s))
	var last uint64
	for round := range uint64(50) {
		type result struct {
			seq uint64
			err error
		}
		results := make(chan result)
		for _, w := range []*events.Log{l, other} {
			go func() {
				seq, err := w.Append(t.Context(), declared("a", round+1), last)
				results <- result{seq, err}
			}()
		}
		a, b := <-results, <-results
		if a.err != nil {
			a, b = b, a
		}
		if a.err != nil || !errors.Is(b.err, events.ErrConflict) {
			t.Fatalf("round %d: %v and %v, want one to win and one conflict", round, a, b)
		}
		last = a.seq
	}
	if all := readAll(t, l, events.ReadOptions{}); len(all) != 50 {
		t.Errorf("%d events, want 50", len(all))
	}
}

func TestAppendRefusesWhatHasNoPlace(t *testing.T) {
	_, l := newLog(t, t.TempDir())
	e := declared("a", 1)
	e.Type = "mesh.unheard.of.v1"
	if _, err := l.Append(testContext(t), e, 0); !errors.Is(err, events.ErrUnknownType) {
		t.Errorf("unknown type: %v", err)
	}
}

func TestAppendWithoutBroker(t *testing.T) {
	s, l := newLog(t, t.TempDir())
	stopServer(s)
	l.AttemptTimeout = 20 * time.Millisecond
	if _, err := l.Append(testContext(t), declared("a", 1), 0); err == nil || errors.Is(err, events.ErrConflict) {
		t.Errorf("got %v, want an error that is no conflict", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := l.Append(ctx, declared("a", 1), 0); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want that it was canceled", err)
	}
}

func TestRead(t *testing.T) {
	_, l := newLog(t, t.TempDir())
	caught := 0
	opts := events.ReadOptions{CaughtUp: func() { caught++ }}
	if all := readAll(t, l, opts); len(all) != 0 || caught != 1 {
		t.Errorf("empty log: %d events, caught up %d times", len(all), caught)
	}
	var want []string
	for i := range 300 {
		e := declared(fmt.Sprintf("n%d", i%3), uint64(i/3+1))
		var expected uint64
		if i >= 3 {
			expected = uint64(i - 2)
		}
		mustAppend(t, l, e, expected)
		want = append(want, e.ID)
	}
	for _, tt := range []struct {
		name string
		opts events.ReadOptions
		want func(seq uint64) bool
	}{
		{"all", events.ReadOptions{}, func(uint64) bool { return true }},
		{"from the first", events.ReadOptions{From: 1}, func(uint64) bool { return true }},
		{"from the middle", events.ReadOptions{From: 150}, func(seq uint64) bool { return seq >= 150 }},
		{"from behind the end", events.ReadOptions{From: 301}, func(uint64) bool { return false }},
		{"one node", events.ReadOptions{Subjects: []string{"mesh.event.declaration.n1"}}, func(seq uint64) bool { return seq%3 == 2 }},
		{"two nodes", events.ReadOptions{Subjects: []string{"mesh.event.declaration.n1", "mesh.event.declaration.n2"}}, func(seq uint64) bool { return seq%3 != 1 }},
		{"nothing that is there", events.ReadOptions{Subjects: []string{"mesh.event.rollout.*"}}, func(uint64) bool { return false }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			caught = 0
			tt.opts.CaughtUp = func() { caught++ }
			var next []uint64
			for seq := range uint64(300) {
				if tt.want(seq + 1) {
					next = append(next, seq+1)
				}
			}
			var got []uint64
			for _, r := range readAll(t, l, tt.opts) {
				got = append(got, r.Seq)
				if r.Event.ID != want[r.Seq-1] {
					t.Errorf("event %d is %s, want %s", r.Seq, r.Event.ID, want[r.Seq-1])
				}
			}
			if !slices.Equal(got, next) || caught != 1 {
				t.Errorf("got %v\nwant %v\ncaught up %d times", got, next, caught)
			}
		})
	}
	stop := errors.New("enough")
	n := 0
	if err := l.Read(testContext(t), events.ReadOptions{}, func(events.Record) error { n++; return stop }); !errors.Is(err, stop) || n != 1 {
		t.Errorf("the reader's own error: %v after %d", err, n)
	}
}

func TestReadStopsAtDamage(t *testing.T) {
	s, l := newLog(t, t.TempDir())
	mustAppend(t, l, declared("a", 1), 0)
	if _, err := connect(t, s).Publish(testContext(t), "mesh.event.node.a", []byte(`{"stream":"HEARTBEATS","seq":1}`)); err != nil {
		t.Fatal(err)
	}
	n := 0
	err := l.Read(testContext(t), events.ReadOptions{}, func(events.Record) error { n++; return nil })
	if !errors.Is(err, events.ErrMalformed) || n != 1 {
		t.Errorf("%v after %d events, want damage after 1", err, n)
	}
}

// Following goes on over a restart of the broker with no gap and no repeat.
func TestFollowAcrossRestart(t *testing.T) {
	dir := t.TempDir()
	s, l := newLog(t, dir)
	u, err := url.Parse(s.ClientURL())
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.Atoi(u.Port())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(testContext(t))
	defer cancel()
	got := make(chan uint64, 100)
	ended := make(chan error, 1)
	go func() {
		ended <- l.Read(ctx, events.ReadOptions{Follow: true}, func(r events.Record) error { got <- r.Seq; return nil })
	}()
	var next uint64 = 1
	write := func(n int) {
		t.Helper()
		for range n {
			mustAppend(t, l, declared(fmt.Sprintf("n%d", next), 1), 0)
			select {
			case seq := <-got:
				if seq != next {
					t.Fatalf("got event %d, want %d", seq, next)
				}
			case <-ctx.Done():
				t.Fatalf("event %d did not come", next)
			}
			next++
		}
	}
	write(5)
	for range 2 {
		stopServer(s)
		s = startServer(t, dir, port)
		write(5)
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error("following ended with", err)
	}
	select {
	case seq := <-got:
		t.Error("one more came:", seq)
	default:
	}
}
