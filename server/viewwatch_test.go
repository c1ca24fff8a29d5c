package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"noxmesh/events"
	"noxmesh/projections"
	"noxmesh/projections/client"
)

// watched is a mesh whose bucket of releases holds what a test puts there; no
// server writes it.
type watched struct {
	*mesh
	api *api
}

func startWatched(t *testing.T) *watched {
	t.Helper()
	m := startMesh(t, t.TempDir())
	return &watched{mesh: m, api: &api{nc: m.nc, js: m.js, logger: testLog(t)}}
}

// put writes a key with a value of n bytes or more; n < 0 deletes it.
func (w *watched) put(t *testing.T, key string, n int) {
	t.Helper()
	e := projections.Entry{Key: key}
	if n >= 0 {
		e.Value = fmt.Appendf(nil, `"%s"`, strings.Repeat("x", n))
	}
	raw, err := json.Marshal(e)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.js.Publish(testContext(t), projections.KeySubject(projections.BucketReleases, key), raw); err != nil {
		t.Fatal(err)
	}
}

func (w *watched) ask(t *testing.T, after client.Token, wait time.Duration) client.WatchReply {
	t.Helper()
	r, err := w.api.watchView(testContext(t), caller{}, client.WatchRequest{Bucket: projections.BucketReleases, After: after, Wait: events.Duration(wait)})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// said is what a reply says, in short; ! is a deletion.
func (w *watched) said(t *testing.T, r client.WatchReply) string {
	t.Helper()
	var out []string
	if r.Reset {
		out = append(out, "reset")
	}
	for _, we := range r.Entries {
		var e projections.Entry
		if err := json.Unmarshal(we.Entry, &e); err != nil {
			t.Fatal(err)
		}
		if e.Value == nil {
			e.Key = "!" + e.Key
		}
		out = append(out, e.Key)
	}
	if r.CaughtUp {
		out = append(out, "caught up")
	}
	return strings.Join(out, " ")
}

func TestWatchPages(t *testing.T) {
	w := startWatched(t)
	expect := func(what string, r client.WatchReply, want string) client.Token {
		t.Helper()
		if got := w.said(t, r); got != want {
			t.Errorf("%s: %q, want %q", what, got, want)
		}
		return r.Token
	}
	start := expect("an empty bucket", w.ask(t, "", 0), "caught up")
	w.put(t, "a", 1)
	w.put(t, "b", 1)
	w.put(t, "a", 2)
	two := w.ask(t, start, 0)
	expect("each key once, the newest", two, "b a caught up")
	expect("behind the first of them", w.ask(t, two.Entries[0].Token, 0), "a caught up")
	expect("from the beginning", w.ask(t, "", 0), "b a caught up")
	next := expect("behind all", w.ask(t, two.Token, 0), "caught up")
	w.put(t, "b", -1)
	next = expect("a deletion", w.ask(t, next, 0), "!b caught up")

	// A large page comes in parts, by bytes and by number.
	w.put(t, "c", watchBytes/2)
	w.put(t, "d", watchBytes/2)
	w.put(t, "e", 2*watchBytes)
	w.put(t, "f", 1)
	next = expect("half a page", w.ask(t, next, 0), "c")
	next = expect("another half", w.ask(t, next, 0), "d")
	next = expect("more than a page", w.ask(t, next, 0), "e")
	next = expect("the rest", w.ask(t, next, 0), "f caught up")
	for i := range watchPage + 1 {
		w.put(t, fmt.Sprint("k", i), 1)
	}
	r := w.ask(t, next, time.Second)
	if len(r.Entries) != watchPage || r.CaughtUp {
		t.Errorf("a page has %d entries, at the end %v", len(r.Entries), r.CaughtUp)
	}
	expect("behind it", w.ask(t, r.Token, 0), fmt.Sprint("k", watchPage, " caught up"))
}

func TestWatchWaits(t *testing.T) {
	w := startWatched(t)
	w.put(t, "a", 1)
	after := w.ask(t, "", 0).Token
	if r := w.ask(t, after, 50*time.Millisecond); w.said(t, r) != "caught up" || r.Token != after {
		t.Errorf("nothing changed, and it says %q at %s", w.said(t, r), r.Token)
	}
	got := make(chan client.WatchReply)
	go func() { got <- w.ask(t, after, client.MaxWait) }()
	w.until(t, "the watch waits", func() (bool, string) {
		s, err := w.js.Stream(testContext(t), projections.BucketStream(projections.BucketReleases))
		if err != nil {
			t.Fatal(err)
		}
		return s.CachedInfo().State.Consumers == 1, ""
	})
	w.put(t, "b", 1)
	select {
	case r := <-got:
		if w.said(t, r) != "b caught up" {
			t.Errorf("b changed, and it says %q", w.said(t, r))
		}
	case <-time.After(client.MaxWait / 2):
		t.Error("it does not hear of what changes while it waits")
	}
}

func (w *watched) until(t *testing.T, what string, ok func() (bool, string)) {
	t.Helper()
	(&whole{}).until(t, what, ok)
}

func TestWatchTokens(t *testing.T) {
	w := startWatched(t)
	ctx := testContext(t)
	w.put(t, "a", 1)
	w.put(t, "b", 1)
	old := w.ask(t, "", 0)
	for _, c := range []struct {
		q    client.WatchRequest
		want string
	}{
		{client.WatchRequest{Bucket: "nodes"}, `there is no view "nodes" to watch: there are [fleet rollouts releases]`},
		{client.WatchRequest{Bucket: "fleet", After: old.Token}, "is of releases and not of fleet"},
		{client.WatchRequest{Bucket: "fleet", After: "fleet.x"}, `"fleet.x" is no token`},
		{client.WatchRequest{Bucket: "fleet", After: "fleet.x.-1"}, "is no token"},
		{client.WatchRequest{Bucket: "fleet", Wait: events.Duration(time.Hour)}, "waits for 0s to 20s, not 1h0m0s"},
		{client.WatchRequest{Bucket: "fleet", Wait: -1}, "waits for 0s to 20s"},
	} {
		_, err := w.api.watchView(ctx, caller{}, c.q)
		wantError(t, err, c.want)
	}
	if err := w.js.DeleteStream(ctx, projections.BucketStream(projections.BucketReleases)); err != nil {
		t.Fatal(err)
	}
	_, err := w.api.watchView(ctx, caller{}, client.WatchRequest{Bucket: projections.BucketReleases})
	if !errors.Is(err, errAgain) {
		t.Errorf("a bucket that is away for the moment: %v", err)
	}
	if err := EnsureStreams(ctx, w.js, StreamOptions{}); err != nil {
		t.Fatal(err)
	}
	w.put(t, "b", 1)
	w.put(t, "c", 1)
	w.put(t, "d", 1)
	if got := w.said(t, w.ask(t, old.Token, client.MaxWait)); got != "reset b c d caught up" {
		t.Errorf("a bucket made anew says %q", got)
	}
	// A bucket that was put back from a backup lacks what the token names.
	now := w.ask(t, "", 0).Token
	if got := w.said(t, w.ask(t, now[:len(now)-1]+"9", 0)); got != "reset b c d caught up" {
		t.Errorf("a bucket that was put back says %q", got)
	}
}

// TestWatchesLeaveRoom: those who wait take no room from commands, one user leaves room
// for others, and one too many is told why.
func TestWatchesLeaveRoom(t *testing.T) {
	w := startServer(t, t.TempDir())
	ctx, cancel := context.WithCancel(testContext(t))
	defer cancel()
	go func() {
		for range client.WatchReleases(ctx, w.client.Conn(), "") {
		}
	}()
	waiting, gate := &w.api.waiting, &w.api.gate
	w.until(t, "the watch waits and takes no room from commands", func() (bool, string) {
		waiting.mu.Lock()
		defer waiting.mu.Unlock()
		gate.mu.Lock()
		defer gate.mu.Unlock()
		return waiting.all == 1 && gate.all == 0, fmt.Sprint(waiting.all, gate.all)
	})
	for range maxUserWaiting - 1 {
		if !waiting.enter(w.client.Conn().User()) {
			t.Fatal("there is no room for so many watches")
		}
	}
	now, err := client.Ask[client.WatchReply](ctx, w.client.Conn(), patience, client.CommandWatch, client.WatchRequest{Bucket: "releases"})
	if err != nil {
		t.Fatal(err)
	}
	_, err = client.Ask[client.WatchReply](ctx, w.client.Conn(), time.Second, client.CommandWatch, client.WatchRequest{Bucket: "releases", After: now.Token, Wait: events.Duration(time.Second)})
	wantError(t, err, "64 commands of yours wait", "try again in a moment")
	other := w.as(t, w.add(t, "view", RoleViewer))
	if _, err := client.Ask[client.WatchReply](ctx, other.Conn(), time.Second, client.CommandWatch, client.WatchRequest{Bucket: "fleet"}); err != nil {
		t.Error("another user:", err)
	}
}

// TestRefusalIsTheRightOnes: a command that the broker refuses does not end a watch on
// the same connection.
func TestRefusalIsTheRightOnes(t *testing.T) {
	w := startServer(t, t.TempDir())
	view := w.as(t, w.add(t, "view", RoleViewer))
	ctx, cancel := context.WithCancel(testContext(t))
	defer cancel()
	changes := make(chan client.Change[projections.ReleaseView], 16)
	ended := make(chan error, 1)
	go func() {
		for ch, err := range client.WatchReleases(ctx, view.Conn(), "") {
			if err != nil {
				ended <- err
				return
			}
			changes <- ch
		}
	}()
	if ch := <-changes; !ch.CaughtUp {
		t.Fatalf("the first is %+v", ch)
	}
	for range 3 {
		_, err := view.Hold(ctx, "1.0.0", "x")
		refused(t, "holding", err, "does not allow release.hold")
	}
	w.addRelease(t, "1.1.0")
	select {
	case ch := <-changes:
		if ch.Key != "1_1_0_amd64" || ch.Value == nil || ch.Value.Version != "1.1.0" || ch.EventSeq == 0 {
			t.Errorf("a release was added, and it says %+v", ch)
		}
	case err := <-ended:
		t.Error("the watch ended:", err)
	}
	// A user who is no longer let in hears it, and does not hang.
	if _, err := w.client.RevokeUser(ctx, "view", ""); err != nil {
		t.Fatal(err)
	}
	refused(t, "watching when revoked", <-ended, "does not let \"view\" in any more")
}
