package server

import (
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"noxmesh/events"
)

func TestEnsureStreamsTwice(t *testing.T) {
	m := startMesh(t, t.TempDir())
	if err := EnsureStreams(testContext(t), m.js, StreamOptions{}); err != nil {
		t.Error("streams it made itself:", err)
	}
	err := EnsureStreams(testContext(t), m.js, StreamOptions{HeartbeatAge: 48 * time.Hour})
	wantError(t, err, events.StreamHeartbeats, "max_age must be 48h0m0s and is 24h0m0s")
}

func TestStreamOptionsAreChecked(t *testing.T) {
	for _, o := range []StreamOptions{{Replicas: -1}, {Replicas: 6}, {HeartbeatAge: time.Second}} {
		if err := EnsureStreams(t.Context(), nil, o); err == nil {
			t.Errorf("%+v passed", o)
		}
	}
}

// Each stream made a little differently is refused, named, and left as it is.
func TestDifferentStreamIsRefused(t *testing.T) {
	m := startBroker(t, t.TempDir(), RevokedKeys{})
	opts, err := StreamOptions{}.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name   string
		stream string
		change func(*jetstream.StreamConfig)
		want   string
	}{
		{"purge allowed", events.StreamEvents, func(c *jetstream.StreamConfig) { c.DenyPurge = false }, "deny_purge must be true and is false"},
		{"delete allowed", events.StreamEvents, func(c *jetstream.StreamConfig) { c.DenyDelete = false }, "deny_delete must be true and is false"},
		{"rollup", events.StreamEvents, func(c *jetstream.StreamConfig) { c.AllowRollup, c.DenyPurge = true, false }, "allow_rollup_hdrs must be false and is true"},
		{"message ttl", events.StreamEvents, func(c *jetstream.StreamConfig) { c.AllowMsgTTL = true }, "allow_msg_ttl must be false and is true"},
		{"discard old", events.StreamEvents, func(c *jetstream.StreamConfig) { c.Discard = jetstream.DiscardOld }, `discard must be "new" and is "old"`},
		{"limit", events.StreamEvents, func(c *jetstream.StreamConfig) { c.MaxMsgs = 1000 }, "max_msgs must be -1 and is 1000"},
		{"age", events.StreamEvents, func(c *jetstream.StreamConfig) { c.MaxAge = time.Hour }, "max_age must be 0s and is 1h0m0s"},
		{"in memory", events.StreamEvents, func(c *jetstream.StreamConfig) { c.Storage = jetstream.MemoryStorage }, `storage must be "file" and is "memory"`},
		{"wide subject", events.StreamEvents, func(c *jetstream.StreamConfig) { c.Subjects = []string{"mesh.event.>"} }, `subjects must be ["mesh.event.rollout.*"`},
		{"work queue", events.StreamReports, func(c *jetstream.StreamConfig) { c.Retention = jetstream.WorkQueuePolicy }, `retention must be "limits" and is "workqueue"`},
		{"unbounded reports", events.StreamReports, func(c *jetstream.StreamConfig) { c.MaxBytes = -1 }, "max_bytes must be 1073741824 and is -1"},
		{"no republish", events.StreamDeclarations, func(c *jetstream.StreamConfig) { c.RePublish = nil }, "republish must be"},
		{"other source", events.StreamDeclarations, func(c *jetstream.StreamConfig) {
			c.Sources = []*jetstream.StreamSource{{Name: events.StreamEvents, FilterSubject: "mesh.event.declaration.a"}}
		}, "sources must be"},
		{"synchronous heartbeats", events.StreamHeartbeats, func(c *jetstream.StreamConfig) { c.PersistMode = jetstream.DefaultPersistMode }, "persist_mode must be"},
		{"packages without direct", events.StreamPackages, func(c *jetstream.StreamConfig) { c.AllowDirect = false }, "allow_direct must be true and is false"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ctx := testContext(t)
			var made []string
			for _, c := range streamConfigs(opts) {
				if c.Name == tt.stream {
					tt.change(&c)
				}
				if _, err := m.js.CreateStream(ctx, c); err != nil {
					t.Fatal(err)
				}
				made = append(made, c.Name)
			}
			before, err := m.js.Stream(ctx, tt.stream)
			if err != nil {
				t.Fatal(err)
			}
			wantError(t, EnsureStreams(ctx, m.js, StreamOptions{}), "stream "+tt.stream, tt.want, "nothing was changed")
			after, err := m.js.Stream(ctx, tt.stream)
			if err != nil {
				t.Fatal(err)
			}
			if diffs := configDiffs(before.CachedInfo().Config, after.CachedInfo().Config); len(diffs) > 0 {
				t.Error("the stream was changed:", diffs)
			}
			for _, name := range made {
				if err := m.js.DeleteStream(ctx, name); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

func TestMissingLogIsRefused(t *testing.T) {
	m := startMesh(t, t.TempDir())
	ctx := testContext(t)
	if err := m.js.DeleteStream(ctx, events.StreamEvents); err != nil {
		t.Fatal(err)
	}
	wantError(t, EnsureStreams(ctx, m.js, StreamOptions{}), events.StreamEvents, "gone", "backup")
	if _, err := m.js.Stream(ctx, events.StreamEvents); !errors.Is(err, jetstream.ErrStreamNotFound) {
		t.Error("an empty log was made:", err)
	}
}

func TestLogOf01GetsLaterSubjects(t *testing.T) {
	m := startBroker(t, t.TempDir(), RevokedKeys{})
	ctx := testContext(t)
	if err := jetstreamAnswers(ctx, m.js); err != nil {
		t.Fatal(err)
	}
	opts, _ := StreamOptions{}.withDefaults()
	old := streamConfigs(opts)[0]
	for _, tt := range []struct {
		subjects []string
		ok       bool
	}{
		{old.Subjects[:4], true},
		{old.Subjects[:3], false},
		{old.Subjects[:5], false},
		{append([]string{"other"}, old.Subjects[1:4]...), false},
	} {
		c := old
		c.Subjects = tt.subjects
		if _, err := m.js.CreateOrUpdateStream(ctx, c); err != nil {
			t.Fatal(err)
		}
		err := EnsureStreams(ctx, m.js, StreamOptions{})
		if tt.ok && err != nil {
			t.Errorf("%v: %v", tt.subjects, err)
		} else if !tt.ok {
			wantError(t, err, "stream EVENTS is not what it must be", "subjects")
		}
	}
}

// Not even the mesh itself can take anything out of the log.
func TestLogCannotBeRewritten(t *testing.T) {
	m := startMesh(t, t.TempDir())
	ctx := testContext(t)
	seq := declare(t, m, "a", 1, 0)
	log, err := m.js.Stream(ctx, events.StreamEvents)
	if err != nil {
		t.Fatal(err)
	}
	subject := events.EventSubject(events.AggregateDeclaration, "a")
	withHeader := func(key, value string) error {
		msg := nats.NewMsg(subject)
		msg.Header.Set(key, value)
		msg.Data = []byte("x")
		_, err := m.js.PublishMsg(ctx, msg)
		return err
	}
	c := log.CachedInfo().Config
	c.DenyPurge = false
	_, updateErr := m.js.UpdateStream(ctx, c)
	for what, err := range map[string]error{
		"purge":                   log.Purge(ctx),
		"delete":                  log.DeleteMsg(ctx, seq),
		"secure delete":           log.SecureDeleteMsg(ctx, seq),
		"rollup":                  withHeader("Nats-Rollup", "sub"),
		"rollup of all":           withHeader("Nats-Rollup", "all"),
		"message ttl":             withHeader("Nats-TTL", "1s"),
		"taking the denial away":  updateErr,
		"subject of no aggregate": func() error { _, err := m.js.Publish(ctx, "mesh.event.other.a", nil); return err }(),
	} {
		if err == nil {
			t.Errorf("%s was allowed", what)
		}
	}
	if all := readAll(t, m, events.StreamEvents); len(all) != 1 || all[0].Seq != seq {
		t.Errorf("the log is now %v", all)
	}
}

func TestDeclarationReachesItsNode(t *testing.T) {
	m := startMesh(t, t.TempDir())
	ctx := testContext(t)
	node := connectNode(t, m, "a")
	sub, err := node.SubscribeSync(events.DeclarationSubject("a"))
	if err != nil {
		t.Fatal(err)
	}
	if err := node.FlushWithContext(ctx); err != nil {
		t.Fatal(err)
	}
	declare(t, m, "b", 1, 0)
	first := declare(t, m, "a", 1, 0)
	declare(t, m, "a", 2, first)
	for want := uint64(1); want <= 2; want++ {
		msg, err := sub.NextMsgWithContext(ctx)
		if err != nil {
			t.Fatal(err)
		}
		checkDeclared(t, msg, "a", want)
	}
	msg, err := node.RequestWithContext(ctx, directGet(events.StreamDeclarations, events.DeclaredSubject("a")), nil)
	if err != nil {
		t.Fatal(err)
	}
	checkDeclared(t, msg, "a", 2)
	if n := len(readAll(t, m, events.StreamDeclarations)); n != 2 {
		t.Errorf("%d declarations are kept, want the newest of 2 nodes", n)
	}
}

func checkDeclared(t *testing.T, msg *nats.Msg, node string, revision uint64) {
	t.Helper()
	e, err := events.Decode(msg.Data)
	if err != nil {
		t.Fatalf("%v %q: %v", msg.Header, msg.Data, err)
	}
	f, err := e.Fact()
	if err != nil {
		t.Fatal(err)
	}
	if d, ok := f.(*events.Declared); !ok || d.Node != node || d.Revision != revision || e.Subject != node {
		t.Errorf("got %+v, want revision %d of %s", f, revision, node)
	}
	if msg.Header.Get("Nats-Stream-Source") == "" {
		t.Errorf("the origin's sequence is not in the header %v", msg.Header)
	}
}
