package projections

import (
	"cmp"
	"encoding/binary"
	"encoding/hex"
	"hash/fnv"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
)

// Query asks an [Index]. What is empty is not asked; the rest must all hold.
type Query struct {
	From, To uint64 // sequences, both included; a To of 0 is the end
	// Node wants what is on the node's own subject, and its declarations.
	Node string
	// Rollout wants its own events, and the declarations because of it.
	Rollout string
	// Version wants what is about a version of the host package: the releases'
	// own events, the rollouts of it and all that happens in them, and where a
	// node was declared it, confirmed it, rolled it back or refused it.
	Version string
	// Architecture leaves out what says that it is about another one.
	Architecture string
	// Type is "halted", "rollout.halted" or the whole type.
	Type  string
	Actor string
	// Since and Until bound the event's time: since is in, until is not.
	Since, Until time.Time
	// IDs wants the events with one of these ids, or with an id that begins as
	// one of them does (at least [MinPrefix] hex digits of it). An id that is no
	// UUID, and one longer than 16 hex digits, may find more than is meant: look
	// at the event.
	IDs []string
	// Causes wants the events that one of these ids led to. It may find more
	// than is meant, too.
	Causes []string
	// Limit is how many are wanted at most, 0 for all: the first ones, or the
	// Last.
	Limit int
	Last  bool
}

// MinPrefix is how many hex digits of an id are enough to ask for it.
const MinPrefix = 8

// Find gives the sequences of the events that match, in order.
func (x *Index) Find(q Query) []uint64 {
	lo, hi := x.places(q)
	f, ok := x.compile(q)
	if !ok || lo >= hi {
		return nil
	}
	var out []uint64
	if q.Last {
		for i := hi; i > lo && (q.Limit == 0 || len(out) < q.Limit); i-- {
			if f.match(x, int(i-1)) {
				out = append(out, i)
			}
		}
		slices.Reverse(out)
		return out
	}
	for i := lo; i < hi && (q.Limit == 0 || len(out) < q.Limit); i++ {
		if f.match(x, int(i)) {
			out = append(out, i+1)
		}
	}
	return out
}

// Count is how many events match, whatever the limit.
func (x *Index) Count(q Query) int {
	lo, hi := x.places(q)
	f, ok := x.compile(q)
	n := 0
	for i := lo; ok && i < hi; i++ {
		if f.match(x, int(i)) {
			n++
		}
	}
	return n
}

// places gives the places lo <= i < hi that a query is about.
func (x *Index) places(q Query) (lo, hi uint64) {
	lo, hi = max(q.From, 1)-1, x.Seq()
	if q.To != 0 {
		hi = min(hi, q.To)
	}
	return lo, hi
}

// filter is a query in the terms of an index.
type filter struct {
	want         [columns]uint32 // 0: anything
	types        []uint32        // nil: any
	since, until int64
	timed        bool
	ids, causes  []keys // sorted; nil: any
}

// keys is a range of idKeys, both included.
type keys struct{ from, to uint64 }

// compile gives false if nothing can match.
func (x *Index) compile(q Query) (f filter, ok bool) {
	for c, name := range map[int]string{colNode: q.Node, colRollout: q.Rollout, colVersion: q.Version, colArch: q.Architecture, colActor: q.Actor} {
		id, known := x.byName[name]
		switch {
		case known:
			f.want[c] = id
		case c != colArch:
			return f, false
		default:
			f.want[c] = uint32(len(x.names)) // no event says it; those that say none may still match
		}
	}
	if q.Type != "" {
		for id, name := range x.names {
			if typeMatches(name, q.Type) {
				f.types = append(f.types, uint32(id))
			}
		}
		if f.types == nil {
			return f, false
		}
	}
	f.since, f.until, f.timed = minTime, maxTime, !q.Since.IsZero() || !q.Until.IsZero()
	if !q.Since.IsZero() {
		// Events have whole microseconds: one that is not before q.Since is not
		// before the next whole one.
		f.since = q.Since.Add(time.Microsecond - 1).UnixMicro()
	}
	if !q.Until.IsZero() {
		f.until = q.Until.Add(time.Microsecond - 1).UnixMicro()
	}
	if len(q.IDs) > 0 {
		f.ids = idKeys(q.IDs)
	}
	if len(q.Causes) > 0 {
		for _, id := range q.Causes {
			k := idKey(id)
			f.causes = append(f.causes, keys{k, k})
		}
		sortKeys(f.causes)
	}
	return f, true
}

const (
	minTime = -1 << 63
	maxTime = 1<<63 - 1
)

// match is asked for each event of the log: what tells the most comes first.
func (f *filter) match(x *Index, i int) bool {
	for _, c := range [...]int{colNode, colRollout, colVersion, colActor} {
		if w := f.want[c]; w != 0 && x.cols[c][i] != w {
			return false
		}
	}
	if f.types != nil && !slices.Contains(f.types, x.cols[colType][i]) {
		return false
	}
	if f.timed && (x.times[i] < f.since || x.times[i] >= f.until) {
		return false
	}
	if w := f.want[colArch]; w != 0 && x.cols[colArch][i] != 0 && x.cols[colArch][i] != w {
		return false
	}
	return (f.ids == nil || within(f.ids, x.ids[i])) && (f.causes == nil || within(f.causes, x.causes[i]))
}

func typeMatches(typ, asked string) bool {
	if !strings.HasPrefix(typ, "mesh.") {
		return false // a name of something else, as most are
	}
	short := ShortType(typ)
	_, fact, _ := strings.Cut(short, ".")
	return asked == typ || asked == short || asked == fact
}

// idKey is what an index keeps of an id: the first half of a UUID, so that it is
// found by its first characters, or else a hash.
func idKey(id string) uint64 {
	if id == "" {
		return 0
	}
	if u, err := uuid.Parse(id); err == nil && len(id) == 36 {
		return binary.BigEndian.Uint64(u[:8])
	}
	h := fnv.New64a()
	_, _ = h.Write([]byte(id)) // never fails
	return h.Sum64()
}

// idKeys are the keys that ids, or beginnings of ids, may have.
func idKeys(ids []string) []keys {
	out := []keys{}
	for _, id := range ids {
		k := idKey(id)
		out = append(out, keys{k, k})
		if from, to, ok := prefixKeys(id); ok {
			out = append(out, keys{from, to})
		}
	}
	sortKeys(out)
	return out
}

func prefixKeys(prefix string) (from, to uint64, ok bool) {
	digits := strings.ToLower(strings.ReplaceAll(prefix, "-", ""))
	if len(digits) < MinPrefix || len(prefix) > 36 {
		return 0, 0, false
	}
	if len(digits) > 16 {
		digits = digits[:16]
	}
	low, err := hex.DecodeString(digits + strings.Repeat("0", 16-len(digits)))
	if err != nil {
		return 0, 0, false
	}
	from = binary.BigEndian.Uint64(low)
	return from, from | (1<<(64-4*len(digits)) - 1), true
}

func sortKeys(list []keys) {
	slices.SortFunc(list, func(a, b keys) int { return cmp.Compare(a.from, b.from) })
	// Ranges of prefixes either hold one another or are apart: each is widened
	// to the ends of those before it, so that the one before a key decides.
	for i := 1; i < len(list); i++ {
		list[i].to = max(list[i].to, list[i-1].to)
	}
}

// within says whether a key is in one of the ranges. It is asked for each event
// of the log, so it is written out.
func within(list []keys, k uint64) bool {
	lo, hi := 0, len(list) // the ranges before lo begin at k or before it
	for lo < hi {
		if mid := (lo + hi) / 2; list[mid].from <= k {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return lo > 0 && list[lo-1].to >= k
}
