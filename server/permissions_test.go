package server

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"noxmesh/events"
)

// populated is a mesh in which node "other" has a heartbeat, a report and a
// declaration, node "self" a declaration, and one package part is stored.
func populated(t *testing.T) *mesh {
	t.Helper()
	m := startMesh(t, t.TempDir())
	ctx := testContext(t)
	declare(t, m, "other", 1, 0)
	declare(t, m, "self", 1, 0)
	for _, s := range []string{events.HeartbeatSubject("other"), events.ReportSubject("other", events.ReportConfirmed)} {
		if _, err := m.js.Publish(ctx, s, []byte("other's")); err != nil {
			t.Fatal(err)
		}
	}
	store, err := m.js.ObjectStore(ctx, events.BucketPackages)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := store.PutBytes(ctx, "part", []byte("content")); err != nil {
		t.Fatal(err)
	}
	waitDeclared(t, m, "self", "other")
	return m
}

// streamStates is what every stream holds, to compare before and after.
func streamStates(t *testing.T, m *mesh) string {
	t.Helper()
	ctx := testContext(t)
	var all strings.Builder
	list := m.js.ListStreams(ctx)
	for s := range list.Info() {
		fmt.Fprintf(&all, "%s: %d messages, first %d, last %d, %d consumers, deny purge %v\n",
			s.Config.Name, s.State.Msgs, s.State.FirstSeq, s.State.LastSeq, s.State.Consumers, s.Config.DenyPurge)
	}
	if err := list.Err(); err != nil {
		t.Fatal(err)
	}
	return all.String()
}

// refused waits for the broker's word: a denial is silent but for this.
func (u *user) refused(t *testing.T, verb, subject string) {
	t.Helper()
	if err := u.Flush(); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-u.denied:
		want := fmt.Sprintf("permissions violation for %s to %q", verb, subject)
		if !errors.Is(err, nats.ErrPermissionViolation) || !strings.Contains(strings.ToLower(err.Error()), strings.ToLower(want)) {
			t.Errorf("got %q, want %q", err, want)
		}
	case <-time.After(patience):
		t.Errorf("%s to %s was not refused", verb, subject)
	}
}

func TestNodeMayNotPublish(t *testing.T) {
	m := populated(t)
	u := connectNode(t, m, "self")
	before := streamStates(t, m)
	for _, tt := range []struct{ what, subject, payload string }{
		{"another's heartbeat", "mesh.heartbeat.other", ""},
		{"the mesh's pulse", events.HeartbeatSubject(events.PulseID), ""},
		{"a heartbeat below its own", "mesh.heartbeat.self.x", ""},
		{"another's report", "mesh.report.other.confirmed", ""},
		{"a report below its own", "mesh.report.self.confirmed.x", ""},
		{"a report of no kind there is", "mesh.report.self.no-such-kind", ""},
		{"a report of every kind", "mesh.report.self.*", ""},
		{"an event about itself", "mesh.event.node.self", ""},
		{"a declaration event", "mesh.event.declaration.self", ""},
		{"a rollout event", "mesh.event.rollout.r", ""},
		{"a release event", "mesh.event.release.r", ""},
		{"its own stored declaration", "mesh.declared.self", ""},
		{"another's stored declaration", "mesh.declared.other", ""},
		{"its own declaration", "mesh.declaration.self", ""},
		{"another's declaration", "mesh.declaration.other", ""},
		{"asking the mesh as an operator", "mesh.api.operator.release.add", ""},
		{"asking the mesh as itself", "mesh.api.self.release.add", ""},
		{"a key of a tool's bucket", "$KV.fleet.other", ""},
		{"a key of its own", "$KV.fleet.self", ""},
		{"a package's description", "$O.packages.M.x", "{}"},
		{"a package's content", "$O.packages.C.x", "x"},
		{"bare Direct Get of declarations", "$JS.API.DIRECT.GET.DECLARATIONS", `{"last_by_subj":"mesh.declared.other"}`},
		{"bare Direct Get of its own", "$JS.API.DIRECT.GET.DECLARATIONS", `{"last_by_subj":"mesh.declared.self"}`},
		{"bare Direct Get of packages", "$JS.API.DIRECT.GET.OBJ_packages", `{"seq":1}`},
		{"bare Direct Get of events", "$JS.API.DIRECT.GET.EVENTS", `{"seq":1}`},
		{"Direct Get of another's declaration", "$JS.API.DIRECT.GET.DECLARATIONS.mesh.declared.other", ""},
		{"Direct Get of any declaration", "$JS.API.DIRECT.GET.DECLARATIONS.mesh.declared.>", ""},
		{"Direct Get of every declaration", "$JS.API.DIRECT.GET.DECLARATIONS.>", ""},
		{"Direct Get of an event", "$JS.API.DIRECT.GET.EVENTS.mesh.event.declaration.self", ""},
		{"Direct Get of a heartbeat", "$JS.API.DIRECT.GET.HEARTBEATS.mesh.heartbeat.other", ""},
		{"Direct Get of a key", "$JS.API.DIRECT.GET.KV_fleet.$KV.fleet.other", ""},
		{"a message of the log", "$JS.API.STREAM.MSG.GET.EVENTS", `{"seq":1}`},
		{"a message of declarations", "$JS.API.STREAM.MSG.GET.DECLARATIONS", `{"seq":1}`},
		{"the account", "$JS.API.INFO", ""},
		{"a stream's description", "$JS.API.STREAM.INFO.EVENTS", ""},
		{"the packages' description", "$JS.API.STREAM.INFO.OBJ_packages", ""},
		{"the list of streams", "$JS.API.STREAM.LIST", ""},
		{"the names of streams", "$JS.API.STREAM.NAMES", ""},
		{"a new stream", "$JS.API.STREAM.CREATE.MINE", `{"name":"MINE","subjects":["mine"]}`},
		{"changing a stream", "$JS.API.STREAM.UPDATE.EVENTS", `{"name":"EVENTS","max_msgs":1}`},
		{"deleting a stream", "$JS.API.STREAM.DELETE.EVENTS", ""},
		{"purging a stream", "$JS.API.STREAM.PURGE.OBJ_packages", ""},
		{"deleting a message", "$JS.API.STREAM.MSG.DELETE.OBJ_packages", `{"seq":1}`},
		{"a snapshot", "$JS.API.STREAM.SNAPSHOT.EVENTS", `{"deliver_subject":"_INBOX.node.self.x"}`},
		{"a consumer of the log", "$JS.API.CONSUMER.CREATE.EVENTS", `{"stream_name":"EVENTS","config":{"deliver_subject":"_INBOX.node.self.x"}}`},
		{"a consumer of declarations", "$JS.API.CONSUMER.CREATE.DECLARATIONS.x.mesh.declared.self", `{"stream_name":"DECLARATIONS","config":{"name":"x","filter_subject":"mesh.declared.self"}}`},
		{"a consumer of packages", "$JS.API.CONSUMER.CREATE.OBJ_packages", `{"stream_name":"OBJ_packages","config":{"deliver_subject":"mesh.event.node.self"}}`},
		{"a consumer's messages", "$JS.API.CONSUMER.MSG.NEXT.EVENTS.x", ""},
		{"an acknowledgement", "$JS.ACK.EVENTS.x.1.1.1.1.0", ""},
		{"the system account", "$SYS.REQ.SERVER.PING", ""},
		{"another's inbox", "_INBOX.node.other.x", ""},
		{"its own inbox", "_INBOX.node.self.x", ""},
		{"an inbox of the default prefix", "_INBOX.x", ""},
	} {
		t.Run(tt.what, func(t *testing.T) {
			if err := u.PublishRequest(tt.subject, events.InboxPrefix("node", "self")+".reply", []byte(tt.payload)); err != nil {
				t.Fatal(err)
			}
			u.refused(t, "Publish", tt.subject)
		})
	}
	if after := streamStates(t, m); after != before {
		t.Errorf("streams were\n%sand are\n%s", before, after)
	}
}

func TestNodeMayNotSubscribe(t *testing.T) {
	m := populated(t)
	u := connectNode(t, m, "self")
	for _, subject := range []string{
		">", "*", "mesh.>", "*.declaration.self", "mesh.declaration.*", "mesh.declaration.>", "mesh.declaration.other", "mesh.declared.self",
		"mesh.heartbeat.>", "mesh.heartbeat.other", "mesh.report.>", "mesh.event.>", "mesh.api.>", "$KV.>", "$O.>", "$JS.>", "$JS.API.>",
		"_INBOX.>", "_INBOX.*", "_INBOX.node.>", "_INBOX.node.*.x", "_INBOX.node.other.>", "_INBOX.user.>", "_INBOX.user.operator.x", "_R_.>", "$SYS.>",
	} {
		t.Run(subject, func(t *testing.T) {
			if _, err := u.SubscribeSync(subject); err != nil {
				t.Fatal(err)
			}
			u.refused(t, "Subscription", subject)
		})
	}
}

// On its own subjects a node may say what it likes, but not how it is kept.
func TestNodeMayNotSteerStreams(t *testing.T) {
	m := populated(t)
	js, err := jetstream.New(connectNode(t, m, "self").Conn)
	if err != nil {
		t.Fatal(err)
	}
	before := streamStates(t, m)
	for _, tt := range []struct{ subject, header, value string }{
		{events.HeartbeatSubject("self"), "Nats-Rollup", "all"},
		{events.HeartbeatSubject("self"), "Nats-Rollup", "sub"},
		{events.ReportSubject("self", events.ReportConfirmed), "Nats-Rollup", "all"},
		{events.HeartbeatSubject("self"), "Nats-TTL", "1s"},
		{events.ReportSubject("self", events.ReportConfirmed), "Nats-TTL", "1s"},
		{events.ReportSubject("self", events.ReportConfirmed), "Nats-Incr", "1"},
		{events.ReportSubject("self", events.ReportConfirmed), "Nats-Schedule", "@at 2030-01-01T00:00:00Z"},
		{events.ReportSubject("self", events.ReportConfirmed), "Nats-Expected-Stream", events.StreamEvents},
	} {
		t.Run(tt.header+" "+tt.subject, func(t *testing.T) {
			msg := nats.NewMsg(tt.subject)
			msg.Header.Set(tt.header, tt.value)
			if tt.header == "Nats-Schedule" {
				msg.Header.Set("Nats-Schedule-Target", events.EventSubject(events.AggregateNode, "other"))
			}
			ack, err := js.PublishMsg(testContext(t), msg)
			var api *jetstream.APIError
			if !errors.As(err, &api) {
				t.Errorf("acknowledged as %+v, %v; want a refusal", ack, err)
			}
		})
	}
	big := strings.Repeat("x", events.MaxHeartbeat+headerRoom+1)
	if _, err := js.Publish(testContext(t), events.HeartbeatSubject("self"), []byte(big)); err == nil {
		t.Error("a heartbeat over the limit was acknowledged")
	}
	if after := streamStates(t, m); after != before {
		t.Errorf("streams were\n%sand are\n%s", before, after)
	}
}

func TestNodeMay(t *testing.T) {
	m := populated(t)
	ctx := testContext(t)
	u := connectNode(t, m, "self")
	js, err := jetstream.New(u.Conn)
	if err != nil {
		t.Fatal(err)
	}
	get := func(subject string) []byte {
		t.Helper()
		msg, err := u.RequestWithContext(ctx, subject, nil)
		if err != nil {
			t.Fatalf("%s: %v", subject, err)
		}
		if status := msg.Header.Get("Status"); status != "" {
			t.Fatalf("%s: %s %s", subject, status, msg.Header.Get("Description"))
		}
		return msg.Data
	}
	ack, err := js.Publish(ctx, events.ReportSubject("self", events.ReportRefused), []byte("report"))
	if err != nil || ack.Stream != events.StreamReports {
		t.Errorf("own report: %+v %v", ack, err)
	}
	// A heartbeat is sent and forgotten; the acknowledged one behind it shows
	// that it was stored.
	if err := u.Publish(events.HeartbeatSubject("self"), []byte("beat")); err != nil {
		t.Fatal(err)
	}
	if _, err := js.Publish(ctx, events.HeartbeatSubject("self"), []byte("beat")); err != nil {
		t.Error("own heartbeat:", err)
	}
	var beats int
	for _, msg := range readAll(t, m, events.StreamHeartbeats) {
		if msg.Subject == events.HeartbeatSubject("self") {
			beats++
		}
	}
	if beats != 2 {
		t.Errorf("%d heartbeats are stored, want 2", beats)
	}
	e, err := events.Decode(get(directGet(events.StreamDeclarations, events.DeclaredSubject("self"))))
	if err != nil || e.Subject != "self" {
		t.Errorf("own declaration: %+v %v", e, err)
	}
	object := base64.URLEncoding.EncodeToString([]byte("part"))
	meta := get("$JS.API.DIRECT.GET.OBJ_packages.$O.packages.M." + object)
	if !strings.Contains(string(meta), `"name":"part"`) {
		t.Errorf("a part's description: %s", meta)
	}
	select {
	case err := <-u.denied:
		t.Error("refused along the way:", err)
	default:
	}
}

// fence waits until the broker has carried out everything that u published
// before, and everything that this led to.
func fence(ctx context.Context, t *testing.T, u *user) {
	t.Helper()
	js, err := jetstream.New(u.Conn)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []string{events.HeartbeatSubject("self"), events.ReportSubject("self", events.ReportConfirmed)} {
		if _, err := js.Publish(ctx, s, []byte("fence")); err != nil {
			t.Fatal(err)
		}
	}
	for _, s := range []string{
		directGet(events.StreamDeclarations, events.DeclaredSubject("self")),
		directGet(events.StreamPackages, "$O.packages.M.x"),
	} {
		if _, err := u.RequestWithContext(ctx, s, nil); err != nil {
			t.Fatal(err)
		}
	}
}
