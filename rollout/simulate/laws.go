package simulate

import (
	"errors"
	"fmt"
	"time"

	"noxmesh/events"
)

// ErrLaw is wrapped by every finding of [Laws].
var ErrLaw = errors.New("a law of the stager is broken")

// errForbidden: a declaration that something in the log before it forbids.
var errForbidden = errors.New("which is forbidden")

// Laws are the invariants of the stager, checked after each event from the
// records alone: nothing that a projection or the stager thinks goes in.
//
//  1. Nodes that are declared because of a batch and not judged yet are all in
//     the open batch. After completion no more than a twentieth of what passed
//     is unjudged at once, at least one.
//  2. While halted, and after the end, nothing is declared for a batch; while
//     paused none is opened.
//  3. A batch opens only after the last one passed, or a halt was resumed. It
//     names no node that was exposed before, unless that was recalled or failed
//     before a halt that was resumed.
//  4. A release that nobody passed on has exposed the first batch only, and
//     others in its place if all of that left the fleet.
//  5. Nothing is declared twice, and each declaration follows the batch that
//     names the node.
//  6. What a passed batch accounts for is exactly its nodes.
//  7. A held release is declared to nobody.
//
// That counts add up to the cohort is checked by the [World].
type Laws struct {
	// Late is how late some server reads. Declarations are on other subjects
	// than what forbids them, and the log has no fence over two subjects: a
	// server that has not read of a halt, a hold or the end of a batch yet may
	// still write a declaration of a batch that was opened before. That long
	// after such an event it is not held against the stager. It must be taken
	// back then, see [Laws.Loose].
	Late time.Duration

	loose    map[string]bool // nodes with such a declaration
	changed  time.Time       // last event that is no declaration
	rollouts map[string]*law
	declared map[string]bool // cause and node
	held     map[string]bool // release keys
}

// law is one rollout as its records tell it.
type law struct {
	state   lawState
	paused  bool
	open    map[string]bool // nodes of the open batch, nil if none is open
	number  int             // of the newest batch
	opened  int             // batches that are not the tail's
	nodes   map[string]*lawNode
	passed  int
	waiting map[string]bool // declared because of a batch, not judged
	resumed int             // halts that were resumed
	cohort  map[string]bool
}

type lawState string

const (
	lawRunning   lawState = "running"
	lawHalted    lawState = "halted"
	lawEnded     lawState = "ended"
	lawCompleted lawState = "completed"
)

// lawNode is one exposed node.
type lawNode struct {
	batch   int
	resumed int // how many halts had been resumed when it was exposed
	passed  bool
	judged  bool
	free    bool // recalled: may be exposed again
	gone    bool
}

// NewLaws starts with an empty log.
func NewLaws() *Laws {
	return &Laws{loose: map[string]bool{}, rollouts: map[string]*law{}, declared: map[string]bool{}, held: map[string]bool{}}
}

// Exposed is how many nodes of a rollout were ever in a batch, and how many
// were in its first one.
func (l *Laws) Exposed(rollout string) (all, first int) {
	if r := l.rollouts[rollout]; r != nil {
		for _, n := range r.nodes {
			all++
			if n.batch == 1 {
				first++
			}
		}
	}
	return all, first
}

// Loose are the nodes that were declared a version too late (see [Laws.Late])
// and neither had that taken back nor were judged. It is empty once every server
// had the time to read and to decide.
func (l *Laws) Loose() []string {
	var out []string
	for node := range l.loose {
		judged := false
		for _, r := range l.rollouts {
			n := r.nodes[node]
			judged = judged || n != nil && n.judged
		}
		if !judged {
			out = append(out, node)
		}
	}
	return sorted(out)
}

// Check looks at the next record. fact is its decoded data.
func (l *Laws) Check(rec events.Record, fact events.Fact) error {
	var err error
	if d, ok := fact.(*events.Declared); !ok || d.Because.Kind != events.CauseBatch {
		l.changed = rec.Event.Time
	}
	switch f := fact.(type) {
	case *events.ReleaseHeld:
		l.held[rec.Event.Subject] = true
	case *events.ReleaseHoldLifted:
		delete(l.held, rec.Event.Subject)
	case *events.Declared:
		err = l.declaration(f)
		if err != nil && errors.Is(err, errForbidden) && l.Late > 0 && rec.Event.Time.Sub(l.changed) <= l.Late {
			n := l.rollouts[f.Because.Rollout].nodes[f.Node]
			n.judged = n.gone // who left the fleet hears of nothing any more
			l.loose[f.Node] = true
			err = nil
		} else {
			delete(l.loose, f.Node) // whatever it was is replaced
		}
	case *events.NodeDecommissioned:
		delete(l.loose, rec.Event.Subject)
		for _, r := range l.rollouts {
			r.judged(rec.Event.Subject)
			if n := r.nodes[rec.Event.Subject]; n != nil {
				n.gone = true
			}
		}
	case *events.RolloutStarted:
		r := &law{state: lawRunning, nodes: map[string]*lawNode{}, waiting: map[string]bool{}, cohort: map[string]bool{}}
		for _, n := range f.Cohort {
			r.cohort[n] = true
		}
		l.rollouts[rec.Event.Subject] = r
	default:
		if r := l.rollouts[rec.Event.Subject]; r != nil {
			err = r.check(fact)
		}
	}
	if err != nil {
		return fmt.Errorf("%w: event %d, %s of %s: %w", ErrLaw, rec.Seq, rec.Event.Type, rec.Event.Subject, err)
	}
	return nil
}

func (r *law) judged(node string) {
	delete(r.waiting, node)
	if n := r.nodes[node]; n != nil {
		n.judged = true
	}
}

func (r *law) verdicts(passed []events.NodePassed, failures []events.Failure) {
	for _, p := range passed {
		r.judged(p.Node)
		if n := r.nodes[p.Node]; n != nil && !n.passed {
			n.passed = true
			r.passed++
		}
	}
	for _, f := range failures {
		r.judged(f.Node)
		if n := r.nodes[f.Node]; n != nil && n.passed {
			n.passed = false
			r.passed--
		}
	}
}

func (r *law) check(fact events.Fact) error {
	switch f := fact.(type) {
	case *events.BatchOpened:
		return r.batchOpened(f)
	case *events.BatchPassed:
		return r.batchPassed(f)
	case *events.RolloutAmended:
		r.verdicts(f.Passed, f.Failures)
	case *events.RolloutPaused:
		// An operator may take over a pause that is the link's.
		if r.state != lawRunning || r.paused && f.Because != events.ByOperator {
			return fmt.Errorf("it is %s, paused %v", r.state, r.paused)
		}
		r.paused = true
	case *events.RolloutResumed:
		switch {
		case r.state == lawHalted:
			r.state, r.open = lawRunning, nil
			r.resumed++
		case r.state != lawRunning || !r.paused:
			return fmt.Errorf("it is %s and not paused", r.state)
		}
		r.paused = false
	case *events.RolloutHalted:
		if r.state != lawRunning {
			return fmt.Errorf("it is %s", r.state)
		}
		r.verdicts(f.Passed, f.Failures)
		r.state, r.paused = lawHalted, false
	case *events.RolloutAborted, *events.RolloutReverted:
		if r.state == lawEnded {
			return errors.New("it has ended")
		}
		r.state, r.open, r.paused = lawEnded, nil, false
	case *events.RolloutCompleted:
		if r.state != lawRunning || r.open != nil || r.paused {
			return fmt.Errorf("it is %s, paused %v, batch open %v", r.state, r.paused, r.open != nil)
		}
		r.state = lawCompleted
	}
	return nil
}

func (r *law) batchOpened(f *events.BatchOpened) error {
	switch {
	case f.Tail && r.state != lawCompleted, !f.Tail && r.state != lawRunning:
		return fmt.Errorf("batch %d is opened while the rollout is %s", f.Batch, r.state)
	case r.paused:
		return fmt.Errorf("batch %d is opened while the rollout is paused", f.Batch)
	case r.open != nil:
		return fmt.Errorf("batch %d is opened while batch %d is open", f.Batch, r.number)
	case f.Batch != r.number+1:
		return fmt.Errorf("batch %d follows batch %d", f.Batch, r.number)
	case len(f.Nodes) == 0 || len(f.Presence) != len(f.Nodes):
		return fmt.Errorf("batch %d has %d nodes and %d heartbeats that show them present", f.Batch, len(f.Nodes), len(f.Presence))
	case !f.Tail && r.opened > 0 && r.passed == 0 && r.resumed == 0 && !(f.Stage == 1 && r.allGone()):
		return fmt.Errorf("batch %d is opened though nobody passed yet", f.Batch)
	}
	r.number = f.Batch
	names := make(map[string]bool, len(f.Nodes))
	for _, node := range f.Nodes {
		switch n := r.nodes[node]; {
		case !r.cohort[node]:
			return fmt.Errorf("batch %d names %s, which is not in the cohort", f.Batch, node)
		case names[node]:
			return fmt.Errorf("batch %d names %s twice", f.Batch, node)
		case n == nil || n.free:
		case n.gone:
			return fmt.Errorf("batch %d names %s, which left the fleet", f.Batch, node)
		case n.passed:
			return fmt.Errorf("batch %d names %s, which passed in batch %d", f.Batch, node, n.batch)
		case n.resumed == r.resumed:
			return fmt.Errorf("batch %d names %s, which was exposed in batch %d", f.Batch, node, n.batch)
		}
		names[node] = true
	}
	for _, node := range f.Nodes {
		first := f.Batch
		if n := r.nodes[node]; n != nil {
			first = n.batch
		}
		r.nodes[node] = &lawNode{batch: first, resumed: r.resumed}
		delete(r.waiting, node)
	}
	if !f.Tail {
		for node := range r.waiting {
			return fmt.Errorf("batch %d is opened while %s, which is not in it, is declared and unjudged", f.Batch, node)
		}
		r.open = names
		r.opened++
	}
	return nil
}

// allGone says whether every exposed node left the fleet: others may take the
// canaries' place.
func (r *law) allGone() bool {
	for _, n := range r.nodes {
		if !n.gone {
			return false
		}
	}
	return true
}

func (r *law) batchPassed(f *events.BatchPassed) error {
	if r.state != lawRunning || r.open == nil || f.Batch != r.number {
		return fmt.Errorf("batch %d passes; the rollout is %s and its newest batch is %d, open %v", f.Batch, r.state, r.number, r.open != nil)
	}
	var all []string
	for _, p := range f.Passed {
		all = append(all, p.Node)
	}
	for _, x := range f.Failures {
		all = append(all, x.Node)
	}
	all = append(all, f.Gone...)
	left := len(r.open)
	seen := map[string]bool{}
	for _, node := range all {
		if !r.open[node] || seen[node] {
			return fmt.Errorf("batch %d judges %s twice, or it is not in it", f.Batch, node)
		}
		seen[node] = true
		left--
	}
	if left != 0 {
		return fmt.Errorf("batch %d passes with %d of %d nodes not accounted for", f.Batch, left, len(r.open))
	}
	r.verdicts(f.Passed, f.Failures)
	for _, node := range f.Gone {
		r.judged(node)
	}
	r.open = nil
	return nil
}

// declaration checks one that a rollout led to.
func (l *Laws) declaration(f *events.Declared) error {
	r := l.rollouts[f.Because.Rollout]
	if r == nil {
		return nil
	}
	n := r.nodes[f.Node]
	switch f.Because.Kind {
	case events.CauseRecall:
		if n == nil {
			return fmt.Errorf("%s is recalled and was never in a batch", f.Node)
		}
		n.free = true
		r.judged(f.Node)
		return nil
	case events.CauseRevert:
		r.judged(f.Node)
		return nil
	case events.CauseBatch:
	default:
		return nil
	}
	key := fmt.Sprint(f.Because, f.Node)
	if l.declared[key] {
		return fmt.Errorf("%s is declared a second time for batch %d", f.Node, f.Because.Batch)
	}
	l.declared[key] = true
	host := f.Host()
	switch {
	case host == nil:
		return fmt.Errorf("%s is declared no version", f.Node)
	case n == nil:
		return fmt.Errorf("%s is declared and in no batch", f.Node)
	case l.held[host.Key()]:
		return fmt.Errorf("%s is declared %s, %w: it is held", f.Node, host.Version, errForbidden)
	case n.gone:
		return fmt.Errorf("%s is declared, %w: it left the fleet", f.Node, errForbidden)
	case r.state == lawCompleted:
		r.waiting[f.Node] = true
		if most := max(1, r.passed/20); len(r.waiting) > most {
			return fmt.Errorf("%d nodes of the tail are unjudged at once, %d passed", len(r.waiting), r.passed)
		}
		return nil
	case r.state != lawRunning:
		return fmt.Errorf("%s is declared for batch %d, %w: the rollout is %s", f.Node, f.Because.Batch, errForbidden, r.state)
	case !r.open[f.Node] || f.Because.Batch != r.number:
		return fmt.Errorf("%s is declared for batch %d, %w: that is not open", f.Node, f.Because.Batch, errForbidden)
	}
	r.waiting[f.Node] = true
	return nil
}
