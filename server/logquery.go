package server

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"noxmesh/events"
	"noxmesh/projections"
)

// LogRequest asks for a page of the log. Filters add up.
type LogRequest struct {
	// From and To are the first and the last sequence wanted. A From of 0 and 1 is
	// the log's begin, a To of 0 its end.
	From uint64 `json:"from,omitempty"`
	To   uint64 `json:"to,omitempty"`
	Node string `json:"node,omitempty"` // events about it and its declarations
	// Rollout wants events of it and the declarations that it led to.
	Rollout string `json:"rollout,omitempty"`
	// Release is a version, VERSION/ARCH or a release's key: its own events, the
	// rollouts of it, who was declared it, confirmed it, rolled it back or refused it.
	Release string    `json:"release,omitempty"`
	Type    string    `json:"type,omitempty"` // "halted", "rollout.halted" or in full
	Actor   string    `json:"actor,omitempty"`
	Since   time.Time `json:"since,omitzero"` // included
	Until   time.Time `json:"until,omitzero"` // not included
	// IDs wants events with one of these ids, or with one that begins so.
	IDs []string `json:"ids,omitempty"`
	// Causes wants the events that these ids led to.
	Causes []string `json:"causes,omitempty"`
	// Limit is how many are wanted on the page at most, if not 0.
	Limit int `json:"limit,omitempty"`
	// Last wants only the newest so many of what matches. A page that is full
	// says, as any, where the next one begins; ask for that without Last.
	Last int `json:"last,omitempty"`
	// Wait is for how long the answer may wait for an event that matches, if there
	// is none; at most [MaxLogWait].
	Wait events.Duration `json:"wait,omitempty"`
}

// MaxLogWait bounds [LogRequest.Wait].
const MaxLogWait = 10 * time.Second

// LogPage is a page of the log, oldest first.
type LogPage struct {
	Events []LogRecord `json:"events"`
	// Next is where the next page begins. All was read if Next is over Last, the
	// log's end.
	Next uint64 `json:"next"`
	Last uint64 `json:"last"`
	// Earlier is how many that match come before the ones that [LogRequest.Last]
	// asked for.
	Earlier int `json:"earlier,omitempty"`
	// Unknown says in words which names of the question the log does not know.
	Unknown []string `json:"unknown,omitempty"`
}

// LogRecord is an event byte for byte as it is stored.
type LogRecord struct {
	Seq  uint64 `json:"seq"`
	Data []byte `json:"data"`
}

// Decode reads the event.
func (r LogRecord) Decode() (events.Record, error) {
	e, err := events.Decode(r.Data)
	if err != nil {
		return events.Record{}, fmt.Errorf("event %d: %w", r.Seq, err)
	}
	return events.Record{Seq: r.Seq, Event: e}, nil
}

// maxAsked bounds how many ids one request names.
const maxAsked = 1000

// query puts the request as a question to the index.
func (q LogRequest) query() (projections.Query, error) {
	out := projections.Query{
		From: q.From, To: q.To, Node: q.Node, Rollout: q.Rollout, Type: q.Type, Actor: q.Actor,
		Since: q.Since, Until: q.Until, IDs: q.IDs, Causes: q.Causes,
	}
	if q.Node != "" {
		if err := events.CheckNodeID(q.Node); err != nil {
			return out, err
		}
	}
	if strings.ContainsAny(q.Rollout, ".*> \t\r\n") {
		return out, fmt.Errorf("%q is no rollout: nox-mesh rollout ls shows all", q.Rollout)
	}
	switch version, arch, slash := strings.Cut(q.Release, "/"); {
	case slash:
		out.Version, out.Architecture = version, arch
	case strings.Contains(q.Release, "_"):
		out.Version, out.Architecture = events.SplitReleaseKey(q.Release)
	default:
		out.Version = q.Release
	}
	if q.Release != "" {
		if err := events.CheckVersion(out.Version); err != nil {
			return out, fmt.Errorf("release: %w", err)
		}
	}
	if q.Limit < 0 || q.Last < 0 || len(q.IDs) > maxAsked || len(q.Causes) > maxAsked {
		return out, fmt.Errorf("limit and last count from 0, and at most %d ids are asked for at once", maxAsked)
	}
	for _, id := range q.IDs {
		if len(id) < projections.MinPrefix {
			return out, fmt.Errorf("%q is too short for an id: give its first %d characters at least", id, projections.MinPrefix)
		}
	}
	if slices.Contains(q.Causes, "") {
		return out, errors.New("a cause is empty")
	}
	return out, nil
}

// means says whether an event that the index has found by an id is meant: the
// index keeps a part of it only.
func (q LogRequest) means(e events.Event) bool {
	begins := func(id string) bool { return strings.HasPrefix(e.ID, strings.ToLower(id)) || e.ID == id }
	return (len(q.IDs) == 0 || slices.ContainsFunc(q.IDs, begins)) && (len(q.Causes) == 0 || slices.Contains(q.Causes, e.Cause))
}

// unknown says which names of the question are not in the log, and what comes
// close to them.
func (q LogRequest) unknown(x *projections.Index) (out []string) {
	asked, err := q.query()
	if err != nil {
		return nil
	}
	say := func(what, name string, known func() []string, list string) {
		if name == "" {
			return
		}
		names := known()
		if slices.Contains(names, name) {
			return
		}
		text := fmt.Sprintf("no %s %q is in the log", what, name)
		if near := closeTo(name, names); len(near) > 0 {
			text += ", there is " + strings.Join(near, ", ")
		}
		out = append(out, text+list)
	}
	of := func(k projections.Kind) func() []string { return func() []string { return x.Names(k) } }
	say("node", q.Node, of(projections.KindNode), ": nox-mesh fleet shows the nodes")
	say("rollout", q.Rollout, of(projections.KindRollout), ": nox-mesh rollout ls shows all")
	say("release", asked.Version, of(projections.KindVersion), ": nox-mesh release ls shows all")
	say("actor", q.Actor, of(projections.KindActor), ": an actor is a user (nox-mesh user ls), stager or node:NAME")
	say("type", q.Type, func() (types []string) {
		for _, typ := range slices.Concat(x.Names(projections.KindType), events.Types()) {
			short := projections.ShortType(typ)
			_, fact, _ := strings.Cut(short, ".")
			types = append(types, typ, short, fact)
		}
		return types
	}, ": one is a fact like halted, with or without what it is about, like rollout.halted")
	return out
}

// closeTo gives up to three names that differ from one by a slip of the hand, or
// begin with it.
func closeTo(name string, known []string) []string {
	const near = 2
	type candidate struct {
		name string
		far  int
	}
	var list []candidate
	for _, k := range known {
		far := distance(name, k)
		if strings.HasPrefix(k, name) {
			far = min(far, near)
		}
		if far <= min(near, len(name)/2) {
			list = append(list, candidate{k, far})
		}
	}
	slices.SortStableFunc(list, func(a, b candidate) int { return cmp.Compare(a.far, b.far) })
	var out []string
	for _, c := range list {
		if len(out) < 3 && !slices.Contains(out, c.name) {
			out = append(out, c.name)
		}
	}
	return out
}

// distance is how many bytes are to be put in, left out or changed to make one
// name of the other.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		before := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := before
			if a[i] != b[j] {
				change++
			}
			before = row[j+1]
			row[j+1] = min(change, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
