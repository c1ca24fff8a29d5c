package eventstest

import (
	"context"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"noxmesh/events"
)

// DefaultTimeout bounds waits.
const DefaultTimeout = 10 * time.Second

// Log is a log that ends with its test. It has the streams EVENTS and HEARTBEATS.
type Log struct {
	*events.Log
	JS jetstream.JetStream // its broker
}

// NewLog starts a broker inside of the test, with its data in a directory of the
// test's.
func NewLog(t testing.TB) *Log {
	t.Helper()
	s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT, JetStream: true, StoreDir: t.TempDir(), NoSigs: true, NoLog: true})
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() {
		s.Shutdown()
		s.WaitForShutdown()
	})
	if !s.ReadyForConnections(DefaultTimeout) {
		t.Fatalf("the broker does not answer within %s", DefaultTimeout)
	}
	nc, err := nats.Connect(s.ClientURL(), nats.InProcessServer(s))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), DefaultTimeout)
	defer cancel()
	for _, c := range []jetstream.StreamConfig{
		{Name: events.StreamEvents, Subjects: []string{"mesh.event.*.*"}, Discard: jetstream.DiscardNew, DenyDelete: true, DenyPurge: true},
		{Name: events.StreamHeartbeats, Subjects: []string{events.HeartbeatSubject("*")}},
	} {
		if _, err := js.CreateStream(ctx, c); err != nil {
			t.Fatal(err)
		}
	}
	return &Log{Log: events.NewLog(js), JS: js}
}

// Write appends an event about an aggregate, behind whatever is there, and gives
// its sequence.
func (l *Log) Write(t testing.TB, subject string, fact events.Fact) uint64 {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), DefaultTimeout)
	defer cancel()
	e := events.New(subject, fact, events.Origin{Source: "eventstest", Actor: "test", Cause: t.Name()}, time.Now())
	on, err := e.StreamSubject()
	if err != nil {
		t.Fatal(err)
	}
	_, last, err := l.Last(ctx, on)
	if err != nil {
		t.Fatal(err)
	}
	seq, err := l.Append(ctx, e, last)
	if err != nil {
		t.Fatal(err)
	}
	return seq
}
