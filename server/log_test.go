package server

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"noxmesh/events"
)

// write appends events about releases "<prefix>0" and so on, each of about a
// size, and returns when they are folded.
func (w *whole) write(t *testing.T, prefix string, n, size int) {
	t.Helper()
	ctx := testContext(t)
	var wg sync.WaitGroup
	slots := make(chan struct{}, 16)
	for i := range n {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			e := events.New(fmt.Sprint(prefix, i), &events.ReleaseHeld{Reason: strings.Repeat("x", size)}, events.Origin{Source: "test", Actor: "test"}, time.Now())
			seq, err := w.api.log.Append(ctx, e, 0)
			if err := errors.Join(err, w.api.runner.WaitEvent(ctx, seq)); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

func (w *whole) page(t *testing.T, q LogRequest) LogPage {
	t.Helper()
	p, err := ask[LogPage](testContext(t), w.client, patience, cmdLogRead, q)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func (w *whole) readers(t *testing.T) int {
	t.Helper()
	s, err := w.api.js.Stream(testContext(t), events.StreamEvents)
	if err != nil {
		t.Fatal(err)
	}
	return s.CachedInfo().State.Consumers
}

func TestLogIsReadInPages(t *testing.T) {
	w := startServer(t, t.TempDir())
	start := w.page(t, LogRequest{})
	if n := len(start.Events); n == 0 || start.Last != uint64(n) || start.Next != start.Last+1 {
		t.Fatalf("the first events are %+v", start)
	}
	readers := w.readers(t)
	const many = pageEvents + 100
	w.write(t, "many-", many, 10)
	first := w.page(t, LogRequest{})
	if n := len(first.Events); n != pageEvents || first.Next != pageEvents+1 || first.Last != start.Last+many {
		t.Errorf("the first page has %d events, next %d, last %d", n, first.Next, first.Last)
	}
	rest := w.page(t, LogRequest{From: first.Next})
	if n := len(rest.Events); n != int(start.Last)+100 || rest.Next != first.Last+1 {
		t.Errorf("the rest has %d events, next %d, last %d", n, rest.Next, rest.Last)
	}
	// Each event once, in order, as it is stored.
	stream, err := w.api.js.Stream(testContext(t), events.StreamEvents)
	if err != nil {
		t.Fatal(err)
	}
	for i, rec := range slices.Concat(first.Events, rest.Events) {
		if rec.Seq != uint64(i+1) {
			t.Fatalf("event %d comes in place %d", rec.Seq, i+1)
		}
		if i%100 == 0 {
			if msg, err := stream.GetMsg(testContext(t), rec.Seq); err != nil || string(msg.Data) != string(rec.Data) {
				t.Errorf("event %d is %s, %v, and reads %s", rec.Seq, msg.Data, err, rec.Data)
			}
		}
	}
	for _, from := range []uint64{first.Last + 1, first.Last + 1000} {
		if p := w.page(t, LogRequest{From: from}); len(p.Events) != 0 || p.Next != from || p.Last != first.Last {
			t.Errorf("from %d on: %+v", from, p)
		}
	}

	// A page has a size, and an event that is larger has a page of its own.
	w.write(t, "large-", 9, 300<<10)
	large := first.Last + 1
	w.write(t, "larger-", 1, pageBytes+1)
	w.write(t, "small-", 1, 10)
	var sizes []int
	for from := large; ; {
		p := w.page(t, LogRequest{From: from})
		size := 0
		for _, rec := range p.Events {
			size += len(rec.Data)
		}
		if size > pageBytes && len(p.Events) > 1 {
			t.Errorf("a page has %d bytes", size)
		}
		sizes = append(sizes, len(p.Events))
		if from = p.Next; p.Next > p.Last {
			break
		}
	}
	if !slices.Equal(sizes, []int{6, 3, 1, 1}) {
		t.Errorf("large events come in pages of %v", sizes)
	}
	n := 0
	if err := w.client.ReadLog(testContext(t), LogRequest{}, false, func(rec events.Record) error { n++; return nil }); err != nil || n != int(first.Last)+11 {
		t.Errorf("the client read %d events, %v", n, err)
	}
	// An event filtered out counts too: what is read on is not read again.
	if p := w.page(t, LogRequest{Type: "no-such"}); len(p.Events) != 0 || p.Next != p.Last+1 {
		t.Errorf("a page without a match is %+v", p)
	}
	if got := w.readers(t); got != readers {
		t.Errorf("the log had %d readers and has %d", readers, got)
	}
}

func TestLogFilters(t *testing.T) {
	w := startServer(t, t.TempDir())
	ctx := testContext(t)
	w.fleetOf(t, "n1", "n2")
	if _, err := w.client.StartRollout(ctx, StartRequest{Version: "1.1.0", Policy: twoByOne}); err != nil {
		t.Fatal(err)
	}
	canary := w.batch(t, "r1", 1).Nodes[0]
	other := map[string]string{"n1": "n2", "n2": "n1"}[canary]
	if _, err := w.client.Declare(ctx, DeclareRequest{Node: other}); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		q    LogRequest
		want string
	}{
		{LogRequest{Type: "declared"}, canary + ", " + other},
		{LogRequest{Type: "declaration.declared", Node: canary}, canary},
		{LogRequest{Type: "mesh.declaration.declared.v1", Rollout: "r1"}, canary},
		{LogRequest{Rollout: "r1"}, "r1, r1, " + canary},
		{LogRequest{Rollout: "r1", Node: canary}, canary},
		{LogRequest{Rollout: "r1", Node: other}, ""},
		{LogRequest{Rollout: "r2"}, ""},
		{LogRequest{Type: "declared.v1"}, ""},
	} {
		var got []string
		err := w.client.ReadLog(ctx, tt.q, false, func(rec events.Record) error {
			got = append(got, rec.Event.Subject)
			return nil
		})
		if err != nil || strings.Join(got, ", ") != tt.want {
			t.Errorf("%+v gives %v, %v; want %s", tt.q, got, err, tt.want)
		}
	}
	for _, q := range []LogRequest{
		{Node: "*"}, {Node: ">"}, {Node: "a.b"}, {Node: "N"}, {Rollout: "*"}, {Rollout: ">"}, {Rollout: "r1.x"}, {Rollout: "a b"}, {Rollout: "a\r\nb"},
	} {
		if err := w.client.ReadLog(ctx, q, false, nil); err == nil {
			t.Errorf("%+v is answered", q)
		}
	}
}

// Who follows the log hears each event once, also when the server was away
// meanwhile.
func TestLogIsFollowed(t *testing.T) {
	dir := t.TempDir()
	w := startServer(t, dir)
	u, err := url.Parse(w.URL())
	if err != nil {
		t.Fatal(err)
	}
	w.write(t, "before-", 1, 10)
	follower, err := Dial(w.URL(), OperatorCredsFile(dir), CAFile(dir))
	if err != nil {
		t.Fatal(err)
	}
	defer follower.Close()
	ctx, cancel := context.WithCancel(testContext(t))
	heard, ended := make(chan events.Record), make(chan error, 1)
	go func() {
		ended <- follower.ReadLog(ctx, LogRequest{Type: "held"}, true, func(rec events.Record) error {
			select {
			case heard <- rec:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
	}()
	next := func(want string) {
		t.Helper()
		select {
		case rec := <-heard:
			if rec.Event.Subject != want {
				t.Errorf("heard of %s, want %s", rec.Event.Subject, want)
			}
		case err := <-ended:
			t.Fatal("it ended:", err)
		case <-time.After(patience):
			t.Fatalf("%s is not heard of", want)
		}
	}
	next("before-0")
	w.write(t, "then-", 1, 10)
	next("then-0")
	w.stop(t)
	s, err := Start(testContext(t), Config{DataDir: dir, Listen: u.Host, Logger: testLog(t)})
	if err != nil {
		t.Fatal(err)
	}
	w = &whole{Server: s, dir: dir}
	defer w.stop(t)
	w.write(t, "after-", 1, 10)
	next("after-0")
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error("it ended with", err)
	}
}

// TestStreamsReadByteForByte: what is read is what is stored, HTML and all, and
// no other stream is there to read.
func TestStreamsReadByteForByte(t *testing.T) {
	m := startMesh(t, t.TempDir())
	a := &api{js: m.js}
	want := []string{`{"a": "<b>"}`, "not JSON at all\n", `{"c":1}`}
	for i, data := range want {
		if _, err := m.js.Publish(testContext(t), events.EventSubject("node", fmt.Sprint("n", i)), []byte(data)); err != nil {
			t.Fatal(err)
		}
	}
	page, err := a.readStream(testContext(t), caller{}, StreamRequest{Stream: events.StreamEvents, From: 2})
	if err != nil {
		t.Fatal(err)
	}
	if len(page.Messages) != 2 || page.Next != 4 || page.First != 1 || page.Last != 3 {
		t.Fatalf("the page is %+v", page)
	}
	for i, msg := range page.Messages {
		if string(msg.Data) != want[i+1] || msg.Subject != events.EventSubject("node", fmt.Sprint("n", i+1)) || msg.Seq != uint64(i+2) {
			t.Errorf("message %d is %+v", i+2, msg)
		}
	}
	for _, stream := range []string{"", events.StreamReports, events.StreamPackages, "KV_x"} {
		if _, err := a.readStream(testContext(t), caller{}, StreamRequest{Stream: stream}); err == nil {
			t.Errorf("stream %q is read", stream)
		}
	}
}
