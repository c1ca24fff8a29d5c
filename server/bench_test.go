package server

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"noxmesh/events"
	"noxmesh/projections"
)

// measure is one line of dist/bench.json. Ratio is value to baseline, each in
// unit, measured in the same run.
type measure struct {
	Name     string  `json:"name"`
	Value    float64 `json:"value"`
	Unit     string  `json:"unit"`
	Baseline float64 `json:"baseline"`
	Ratio    float64 `json:"ratio"`
	About    string  `json:"about"`
}

// bench is a log of a year and what was measured on it.
type bench struct {
	t      *testing.T
	dir    string
	events int
	nodes  int
	out    []measure
}

// TestBench measures; make bench runs it. The first measure is the one that
// everything else rests on.
func TestBench(t *testing.T) {
	file := os.Getenv("NOX_MESH_BENCH")
	if file == "" {
		t.Skip("measures for minutes: make bench")
	}
	n, err := strconv.Atoi(os.Getenv("NOX_MESH_BENCH_EVENTS"))
	if err != nil {
		t.Fatalf("NOX_MESH_BENCH_EVENTS: %v", err)
	}
	b := &bench{t: t, dir: t.TempDir(), events: n, nodes: 2000}
	b.write()
	b.replay()
	b.state()
	b.start()
	b.query()
	b.append()
	raw, err := json.MarshalIndent(b.out, "", "  ")
	b.must(err)
	b.must(os.WriteFile(file, append(raw, '\n'), 0o644))
	b.must(os.WriteFile(strings.TrimSuffix(file, ".json")+".md", []byte(b.table()), 0o644))
}

// table is what docs/performance.md has of the measures.
func (b *bench) table() string {
	var out strings.Builder
	fmt.Fprintf(&out, "%d events of %d nodes; %d CPUs, %s, %s.\n\n| measure | value | baseline | ratio | what |\n|---|---|---|---|---|\n",
		b.events, b.nodes, runtime.NumCPU(), runtime.Version(), time.Now().UTC().Format(time.DateOnly))
	for _, m := range b.out {
		fmt.Fprintf(&out, "| %s | %s %s | %s | %.2f | %s |\n", m.Name, number(m.Value), m.Unit, number(m.Baseline), m.Ratio, m.About)
	}
	return out.String()
}

// number has three digits that count, or more before the point.
func number(v float64) string {
	if v >= 100 {
		return strconv.FormatFloat(v, 'f', 0, 64)
	}
	return strconv.FormatFloat(v, 'g', 3, 64)
}

func (b *bench) say(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "%s  %s\n", time.Now().Format(time.TimeOnly), fmt.Sprintf(format, args...))
}

func (b *bench) add(m measure) {
	m.Ratio = m.Value / m.Baseline
	b.out = append(b.out, m)
	b.say("%-22s %12.2f %-12s baseline %12.2f  ratio %.3f", m.Name, m.Value, m.Unit, m.Baseline, m.Ratio)
}

func (b *bench) must(err error) {
	b.t.Helper()
	if err != nil {
		b.t.Fatal(err)
	}
}

// write fills the log.
func (b *bench) write() {
	b.say("writing %d events of %d nodes", b.events, b.nodes)
	id, err := LoadOrCreateIdentity(b.dir)
	b.must(err)
	broker, err := StartBroker(BrokerConfig{DataDir: b.dir, Listen: "127.0.0.1:0", Identity: id, Logger: testLog(b.t), Unsynced: true})
	b.must(err)
	m := &mesh{dir: b.dir, identity: id, broker: broker}
	defer m.stop(b.t)
	m.nc, err = broker.Connect(b.t.Context())
	b.must(err)
	js, err := jetstream.New(m.nc, jetstream.WithPublishAsyncMaxPending(4096))
	b.must(err)
	b.must(EnsureStreams(b.t.Context(), js, StreamOptions{}))
	for e := range fleetYear(b.events, b.nodes) {
		subject, err := e.StreamSubject()
		b.must(err)
		_, err = js.PublishAsync(subject, e.Encode(), jetstream.WithStallWait(time.Minute))
		b.must(err)
	}
	<-js.PublishAsyncComplete()
}

const rounds = 5

// median of how long each of some things takes, taking turns.
func (b *bench) median(fns ...func()) []time.Duration {
	took := make([][]time.Duration, len(fns))
	for range rounds {
		for i, fn := range fns {
			runtime.GC()
			begin := time.Now()
			fn()
			took[i] = append(took[i], time.Since(begin))
		}
	}
	out := make([]time.Duration, len(fns))
	for i := range took {
		slices.Sort(took[i])
		out[i] = took[i][rounds/2]
	}
	return out
}

func (b *bench) perSecond(d time.Duration) float64 { return float64(b.events) / d.Seconds() }

// replay folds the whole log into the three projections, against an ordered
// consumer that only counts.
func (b *bench) replay() {
	m := startMesh(b.t, b.dir)
	defer m.stop(b.t)
	log := events.NewLog(m.js)
	bare := func() {
		cons, err := m.js.OrderedConsumer(b.t.Context(), events.StreamEvents, jetstream.OrderedConsumerConfig{})
		b.must(err)
		messages, err := cons.Messages()
		b.must(err)
		defer messages.Stop()
		for range b.events {
			_, err := messages.Next()
			b.must(err)
		}
	}
	reader := func() {
		n := 0
		b.must(events.ReadBatches(b.t.Context(), m.js, events.StreamEvents, events.ReadOptions{}, func(batch []events.Message) error {
			n += len(batch)
			return nil
		}))
		if n != b.events {
			b.t.Fatalf("read %d events", n)
		}
	}
	fold := func() {
		mesh := projections.NewMesh()
		b.must(log.Read(b.t.Context(), events.ReadOptions{}, mesh.ApplyEvent))
		if mesh.EventSeq != uint64(b.events) {
			b.t.Fatalf("folded %d events", mesh.EventSeq)
		}
	}
	took := b.median(bare, fold, reader)
	b.add(measure{Name: "replay", Unit: "events/s", Value: b.perSecond(took[1]), Baseline: b.perSecond(took[0]),
		About: "full replay into fleet, rollouts and releases; baseline: a bare ordered consumer of the client library over the same stream"})
	b.add(measure{Name: "replay_own_reader", Unit: "events/s", Value: b.perSecond(took[1]), Baseline: b.perSecond(took[2]),
		About: "the same; baseline: this program's own reader of streams, which pulls more at a time, without decoding and folding"})
}

// state says how much memory and disk a node's share of the state takes.
func (b *bench) state() {
	m := startMesh(b.t, b.dir)
	defer m.stop(b.t)
	heap := func() float64 {
		runtime.GC()
		var s runtime.MemStats
		runtime.ReadMemStats(&s)
		return float64(s.HeapAlloc)
	}
	stream, err := m.js.Stream(b.t.Context(), events.StreamEvents)
	b.must(err)
	stored := float64(stream.CachedInfo().State.Bytes)
	log := events.NewLog(m.js)
	before := heap()
	mesh := projections.NewMesh()
	b.must(log.Read(b.t.Context(), events.ReadOptions{}, mesh.ApplyEvent))
	folded := heap() - before
	index := projections.NewIndex()
	before = heap()
	b.must(log.Read(b.t.Context(), events.ReadOptions{}, index.Apply))
	indexed := heap() - before
	nodes := float64(b.nodes)
	b.add(measure{Name: "state", Unit: "bytes/node", Value: folded / nodes, Baseline: stored / nodes,
		About: fmt.Sprintf("memory of the three projections for each node, %d rollouts over all nodes included; baseline: its share of the log on disk", len(mesh.Rollouts))})
	b.add(measure{Name: "index", Unit: "bytes/event", Value: indexed / float64(b.events), Baseline: stored / float64(b.events),
		About: "memory of the index; baseline: an event on disk"})
	var snapshot bytes.Buffer
	begin := time.Now()
	b.must(mesh.Encode(&snapshot))
	columns, err := index.MarshalBinary()
	b.must(err)
	took := time.Since(begin)
	begin = time.Now()
	_, err = projections.DecodeMesh(&snapshot)
	b.must(err)
	b.must(projections.NewIndex().UnmarshalBinary(columns))
	b.add(measure{Name: "snapshot", Unit: "ms", Value: took.Seconds() * 1000, Baseline: time.Since(begin).Seconds() * 1000,
		About: "for as long the fold stands still while a snapshot is taken, once a minute at most; baseline: reading it back"})
	runtime.KeepAlive(mesh)
}

// start starts a whole server on the log, with a snapshot and without.
func (b *bench) start() {
	run := func() *Server {
		s, err := Start(b.t.Context(), Config{DataDir: b.dir, Listen: "127.0.0.1:0", Logger: testLog(b.t)})
		b.must(err)
		return s
	}
	b.must(run().Stop()) // makes the first keys
	timed := func(before func()) (sum float64) {
		const times = 3
		for range times {
			before()
			begin := time.Now()
			s := run()
			sum += time.Since(begin).Seconds() / times
			b.must(s.Stop())
		}
		return sum
	}
	with := timed(func() {})
	without := timed(func() { b.must(os.RemoveAll(filepath.Join(b.dir, "projections"))) })
	b.add(measure{Name: "start", Unit: "s", Value: with, Baseline: without,
		About: "from nothing to serving, with a snapshot; baseline: without one"})
	var size int64
	b.must(filepath.WalkDir(filepath.Join(b.dir, "projections"), func(_ string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			info, err := d.Info()
			b.must(err)
			size += info.Size()
		}
		return err
	}))
	b.say("the snapshot has %d bytes", size)
}

// query asks for everything about one node.
func (b *bench) query() {
	s, err := Start(b.t.Context(), Config{DataDir: b.dir, Listen: "127.0.0.1:0", Logger: testLog(b.t)})
	b.must(err)
	defer func() { b.must(s.Stop()) }()
	c, err := Dial(s.URL(), OperatorCredsFile(b.dir), CAFile(b.dir))
	b.must(err)
	defer c.Close()
	ctx, node, found := context.Background(), "node-00077", 0
	ask := func() {
		found = 0
		b.must(c.ReadLog(ctx, LogRequest{Node: node}, false, func(events.Record) error { found++; return nil }))
	}
	bare := func() {
		n := 0
		b.must(events.ReadStream(ctx, s.api.js, events.StreamEvents, events.ReadOptions{Subjects: []string{
			events.EventSubject(events.AggregateNode, node), events.EventSubject(events.AggregateDeclaration, node),
		}}, func(events.Message) error { n++; return nil }))
		if n != found {
			b.t.Fatalf("the index finds %d events and the broker %d", found, n)
		}
	}
	begin := time.Now()
	ask()
	first := time.Since(begin)
	// The broker reads whole blocks, and forgets them when memory is collected.
	// Warm is what a person who looks around meets.
	warm := func(fn func()) time.Duration {
		var took []time.Duration
		for range 4 * rounds {
			begin := time.Now()
			fn()
			took = append(took, time.Since(begin))
		}
		took = took[len(took)/2:]
		slices.Sort(took)
		return took[len(took)/2]
	}
	ours, broker := warm(ask), warm(bare)
	b.add(measure{Name: "query_by_node", Unit: "ms", Value: ours.Seconds() * 1000, Baseline: broker.Seconds() * 1000,
		About: fmt.Sprintf("all %d events of one node, warm, as a client asks; baseline: a consumer of the broker on the node's subjects, inside the server, as warm", found)})
	b.add(measure{Name: "query_by_node_first", Unit: "ms", Value: first.Seconds() * 1000, Baseline: ours.Seconds() * 1000,
		About: "the first such question after a start; baseline: the same, warm"})
}

// append writes events one after the other, each on the disk before the next.
func (b *bench) append() {
	m := startMesh(b.t, b.t.TempDir())
	defer m.stop(b.t)
	log := events.NewLog(m.js)
	var list []events.Event
	for e := range fleetYear(4000, 1000) {
		list = append(list, e)
	}
	half := len(list) / 2
	one := func(list []events.Event, write func(e events.Event, subject string) error) float64 {
		begin := time.Now()
		for _, e := range list {
			subject, err := e.StreamSubject()
			b.must(err)
			b.must(write(e, subject))
		}
		return float64(len(list)) / time.Since(begin).Seconds()
	}
	last := map[string]uint64{}
	ours := one(list[:half], func(e events.Event, subject string) error {
		seq, err := log.Append(b.t.Context(), e, last[subject])
		last[subject] = seq
		return err
	})
	bare := one(list[half:], func(e events.Event, subject string) error {
		_, err := m.js.Publish(b.t.Context(), subject, bytes.Clone(e.Encode()))
		return err
	})
	b.add(measure{Name: "append", Unit: "events/s", Value: ours, Baseline: bare,
		About: "events appended one by one with the expected sequence, each acknowledged when it is on the disk; baseline: plain publishes to the same stream"})
}
