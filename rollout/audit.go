package rollout

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"noxmesh/events"
	"noxmesh/projections"
)

// Audit decides every recorded decision of the stager again. It is given the
// whole log first, then the heartbeats that are left, both in order, and trusts
// neither the server's fold nor its word. docs/stager.md says what it looks at.
//
// The log is kept in memory, about a kilobyte an event; heartbeats are not.
type Audit struct {
	only      string // rollout, empty: all
	records   []events.Record
	last      map[string]uint64 // last event on each subject so far
	decisions []*decision
	prepared  bool

	chains []*chain
	cited  map[uint64][]cite // by sequence of HEARTBEATS
	beats  uint64            // last sequence of HEARTBEATS that was given
	kept   uint64            // how many were given
	stored time.Time         // of the last one
	first  uint64            // sequence of the first one, 0: none was given
	mesh   *projections.Mesh // of the whole log, no heartbeats
	wants  wanted            // of the log alone
}

// AuditedBy is how far a decision could be audited.
type AuditedBy string

const (
	// Recomputed: the log and the heartbeats of then lead to the same decision.
	Recomputed AuditedBy = "recomputed"
	// Checked: it agrees with all that the log says. Heartbeats that it rests on
	// are no longer there.
	Checked AuditedBy = "checked"
)

// AuditedDecision is one recorded decision and how it was audited.
type AuditedDecision struct {
	Event   uint64          `json:"event"` // its sequence
	Time    time.Time       `json:"time"`
	Type    string          `json:"type"`
	Rollout string          `json:"rollout"`
	Node    string          `json:"node,omitempty"` // of a declaration
	AsOf    events.Position `json:"as_of,omitzero"`
	How     AuditedBy       `json:"how"`
	// Command: an operator's, of which the log says who gave it.
	Command bool `json:"command,omitempty"`
	// NotSeen is what could not be looked at, and why.
	NotSeen []string `json:"not_seen,omitempty"`
}

// Finding is a recorded decision that the policy does not bear out.
type Finding struct {
	Event    uint64    `json:"event"`
	Time     time.Time `json:"time"`
	Type     string    `json:"type"`
	Rollout  string    `json:"rollout"`
	Node     string    `json:"node,omitempty"`
	Recorded string    `json:"recorded"` // what the log says
	Policy   string    `json:"policy"`   // what it should
}

// AuditedRollout counts the decisions of one rollout.
type AuditedRollout struct {
	Rollout     string            `json:"rollout"`
	Version     string            `json:"version"`
	State       projections.State `json:"state"`
	Decisions   int               `json:"decisions"` // of the stager
	Recomputed  int               `json:"recomputed"`
	Checked     int               `json:"checked"`
	Commands    int               `json:"commands"`      // of operators
	NotBorneOut int               `json:"not_borne_out"` // decisions and commands
}

// AuditResult is what an audit found.
type AuditResult struct {
	Rollouts  []AuditedRollout  `json:"rollouts"`
	Findings  []Finding         `json:"findings"`
	Decisions []AuditedDecision `json:"decisions"`
	// Events is the last event read. Heartbeats are the ones that were left:
	// the sequences of the first and the last, and how many are missing up to
	// the last.
	Events     uint64          `json:"events"`
	Heartbeats AuditHeartbeats `json:"heartbeats"`
}

// AuditHeartbeats says which heartbeats were there to look at.
type AuditHeartbeats struct {
	First   uint64 `json:"first"`
	Last    uint64 `json:"last"`
	Missing uint64 `json:"missing"`
}

// decision is a recorded decision under audit.
type decision struct {
	AuditedDecision
	rec      events.Record
	fact     events.Fact
	before   uint64 // last event on its subject before it
	at       uint64 // last event that was read when it was decided, as far as is known
	cites    int    // heartbeats that it rests on
	seen     int    // of them those that are there
	findings []Finding
}

// NewAudit prepares an audit of one rollout, or of all if none is named.
func NewAudit(rollout string) *Audit {
	return &Audit{only: rollout, last: map[string]uint64{}, cited: map[uint64][]cite{}}
}

// ErrAudit is wrapped by errors of a log that cannot be audited at all.
var ErrAudit = errors.New("this log cannot be audited")

// Event gives the next event of the log; the first one has sequence 1.
func (a *Audit) Event(rec events.Record) error {
	if want := uint64(len(a.records)) + 1; rec.Seq != want {
		return fmt.Errorf("%w: %w: event %d follows %d", ErrAudit, projections.ErrGap, rec.Seq, want-1)
	}
	a.records = append(a.records, rec)
	subject, err := rec.Event.StreamSubject()
	if errors.Is(err, events.ErrUnknownType) {
		return nil // a newer writer's
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrAudit, err)
	}
	before := a.last[subject]
	a.last[subject] = rec.Seq
	fact, err := rec.Event.Fact()
	if err != nil {
		return fmt.Errorf("%w: event %d: %w", ErrAudit, rec.Seq, err)
	}
	d := &decision{rec: rec, fact: fact, before: before, at: rec.Seq - 1}
	d.Event, d.Time, d.Type, d.How = rec.Seq, rec.Event.Time, rec.Event.Type, Checked
	if !d.concerns() || a.only != "" && d.Rollout != a.only {
		return nil
	}
	a.decisions = append(a.decisions, d)
	return nil
}

// concerns says whether the event is a decision about a rollout, and notes which
// one, whose, and how far who decided had read.
func (d *decision) concerns() bool {
	d.Rollout = d.rec.Event.Subject
	switch f := d.fact.(type) {
	case *events.BatchOpened:
		d.AsOf = f.AsOf
	case *events.BatchPassed:
		d.AsOf = f.AsOf
	case *events.RolloutHalted:
		d.AsOf = f.AsOf
	case *events.RolloutCompleted:
		d.AsOf = f.AsOf
	case *events.RolloutAmended:
		d.AsOf = f.AsOf
	case *events.RolloutPaused:
		d.AsOf, d.Command = f.AsOf, f.Because == events.ByOperator
	case *events.RolloutResumed:
		d.AsOf, d.Command = f.AsOf, f.Because == events.ByOperator
	case *events.RolloutStarted, *events.RolloutAborted, *events.RolloutReverted:
		d.Command = true
	case *events.Declared:
		d.AsOf, d.Rollout, d.Node = f.AsOf, f.Because.Rollout, d.rec.Event.Subject
		return f.Because.Kind != events.CauseOperator
	case *events.ReleaseHeld:
		d.AsOf, d.Rollout = f.AsOf, f.Rollout
		return f.Rollout != ""
	default:
		return false
	}
	return true
}

// finding notes that the policy does not bear a decision out.
func (d *decision) finding(recorded, policy string, args ...any) {
	d.findings = append(d.findings, Finding{
		Event: d.Event, Time: d.Time, Type: d.Type, Rollout: d.Rollout, Node: d.Node,
		Recorded: recorded, Policy: fmt.Sprintf(policy, args...),
	})
}

func (d *decision) notSeen(format string, args ...any) {
	d.NotSeen = append(d.NotSeen, fmt.Sprintf(format, args...))
}

// prepare checks every decision against the log, and plans what is decided again
// while the heartbeats go by.
func (a *Audit) prepare() error {
	if a.prepared {
		return nil
	}
	a.prepared = true
	for _, d := range a.decisions {
		switch {
		case d.Command:
		case d.AsOf == events.Position{}:
			d.notSeen("how far the stager had read: that was not recorded yet")
		case d.AsOf.Event >= d.Event:
			d.finding(fmt.Sprintf("decided with event %d read", d.AsOf.Event), "a decision cannot rest on what came after it")
		case d.AsOf.Event < d.before:
			d.finding(fmt.Sprintf("decided with event %d read", d.AsOf.Event),
				"event %d of the same %s was there before it, and whoever has not read that writes nothing", d.before, aggregateOf(d.Type))
		default:
			d.at = d.AsOf.Event
		}
	}
	// The state that each decision saw: one fold serves all, in the order of
	// what they had read.
	ordered := slices.Clone(a.decisions)
	slices.SortStableFunc(ordered, func(x, y *decision) int { return cmp.Compare(x.at, y.at) })
	f := &follower{records: a.records, mesh: projections.NewMesh()}
	for _, d := range ordered {
		if err := f.to(d.at); err != nil {
			return err
		}
		a.check(d, f.mesh)
	}
	if err := f.to(uint64(len(a.records))); err != nil {
		return err
	}
	a.mesh = f.mesh
	a.chains = chainsOf(a.records, a.decisions)
	return nil
}

// follower folds the log up to where it is asked to.
type follower struct {
	records []events.Record
	mesh    *projections.Mesh
}

func (f *follower) to(seq uint64) error {
	for f.mesh.EventSeq < min(seq, uint64(len(f.records))) {
		if err := f.mesh.ApplyEvent(f.records[f.mesh.EventSeq]); err != nil {
			return fmt.Errorf("%w: %w", ErrAudit, err)
		}
	}
	return nil
}

// Result is what was found, once everything was given.
func (a *Audit) Result() (*AuditResult, error) {
	if err := a.prepare(); err != nil {
		return nil, err
	}
	for _, c := range a.chains {
		if err := c.before(a, 1<<63); err != nil {
			return nil, err
		}
	}
	out := &AuditResult{Rollouts: []AuditedRollout{}, Findings: []Finding{}, Decisions: []AuditedDecision{}, Events: uint64(len(a.records))}
	out.Heartbeats = AuditHeartbeats{First: a.first, Last: a.beats, Missing: a.beats - a.kept}
	counts := map[string]*AuditedRollout{}
	for _, d := range a.decisions {
		c := counts[d.Rollout]
		if c == nil {
			c = &AuditedRollout{Rollout: d.Rollout}
			if r := a.mesh.Rollouts[d.Rollout]; r != nil {
				c.Version, c.State = r.Plan.Version, r.State
			}
			counts[d.Rollout] = c
		}
		switch {
		case d.Command:
			c.Commands++
		case d.How == Recomputed:
			c.Decisions++
			c.Recomputed++
		default:
			c.Decisions++
			c.Checked++
			if gone := d.cites - d.seen; gone > 0 {
				d.notSeen("%d of %d heartbeats that it cites have aged out", gone, d.cites)
			}
		}
		if len(d.findings) > 0 {
			c.NotBorneOut++
		}
		out.Decisions = append(out.Decisions, d.AuditedDecision)
		out.Findings = append(out.Findings, d.findings...)
	}
	for _, r := range a.mesh.InOrder() {
		if c := counts[r.ID]; c != nil {
			out.Rollouts = append(out.Rollouts, *c)
			delete(counts, r.ID)
		}
	}
	for _, id := range sortedKeys(counts) { // rollouts that nobody started
		out.Rollouts = append(out.Rollouts, *counts[id])
	}
	if a.only != "" && len(out.Rollouts) == 0 {
		return nil, refuse("there is no rollout %q in this log", a.only)
	}
	return out, nil
}

func sortedKeys[V any](m map[string]V) []string {
	out := make([]string, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}
