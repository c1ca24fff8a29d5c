package projections

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"noxmesh/events"
)

// Index is EVENTS in columns: a few dozen bytes for each event, by which it is
// found without reading the log. It is a pure fold, as [Mesh] is: events come
// without a gap, and applying one twice is the same as applying it once.
//
// A question is answered by a scan of the columns, a few milliseconds for a
// million events. What is found is found by what the event itself says, with one
// exception: what happens in a rollout is about the version that the rollout was
// started with.
type Index struct {
	names  []string // interned; 0 is the empty string, and means that there is none
	byName map[string]uint32
	// versions are what each rollout was started with, by name.
	versions map[uint32]uint32

	// One entry an event: the event with sequence s is in place s-1.
	cols   [columns][]uint32 // into names
	times  []int64           // the mesh's clock, microseconds since 1970
	ids    []uint64          // idKey of the event's id
	causes []uint64          // and of its cause
}

// Columns of names.
const (
	colType = iota
	colNode
	colRollout
	colVersion // of the host package
	colArch    // of the release, where the event says it
	colActor
	columns
)

// NewIndex is the index before the first event.
func NewIndex() *Index {
	return &Index{names: []string{""}, byName: map[string]uint32{"": 0}, versions: map[uint32]uint32{}}
}

// Seq is the last sequence that was applied, 0 before the first.
func (x *Index) Seq() uint64 { return uint64(len(x.times)) }

// Apply folds one event.
func (x *Index) Apply(rec events.Record) error {
	switch {
	case rec.Seq <= x.Seq():
		return nil
	case rec.Seq != x.Seq()+1:
		return fmt.Errorf("%w: event %d follows %d", ErrGap, rec.Seq, x.Seq())
	}
	fact, err := rec.Fact() // none if its type is not known to this program
	if err != nil && !errors.Is(err, events.ErrUnknownType) {
		return fmt.Errorf("event %d: %w", rec.Seq, err)
	}
	e := rec.Event
	row := about(e, fact)
	row[colType], row[colActor] = e.Type, e.Actor
	for c, name := range row {
		x.cols[c] = append(x.cols[c], x.intern(name))
	}
	x.versionOfRollout(len(x.times))
	x.times = append(x.times, e.Time.UnixMicro())
	x.ids = append(x.ids, idKey(e.ID))
	x.causes = append(x.causes, idKey(e.Cause))
	return nil
}

// about tells from an event which node, rollout and release it is about.
func about(e events.Event, fact events.Fact) (row [columns]string) {
	switch aggregateOf(e.Type) {
	case events.AggregateNode, events.AggregateDeclaration:
		row[colNode] = e.Subject
	case events.AggregateRollout:
		row[colRollout] = e.Subject
	case events.AggregateRelease:
		row[colVersion], row[colArch] = events.SplitReleaseKey(e.Subject)
	}
	switch f := fact.(type) {
	case *events.Declared:
		row[colRollout] = f.Because.Rollout
		if h := f.Host(); h != nil {
			row[colVersion], row[colArch] = h.Version, h.Architecture
		}
	case *events.RolloutStarted:
		row[colVersion] = f.Version
		if len(f.Releases) == 1 {
			row[colArch] = f.Releases[0].Architecture
		}
	case *events.NodeConfirmed:
		row[colVersion] = f.Version
	case *events.NodeRolledBack:
		row[colVersion] = f.From
	case *events.NodeRefused:
		row[colVersion] = f.Version
	}
	return row
}

// versionOfRollout keeps the version of a rollout that starts, and gives it to
// the other events of the rollout.
func (x *Index) versionOfRollout(i int) {
	rollout, version := x.cols[colRollout][i], &x.cols[colVersion][i]
	switch {
	case rollout == 0:
	case strings.HasPrefix(x.names[x.cols[colType][i]], startedType):
		x.versions[rollout] = *version
	case *version == 0:
		*version = x.versions[rollout]
	}
}

const startedType = "mesh.rollout.started.v" // whichever

func (x *Index) intern(name string) uint32 {
	id, ok := x.byName[name]
	if !ok {
		id = uint32(len(x.names))
		x.names = append(x.names, name)
		x.byName[name] = id
	}
	return id
}

// aggregateOf is the second part of a type, mesh.<aggregate>.<fact>.v<n>.
func aggregateOf(typ string) string {
	rest, _ := strings.CutPrefix(typ, "mesh.")
	aggregate, _, _ := strings.Cut(rest, ".")
	return aggregate
}

// ShortType is an event type as people write it, "rollout.halted".
func ShortType(typ string) string {
	short := strings.TrimPrefix(typ, "mesh.")
	if i := strings.LastIndex(short, ".v"); i > 0 {
		short = short[:i]
	}
	return short
}

// Kind is what a question may name.
type Kind int

// What a question may name; see [Query].
const (
	KindType    Kind = colType
	KindNode    Kind = colNode
	KindRollout Kind = colRollout
	KindVersion Kind = colVersion
	KindActor   Kind = colActor
)

// Names gives all names of a kind in the log, in order.
func (x *Index) Names(k Kind) []string {
	seen := make([]bool, len(x.names))
	for _, id := range x.cols[k] {
		seen[id] = true
	}
	var out []string
	for id, name := range x.names {
		if seen[id] && name != "" {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}
