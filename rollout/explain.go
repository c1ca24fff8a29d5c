package rollout

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"noxmesh/events"
	"noxmesh/projections"
)

// Story is a rollout in words, step by step, each with the events it is about and
// what it rests on.
type Story struct {
	Rollout string                      `json:"rollout"`
	Version string                      `json:"version"`
	State   projections.State           `json:"state"`
	Cohort  int                         `json:"cohort"`
	Counts  map[projections.Outcome]int `json:"counts"` // as of the last record
	Steps   []Step                      `json:"steps"`
}

// Step is one thing that happened.
type Step struct {
	At     time.Time `json:"at"`     // of its first event
	Events []uint64  `json:"events"` // that it tells of
	Text   string    `json:"text"`
	// Details are lines below it, a node each mostly.
	Details []string `json:"details,omitempty"`
	// Evidence is what a decision rests on.
	Evidence []Cite `json:"evidence,omitempty"`
}

// few is how many nodes a story names one by one.
const few = 6

// Tell makes the story of a rollout from records of the log in order: all of
// them, or those that belong to it (see [Belongs]) as that comes to the same. Nil
// means that the rollout is not among them.
func Tell(records []events.Record, id string) *Story {
	t := teller{
		id: id, story: &Story{Rollout: id, Steps: []Step{}}, mesh: projections.NewMesh(),
		groups: map[string]int{}, told: map[string]told{}, at: map[uint64]time.Time{}, cited: citedBy(records, id),
	}
	for _, rec := range records {
		fact, err := rec.Event.Fact()
		if err != nil {
			continue // of a newer program; the story goes on without
		}
		t.at[rec.Seq] = rec.Event.Time
		if !t.belongs(rec, fact) {
			continue
		}
		// The state counts on a log without gaps; only its counts are asked for.
		own := events.Record{Seq: t.mesh.EventSeq + 1, Event: rec.Event}
		if t.mesh.ApplyEvent(own) != nil {
			continue
		}
		t.tell(rec, fact)
	}
	r := t.mesh.Rollouts[id]
	if t.plan == nil || r == nil {
		return nil
	}
	s := t.story
	s.Version, s.State, s.Cohort, s.Counts = t.plan.Version, r.State, len(t.plan.Cohort), r.Counts()
	return s
}

// citedBy are the events that a rollout's decisions rest on.
func citedBy(records []events.Record, id string) map[uint64]bool {
	out := map[uint64]bool{}
	for _, rec := range records {
		if rec.Event.Subject != id {
			continue
		}
		fact, _ := rec.Event.Fact()
		for _, c := range Cited(fact) {
			for _, seq := range c.Events {
				out[seq] = true
			}
		}
	}
	return out
}

// teller is a story in the making.
type teller struct {
	id    string
	story *Story
	plan  *events.RolloutStarted
	mesh  *projections.Mesh
	// groups are steps that take further events of their kind, by kind.
	groups map[string]int
	phase  int // counts the rollout's own events: what nodes say is told anew after each
	told   map[string]told
	at     map[uint64]time.Time
	cited  map[uint64]bool
	after  int // later rollouts told of
}

// told is the newest declaration of a node by the rollout.
type told struct {
	revision uint64
	at       time.Time
}

// belongs says whether a record is a part of the story.
func (t *teller) belongs(rec events.Record, fact events.Fact) bool {
	if t.plan == nil {
		started, ok := fact.(*events.RolloutStarted)
		return ok && started != nil && rec.Event.Subject == t.id
	}
	node := rec.Event.Subject
	switch f := fact.(type) {
	case *events.Declared:
		return f.Because.Rollout == t.id
	case *events.NodeRolledBack:
		return f.From == t.plan.Version && t.said(node, f.Revision)
	case *events.NodeRefused:
		return f.Version == t.plan.Version && t.said(node, f.Revision)
	case *events.NodeFailedToApply:
		return t.cited[rec.Seq]
	case *events.NodeDecommissioned:
		return slices.Contains(t.plan.Cohort, node)
	case *events.ReleaseHeld, *events.ReleaseHoldLifted:
		version, _ := events.SplitReleaseKey(rec.Event.Subject)
		return version == t.plan.Version
	case *events.RolloutStarted:
		return true // of another one, over the same nodes perhaps
	}
	return rec.Event.Subject == t.id && strings.HasPrefix(rec.Event.Type, "mesh.rollout.")
}

// said says whether what a node says is about what the rollout told it.
func (t *teller) said(node string, revision uint64) bool {
	d, ok := t.told[node]
	return ok && (revision == 0 || revision == d.revision)
}

// step adds a step.
func (t *teller) step(rec events.Record, text string, details ...string) *Step {
	t.story.Steps = append(t.story.Steps, Step{At: rec.Event.Time, Events: []uint64{rec.Seq}, Text: text, Details: details})
	return &t.story.Steps[len(t.story.Steps)-1]
}

// group gives the step of a kind, and whether it is new.
func (t *teller) group(kind string, rec events.Record) (s *Step, fresh bool) {
	i, ok := t.groups[kind]
	if !ok {
		t.groups[kind] = len(t.story.Steps)
		return t.step(rec, ""), true
	}
	s = &t.story.Steps[i]
	s.Events = append(s.Events, rec.Seq)
	return s, false
}

func (t *teller) tell(rec events.Record, fact events.Fact) {
	switch f := fact.(type) {
	case *events.Declared:
		t.declared(rec, f)
	case *events.NodeRolledBack:
		text := fmt.Sprintf("rolled back from %s to %s after %s%s", f.From, f.To, count(f.Restarts, "restart"), colon(f.Reason))
		if n := len(f.Journal); n > 0 {
			text += fmt.Sprintf("; the last line of its journal: %q", f.Journal[n-1])
		}
		t.heardOf(rec, "rolled back", text)
	case *events.NodeRefused:
		t.heardOf(rec, "refused", fmt.Sprintf("refuses %s%s", f.Version, colon(f.Reason)))
	case *events.NodeFailedToApply:
		t.heardOf(rec, "not applied", fmt.Sprintf("cannot apply %s of revision %d%s", f.Resource, f.Revision, colon(f.Error)))
	case *events.NodeDecommissioned:
		t.step(rec, fmt.Sprintf("%s took node %s out of the fleet%s. It left the cohort.", rec.Event.Actor, rec.Event.Subject, colon(f.Reason)))
	case *events.ReleaseHeld:
		t.held(rec, f)
	case *events.ReleaseHoldLifted:
		s, fresh := t.group(fmt.Sprint("lifted", t.phase), rec)
		if fresh {
			s.Text = fmt.Sprintf("%s lifted the hold on %s%s.", rec.Event.Actor, t.plan.Version, colon(f.Reason))
		}
	case *events.RolloutStarted:
		if rec.Event.Subject == t.id {
			t.phase++
			t.plan = f
			t.started(rec, f)
		} else {
			t.followed(rec, f)
		}
	default:
		t.phase++
		s := t.own(rec, fact)
		s.Evidence = Cited(fact)
	}
}

func (t *teller) started(rec events.Record, f *events.RolloutStarted) {
	p := f.Policy
	text := fmt.Sprintf("%s started the rollout of %s over %s", rec.Event.Actor, f.Version, count(len(f.Cohort), "node"))
	if f.Selector != "" {
		text += " (selected by " + f.Selector + ")"
	}
	text += fmt.Sprintf(": %s. The plan is %s: nodes told in all are %s.", names(f.Cohort), strings.Join(p.Batches, ","), numbers(f.Targets))
	text += fmt.Sprintf(" A node passes when it is heard confirmed on %s and its process keeps beating for %s, and has %s for that, counted while the mesh listens.", f.Version, p.Soak, p.Window)
	if len(f.Targets) > 1 {
		text += " Any failure of a canary halts; " + tolerance(p) + "."
	} else {
		text += " Any failure halts, since all of them are canaries."
	}
	if f.Retry {
		text += " Nodes that rolled it back before are asked to try again."
	}
	t.step(rec, text)
}

func tolerance(p events.Policy) string {
	switch {
	case p.Tolerate == events.TolerateAuto:
		return "a later batch halts when more fail than machines do by themselves"
	case p.Tolerate != "":
		return fmt.Sprintf("a later batch may have %s of its nodes fail", p.Tolerate)
	}
	if p.MaxFailed == 0 {
		return "so does any failure later"
	}
	return fmt.Sprintf("a later batch may have %s", count(p.MaxFailed, "failure"))
}

// declared tells of the declarations of one kind in one batch together.
func (t *teller) declared(rec events.Record, f *events.Declared) {
	s, _ := t.group(fmt.Sprint(f.Because.Kind, " ", f.Because.Batch), rec)
	version := "no host version"
	if h := f.Host(); h != nil {
		version = h.Version
	}
	n := count(len(s.Events), "node")
	switch f.Because.Kind {
	case events.CauseBatch:
		t.told[f.Node] = told{f.Revision, rec.Event.Time}
		s.Text = fmt.Sprintf("%s of batch %d: told to run %s.", n, f.Because.Batch, version)
	case events.CauseRecall:
		s.Text = fmt.Sprintf("%s of batch %d: recalled, told what was declared before, so that nobody installs %s later unwatched.", n, f.Because.Batch, t.plan.Version)
	case events.CauseRevert:
		s.Text = fmt.Sprintf("%s of batch %d: told to go back to what they had before.", n, f.Because.Batch)
	default:
		s.Text = fmt.Sprintf("%s: declared anew (%s).", n, f.Because.Kind)
	}
	line := fmt.Sprintf("%s: revision %d, %s [%d]", f.Node, f.Revision, version, rec.Seq)
	s.Details = enough(s.Details, line, len(s.Events))
}

// heardOf tells of what nodes report, those of one kind together.
func (t *teller) heardOf(rec events.Record, kind, text string) {
	s, _ := t.group(fmt.Sprint(kind, t.phase), rec)
	s.Text = fmt.Sprintf("%s reported: %s.", count(len(s.Events), "node"), kind)
	when := ""
	if d, ok := t.told[rec.Event.Subject]; ok {
		when = fmt.Sprintf(", %s after it was told", round(rec.Event.Time.Sub(d.at)))
	}
	line := fmt.Sprintf("%s%s: %s [%d]", rec.Event.Subject, when, text, rec.Seq)
	s.Details = enough(s.Details, line, len(s.Events))
}

// enough adds a line, or counts it among those that are not written out.
func enough(lines []string, line string, all int) []string {
	if all <= few {
		return append(lines, line)
	}
	return append(lines[:few], fmt.Sprintf("and %d more", all-few))
}

func (t *teller) held(rec events.Record, f *events.ReleaseHeld) {
	s, fresh := t.group(fmt.Sprint("held", t.phase), rec)
	if !fresh {
		return // for a further architecture
	}
	s.Text = fmt.Sprintf("%s held %s%s. Nobody is told to run it until the hold is lifted.", rec.Event.Actor, t.plan.Version, colon(f.Reason))
	s.Evidence = Cited(f)
}

// followed tells of a later rollout over some of the nodes.
func (t *teller) followed(rec events.Record, f *events.RolloutStarted) {
	shared := 0
	for _, n := range f.Cohort {
		if _, ok := slices.BinarySearch(t.plan.Cohort, n); ok {
			shared++
		}
	}
	if shared == 0 || t.after == few {
		return
	}
	t.after++
	t.step(rec, fmt.Sprintf("Afterwards %s started rollout %s of %s over %d of these %s.", rec.Event.Actor, rec.Event.Subject, f.Version, shared, count(len(t.plan.Cohort), "node")))
}

// Belongs lists the questions to the log whose answers, in order and with what
// the decisions among them cite, make the story of a rollout.
func Belongs(id string, started events.Record, plan *events.RolloutStarted) []projections.Query {
	from := started.Seq
	return []projections.Query{
		{Rollout: id, From: from},
		{Type: "node.rolled-back", Version: plan.Version, From: from},
		{Type: "node.refused", Version: plan.Version, From: from},
		{Type: "release.held", Version: plan.Version, From: from},
		{Type: "release.hold-lifted", Version: plan.Version, From: from},
		{Type: "node.decommissioned", From: from},
		{Type: "rollout.started", From: from},
	}
}
