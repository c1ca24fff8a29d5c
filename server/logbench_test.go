package server

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go/jetstream"

	"noxmesh/events"
)

// BenchmarkLog asks, as a client does, a log of a million events of 5,000 nodes.
// Writing it takes a quarter of a minute where files are in memory, and minutes
// on a disk: TMPDIR=/dev/shm go test ./server -run XXX -bench Log
func BenchmarkLog(b *testing.B) {
	const all, nodes = 1_000_000, 5000
	dir := b.TempDir()
	m := startMesh(b, dir)
	js, err := jetstream.New(m.nc, jetstream.WithPublishAsyncMaxPending(nodes))
	if err != nil {
		b.Fatal(err)
	}
	begin := time.Now().Add(-all * time.Second)
	for i := range all {
		node := fmt.Sprint("node-", i%nodes)
		e := events.New(node, &events.NodeConfirmed{
			Version: fmt.Sprintf("1.%d.0", i/10_000), StartID: uuid.NewString(), Revision: uint64(i / nodes),
			Receipt: events.Receipt{ReportID: uuid.NewString(), NodeTime: begin},
		}, events.Origin{Source: "nox-mesh/bench", Actor: "node:" + node, Cause: uuid.NewString()}, begin.Add(time.Duration(i)*time.Second))
		if _, err := js.PublishAsync(events.EventSubject(events.AggregateNode, node), e.Encode()); err != nil {
			b.Fatal(err)
		}
	}
	<-js.PublishAsyncComplete()
	m.stop(b)
	s, err := Start(b.Context(), Config{DataDir: dir, Listen: "127.0.0.1:0", Logger: testLog(b)})
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = s.Stop() }()
	c, err := Dial(s.URL(), OperatorCredsFile(dir), CAFile(dir))
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	for _, q := range []struct {
		name string
		q    LogRequest
		want int
	}{
		{"node", LogRequest{Node: "node-77"}, all / nodes},
		{"actor and time", LogRequest{Actor: "node:node-78", Since: begin, Until: begin.Add(all / 2 * time.Second)}, all / nodes / 2},
		{"release, first page", LogRequest{Release: "1.50.0", Limit: pageEvents}, pageEvents},
		{"last 100", LogRequest{Last: 100}, 100},
		{"nothing", LogRequest{Type: "halted"}, 0},
	} {
		b.Run(q.name, func(b *testing.B) {
			for b.Loop() {
				n := 0
				if err := c.ReadLog(b.Context(), q.q, false, func(events.Record) error { n++; return nil }); err != nil || n != q.want {
					b.Fatalf("%d events, %v", n, err)
				}
			}
		})
	}
}
