package projections_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	"noxmesh/events"
	"noxmesh/projections"
)

// anyFact draws a fact of a small world, and the aggregate that it is about.
func anyFact(t *rapid.T) (subject string, fact events.Fact) {
	node := rapid.SampledFrom([]string{"n1", "n2", "n3"}).Draw(t, "node")
	version := rapid.SampledFrom([]string{"1.0.0", "1.1.0"}).Draw(t, "version")
	rollout := rapid.SampledFrom([]string{"r1", "r2"}).Draw(t, "rollout")
	arch := rapid.SampledFrom([]string{"amd64", "arm64"}).Draw(t, "arch")
	rel := events.Release{Version: version, Architecture: arch}
	switch rapid.IntRange(0, 10).Draw(t, "fact") {
	case 0:
		return rel.Key(), &events.ReleaseAdded{Release: rel}
	case 1:
		return rel.Key(), &events.ReleaseHeld{Reason: "x"}
	case 2:
		return rollout, &events.RolloutStarted{Version: version, Releases: []events.Release{rel}}
	case 3:
		return rollout, &events.RolloutHalted{}
	case 4:
		return node, &events.NodeConfirmed{Version: version}
	case 5:
		return node, &events.NodeRolledBack{From: version, To: "0.9.0"}
	case 6:
		return node, &events.NodeRefused{Version: version}
	case 7:
		return node, &events.NodeEnrolled{}
	case 8:
		return "ann", &events.UserAdded{}
	case 9:
		return node, &events.Declared{Node: node, Because: events.DeclarationCause{Kind: events.CauseOperator}}
	}
	return node, &events.Declared{
		Node: node, Because: events.DeclarationCause{Kind: events.CauseBatch, Rollout: rollout},
		Resources: []events.Resource{events.ResourceFromSpec(events.ResourceHost, "h", events.HostSpec{Release: rel})},
	}
}

// anyLog draws a log. Some events are of a type that this program does not know.
func anyLog(t *rapid.T) []events.Record {
	var out []events.Record
	ids := []string{""}
	for i := range rapid.IntRange(0, 40).Draw(t, "events") {
		subject, fact := anyFact(t)
		at := t0.Add(time.Duration(rapid.IntRange(0, 20).Draw(t, "second")) * time.Second)
		actor := rapid.SampledFrom([]string{"ann", "stager"}).Draw(t, "actor")
		cause := rapid.SampledFrom(ids).Draw(t, "cause")
		id := uuid.NewSHA1(uuid.Nil, []byte{byte(i)}).String()
		if rapid.Bool().Draw(t, "other") {
			id = fmt.Sprint("sim-", i)
		}
		e := events.NewWithID(id, subject, fact, events.Origin{Source: "test", Actor: actor, Cause: cause}, at)
		if rapid.IntRange(0, 20).Draw(t, "newer") == 0 {
			e.Type = "mesh.node.teleported.v1"
		}
		ids = append(ids, id)
		out = append(out, events.Record{Seq: uint64(i + 1), Event: e})
	}
	return out
}

func indexOf(t interface{ Fatal(...any) }, log []events.Record) *projections.Index {
	x := projections.NewIndex()
	for _, rec := range log {
		if err := x.Apply(rec); err != nil {
			t.Fatal(err)
		}
	}
	return x
}

// naive is [projections.Index.Find] as its documentation says it, one event after
// the other.
func naive(t *rapid.T, log []events.Record, q projections.Query) (out []uint64) {
	started := map[string]string{}
	for _, rec := range log {
		e := rec.Event
		aggregate := strings.Split(e.Type, ".")[1]
		rollout, version, arch := "", "", ""
		if aggregate == "rollout" {
			rollout, version = e.Subject, started[e.Subject]
		}
		if aggregate == "release" {
			for _, v := range []string{"1.0.0", "1.1.0"} {
				for _, a := range []string{"amd64", "arm64"} {
					if events.ReleaseKey(v, a) == e.Subject {
						version, arch = v, a
					}
				}
			}
		}
		fact, _ := e.Fact()
		switch f := fact.(type) {
		case *events.RolloutStarted:
			version, arch, started[e.Subject] = f.Version, f.Releases[0].Architecture, f.Version
		case *events.NodeConfirmed:
			version = f.Version
		case *events.NodeRolledBack:
			version = f.From
		case *events.NodeRefused:
			version = f.Version
		case *events.Declared:
			rollout = f.Because.Rollout
			if h := f.Host(); h != nil {
				version, arch = h.Version, h.Architecture
			}
		}
		is := func(asked string, is bool) bool { return asked == "" || is }
		short := strings.TrimSuffix(strings.TrimPrefix(e.Type, "mesh."), ".v1")
		prefixed := func(p string) bool {
			return len(p) >= projections.MinPrefix && !strings.HasPrefix(e.ID, "sim") && strings.HasPrefix(e.ID, p)
		}
		if rec.Seq >= q.From && (q.To == 0 || rec.Seq <= q.To) &&
			is(q.Node, (aggregate == "node" || aggregate == "declaration") && e.Subject == q.Node) &&
			is(q.Rollout, rollout == q.Rollout) && is(q.Version, version == q.Version) &&
			is(q.Architecture, arch == "" || arch == q.Architecture) && is(q.Actor, e.Actor == q.Actor) &&
			is(q.Type, q.Type == e.Type || q.Type == short || strings.HasSuffix(short, "."+q.Type)) &&
			(q.Since.IsZero() || !e.Time.Before(q.Since)) && (q.Until.IsZero() || e.Time.Before(q.Until)) &&
			(q.IDs == nil || slices.Contains(q.IDs, e.ID) || slices.ContainsFunc(q.IDs, prefixed)) &&
			(q.Causes == nil || slices.Contains(q.Causes, e.Cause)) {
			out = append(out, rec.Seq)
		}
	}
	if q.Limit > 0 && len(out) > q.Limit {
		if q.Last {
			return out[len(out)-q.Limit:]
		}
		return out[:q.Limit]
	}
	return out
}

// anyQuery draws a question with up to two filters: more find nothing mostly.
func anyQuery(t *rapid.T, log []events.Record) (q projections.Query) {
	one := func(label string, of ...string) string { return rapid.SampledFrom(of).Draw(t, label) }
	moment := func() time.Time { // between two microseconds, too
		s := rapid.IntRange(0, 20).Draw(t, "second")
		return t0.Add(time.Duration(s)*time.Second + time.Duration(s%3))
	}
	id := func() string {
		if len(log) == 0 {
			return uuid.Nil.String()
		}
		return rapid.SampledFrom(log).Draw(t, "id").Event.ID
	}
	filters := []func(){
		func() { q.From = uint64(rapid.IntRange(0, 45).Draw(t, "from")) },
		func() { q.To = uint64(rapid.IntRange(0, 45).Draw(t, "to")) },
		func() { q.Node = one("node", "n1", "n2", "n9", "r1") },
		func() { q.Rollout = one("rollout", "r1", "r2", "r9") },
		func() { q.Actor = one("actor", "ann", "stager", "bob") },
		func() { q.Version = one("version", "1.0.0", "1.1.0", "9") },
		func() { q.Architecture = one("architecture", "amd64", "arm64", "riscv64") },
		func() {
			q.Type = one("type", "halted", "rollout.halted", "mesh.node.confirmed.v1", "teleported", "added", "no-such", "node")
		},
		func() { q.Since = moment() },
		func() { q.Until = moment() },
		func() {
			for range rapid.IntRange(1, 4).Draw(t, "ids") {
				next := id()
				if !strings.HasPrefix(next, "sim") {
					next = next[:rapid.SampledFrom([]int{8, 11, 36}).Draw(t, "length")]
				}
				q.IDs = append(q.IDs, next)
			}
		},
		func() {
			for range rapid.IntRange(1, 4).Draw(t, "causes") {
				q.Causes = append(q.Causes, id())
			}
		},
	}
	for range rapid.IntRange(0, 2).Draw(t, "filters") {
		rapid.SampledFrom(filters).Draw(t, "filter")()
	}
	if rapid.Bool().Draw(t, "limited") {
		q.Limit, q.Last = rapid.IntRange(1, 5).Draw(t, "limit"), rapid.Bool().Draw(t, "last")
	}
	return q
}

// TestIndexFindsWhatIsThere: the index answers as a reader of the whole log
// would, also after a snapshot, and if it gets events twice.
func TestIndexFindsWhatIsThere(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		log := anyLog(t)
		x := projections.NewIndex()
		for i, rec := range log {
			if err := errors.Join(x.Apply(rec), x.Apply(rec), x.Apply(log[i/2])); err != nil {
				t.Fatal(err)
			}
			if i == len(log)/2 {
				raw, err := x.MarshalBinary()
				if err != nil {
					t.Fatal(err)
				}
				x = projections.NewIndex()
				if err := x.UnmarshalBinary(raw); err != nil {
					t.Fatal(err)
				}
			}
		}
		whole, err := indexOf(t, log).MarshalBinary()
		if err != nil {
			t.Fatal(err)
		}
		if raw, err := x.MarshalBinary(); err != nil || string(raw) != string(whole) {
			t.Fatalf("snapshot and tail differ from a full replay: %v", err)
		}
		for range 10 {
			q := anyQuery(t, log)
			asks(t, x, log, q)
		}
	})
}

func asks(t *rapid.T, x *projections.Index, log []events.Record, q projections.Query) {
	if got, want := x.Find(q), naive(t, log, q); !slices.Equal(got, want) {
		t.Fatalf("%+v finds %v, want %v", q, got, want)
	}
	q.Limit = 0
	if got, want := x.Count(q), len(naive(t, log, q)); got != want {
		t.Fatalf("%+v counts %d, want %d", q, got, want)
	}
}

// TestPrefixesThatHoldOneAnother: an id and the beginnings of it, of which some are
// longer, are asked for at once.
func TestPrefixesThatHoldOneAnother(t *testing.T) {
	var log []events.Record
	for i, id := range []string{"aaaaaaaa-0000-4000-8000-000000000000", "aaaaaaaa-1111-4000-8000-000000000000", "aaaaaaaa-2222-4000-8000-000000000000", "bbbbbbbb-0000-4000-8000-000000000000"} {
		e := events.NewWithID(id, "ann", &events.UserAdded{}, events.Origin{Source: "t", Actor: "t"}, t0)
		log = append(log, events.Record{Seq: uint64(i + 1), Event: e})
	}
	x := indexOf(t, log)
	for _, c := range []struct {
		ids  []string
		want string
	}{
		{[]string{"aaaaaaaa"}, "[1 2 3]"},
		{[]string{"AAAAAAAA-1"}, "[2]"},
		{[]string{"aaaaaaaa", "aaaaaaaa-1111"}, "[1 2 3]"},
		{[]string{"aaaaaaaa-1111", "bbbbbbbb-0000-4000-8000-000000000000"}, "[2 4]"},
		{[]string{"aaaaaaa"}, "[]"}, // too short
		{[]string{"--------"}, "[]"},
	} {
		if got := fmt.Sprint(x.Find(projections.Query{IDs: c.ids})); got != c.want {
			t.Errorf("%v finds %s, want %s", c.ids, got, c.want)
		}
	}
}

// TestSnapshotOfNamesThatAreNotThere: a number of a name is checked.
func TestSnapshotOfNamesThatAreNotThere(t *testing.T) {
	e := events.New("n1", &events.NodeConfirmed{Version: "1"}, events.Origin{Source: "t", Actor: "a"}, t0)
	x := indexOf(t, []events.Record{{Seq: 1, Event: e}})
	raw, err := x.MarshalBinary()
	if err != nil {
		t.Fatal(err)
	}
	names := raw[16] // as many as there are, so the first number that is none
	raw[len(raw)-24-4] = names
	if err := projections.NewIndex().UnmarshalBinary(raw); err == nil || !strings.Contains(err.Error(), "there is no name") {
		t.Errorf("it is read: %v", err)
	}
}

func TestIndexOfRecordedLogs(t *testing.T) {
	log := readLog(t, "../testdata/logs/0.2.jsonl")
	x := indexOf(t, log)
	for _, c := range []struct {
		q    projections.Query
		want int
	}{
		{projections.Query{}, len(log)},
		{projections.Query{Rollout: "r2"}, 5}, // started, opened, two declared, halted
		{projections.Query{Version: "1.2.0", Type: "halted"}, 1},
		{projections.Query{Version: "1.2.0", Type: "rolled-back"}, 2},
		{projections.Query{Node: "a", Type: "declared"}, 2},
	} {
		if got := x.Find(c.q); len(got) != c.want {
			t.Errorf("%+v finds %v, want %d events", c.q, got, c.want)
		}
	}
	if got := fmt.Sprint(x.Names(projections.KindRollout), x.Names(projections.KindVersion), x.Names(projections.KindNode)); got != "[r1 r2] [1.0.0 1.1.0 1.2.0] [a b c]" {
		t.Errorf("the names are %s", got)
	}
	if err := x.Apply(events.Record{Seq: x.Seq() + 2, Event: log[0].Event}); !errors.Is(err, projections.ErrGap) {
		t.Errorf("a missing event gives %v", err)
	}
	damaged := log[3].Event
	damaged.Data = json.RawMessage(`{"version":7}`)
	if err := x.Apply(events.Record{Seq: x.Seq() + 1, Event: damaged}); !errors.Is(err, events.ErrMalformed) {
		t.Errorf("a damaged event gives %v", err)
	}
}

// FuzzIndexSnapshot: damaged bytes are refused or are an index, and what was
// there before stays.
func FuzzIndexSnapshot(f *testing.F) {
	x := projections.NewIndex()
	for i := range 5 {
		e := events.New(fmt.Sprint("n", i), &events.NodeConfirmed{Version: "1"}, events.Origin{Source: "t", Actor: "a"}, t0)
		if err := x.Apply(events.Record{Seq: uint64(i + 1), Event: e}); err != nil {
			f.Fatal(err)
		}
	}
	raw, err := x.MarshalBinary()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(raw)
	f.Add(raw[:len(raw)-1])
	f.Add(append(slices.Clone(raw), 0))
	for _, at := range []int{0, 7, 8, 15, 16, 19, 20, 40, len(raw) / 2} {
		damaged := slices.Clone(raw)
		damaged[at] ^= 0xff
		f.Add(damaged)
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		x := projections.NewIndex()
		if err := x.UnmarshalBinary(raw); err != nil {
			if x.Seq() != 0 {
				t.Errorf("refused with %v, and yet it has %d events", err, x.Seq())
			}
			return
		}
		x.Find(projections.Query{Node: "n1", Type: "confirmed", IDs: []string{"01234567"}, Last: true, Limit: 3})
		x.Names(projections.KindNode)
		again, err := x.MarshalBinary()
		if err != nil {
			t.Fatal(err)
		}
		if err := projections.NewIndex().UnmarshalBinary(again); err != nil {
			t.Errorf("its own snapshot is refused: %v", err)
		}
	})
}

// bigIndex has a million events over 10,000 nodes.
func bigIndex(tb testing.TB) *projections.Index {
	tb.Helper()
	x := projections.NewIndex()
	var facts []events.Event
	for v := range 100 {
		facts = append(facts, events.New("n", &events.NodeConfirmed{Version: fmt.Sprintf("1.%d.0", v)}, events.Origin{Source: "t", Actor: "a"}, t0))
	}
	for i := range uint64(1_000_000) {
		e := facts[i/10_000]
		e.Subject = fmt.Sprint("node-", i%10_000)
		e.Time = t0.Add(time.Duration(i) * time.Second)
		u := uuid.NewSHA1(uuid.Nil, []byte(fmt.Sprint(i)))
		e.ID, e.Cause, e.Actor = u.String(), "", "node:"+e.Subject
		if err := x.Apply(events.Record{Seq: i + 1, Event: e}); err != nil {
			tb.Fatal(err)
		}
	}
	return x
}

func BenchmarkIndex(b *testing.B) {
	x := bigIndex(b)
	for _, c := range []struct {
		name string
		q    projections.Query
		want int
	}{
		{"node", projections.Query{Node: "node-77"}, 100},
		{"release", projections.Query{Version: "1.50.0", Limit: 1000}, 1000},
		{"type", projections.Query{Type: "halted"}, 0},
		{"time", projections.Query{Since: t0.Add(999_900 * time.Second)}, 100},
		{"id", projections.Query{IDs: []string{uuid.NewSHA1(uuid.Nil, []byte("77")).String()[:8]}}, 1},
		{"causes", projections.Query{Causes: []string{"a", "b", "c", "d"}}, 0},
		{"last", projections.Query{Last: true, Limit: 100}, 100},
	} {
		b.Run(c.name, func(b *testing.B) {
			for b.Loop() {
				if got := x.Find(c.q); len(got) != c.want {
					b.Fatalf("%d found", len(got))
				}
			}
		})
	}
	raw, err := x.MarshalBinary()
	if err != nil {
		b.Fatal(err)
	}
	b.Run("marshal", func(b *testing.B) {
		b.SetBytes(int64(len(raw)))
		for b.Loop() {
			if _, err := x.MarshalBinary(); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("unmarshal", func(b *testing.B) {
		b.SetBytes(int64(len(raw)))
		for b.Loop() {
			if err := projections.NewIndex().UnmarshalBinary(raw); err != nil {
				b.Fatal(err)
			}
		}
	})
}
