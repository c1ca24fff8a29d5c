package events

import "time"

// RolloutStarted freezes the plan.
type RolloutStarted struct {
	Version  string    `json:"version"`
	Releases []Release `json:"releases"` // one for each architecture met
	Selector string    `json:"selector,omitempty"`
	Cohort   []string  `json:"cohort"` // sorted
	// Targets is how many nodes of the cohort may be declared in all once a
	// stage (counted from 1) is open. It rises strictly and ends with the cohort.
	Targets []int  `json:"targets"`
	Policy  Policy `json:"policy"`
	Seed    uint64 `json:"seed"`
	// Retry asks nodes that rolled the version back to try it again.
	Retry bool `json:"retry,omitempty"`
}

func (*RolloutStarted) EventType() string { return "mesh.rollout.started.v1" }
func (*RolloutStarted) aggregate() string { return AggregateRollout }

// TolerateAuto is the tolerance that judges a batch against what is ordinary.
const TolerateAuto = "auto"

// Policy is what a rollout is judged by.
type Policy struct {
	Batches []string `json:"batches"` // as the operator wrote them
	// Window is how long a batch may stay unheard, in listening time.
	Window Duration `json:"window"`
	// Soak is how long the same process start must keep beating to pass.
	Soak Duration `json:"soak"`
	// Presence is how lately a node must have been heard to be chosen.
	Presence Duration `json:"presence"`
	// Tolerate is what a batch after the canaries may have in failures: "auto",
	// or a percentage of the batch like "5%". If it is empty, MaxFailed counts.
	Tolerate string `json:"tolerate,omitempty"`
	// MaxFailed is how many failures a batch after the canaries may have.
	MaxFailed int `json:"max_failed"`
}

// Position is how far a decision had read: with it, the policy and the time of
// the event, anyone can decide again.
type Position struct {
	Event     uint64 `json:"event"`     // last sequence of EVENTS read
	Heartbeat uint64 `json:"heartbeat"` // last sequence of HEARTBEATS read
}

// Control is what became of the nodes that were not told anything meanwhile:
// the ones outside of the open batch that were present when the count began.
type Control struct {
	Nodes  int       `json:"nodes"`
	Silent int       `json:"silent"`         // of them not heard any more
	Since  time.Time `json:"since,omitzero"` // by when half of the silent had been heard last
}

// BatchOpened names the nodes of a batch. Their declarations follow from it.
type BatchOpened struct {
	Batch int `json:"batch"` // from 1, counting every batch of the rollout
	// Stage is which of the plan's targets the batch works towards, from 1. The
	// canary stage is 1; a stage is opened anew after a halt is resumed.
	Stage int      `json:"stage"`
	Nodes []string `json:"nodes"` // in the order chosen
	// Presence is, for each node, the heartbeat that showed it present.
	Presence []uint64 `json:"presence"`
	// Retry asks these nodes to try the version again where they rolled back.
	Retry bool `json:"retry,omitempty"`
	// Tail: nodes of a completed rollout that were absent and are heard again.
	// Each is judged by itself.
	Tail bool     `json:"tail,omitempty"`
	AsOf Position `json:"as_of,omitzero"`
}

func (*BatchOpened) EventType() string { return "mesh.rollout.batch-opened.v2" }
func (*BatchOpened) aggregate() string { return AggregateRollout }

// Evidence is what a verdict rests on: sequence numbers in the streams.
type Evidence struct {
	Heartbeats []uint64 `json:"heartbeats,omitempty"`
	Events     []uint64 `json:"events,omitempty"`
}

// NodePassed is one node's share in a passed batch.
type NodePassed struct {
	Node     string   `json:"node"`
	StartID  string   `json:"start_id"`
	Evidence Evidence `json:"evidence"` // first and last heartbeat of the soak
	// From and To are when those two were stored, by the broker's clock: heartbeats
	// age out, and this stays.
	From time.Time `json:"from,omitzero"`
	To   time.Time `json:"to,omitzero"`
}

// BatchPassed: every node of the batch was judged or left the fleet, and few
// enough failed.
type BatchPassed struct {
	Batch    int          `json:"batch"`
	Passed   []NodePassed `json:"passed"`
	Failures []Failure    `json:"failures,omitempty"`
	Gone     []string     `json:"gone,omitempty"` // decommissioned meanwhile
	Control  Control      `json:"control,omitzero"`
	AsOf     Position     `json:"as_of,omitzero"`
}

func (*BatchPassed) EventType() string { return "mesh.rollout.batch-passed.v1" }
func (*BatchPassed) aggregate() string { return AggregateRollout }

// FailureKind is one of the four ways a node can fail a batch.
type FailureKind string

const (
	RolledBack FailureKind = "rolled-back" // came back on known-good and says so
	Silent     FailureKind = "silent"      // not heard past the window
	NotApplied FailureKind = "not-applied" // heard, still on the old version
	Unstable   FailureKind = "unstable"    // heard on the new one, but it keeps restarting
)

// Failure is one node's failure, in words and with its evidence.
type Failure struct {
	Node     string      `json:"node"`
	Kind     FailureKind `json:"kind"`
	Detail   string      `json:"detail"`
	Evidence Evidence    `json:"evidence"`
	// Listened is for how long the mesh had listened since the batch opened, for
	// failures that are one because time is over; LastHeard is when the node had
	// been heard last by then, if it ever was.
	Listened  Duration  `json:"listened,omitzero"`
	LastHeard time.Time `json:"last_heard,omitzero"`
}

// Diagnosis is what a halt says is broken.
type Diagnosis string

const (
	DiagnosisRelease      Diagnosis = "release"
	DiagnosisMachine      Diagnosis = "machine"
	DiagnosisLink         Diagnosis = "link"
	DiagnosisInconclusive Diagnosis = "inconclusive"
)

// Trait is something that failed nodes have in common more often than the
// others that were told the same.
type Trait struct {
	Attribute string `json:"attribute"` // architecture, os, kernel, from (version before), or a label's name
	Value     string `json:"value"`
	Failed    int    `json:"failed"`    // failed nodes that have it
	FailedOf  int    `json:"failed_of"` // failed nodes
	Others    int    `json:"others"`    // other nodes that have it
	OthersOf  int    `json:"others_of"` // other nodes
	// P is how likely at least so many of the failed would have it by chance.
	P float64 `json:"p"`
}

// RolloutHalted: the rollout stopped on evidence. Only an operator moves it on.
type RolloutHalted struct {
	Batch     int       `json:"batch"` // 0 if none was open
	Reason    string    `json:"reason"`
	Diagnosis Diagnosis `json:"diagnosis"`
	Failures  []Failure `json:"failures"`
	// Passed are the nodes of the open batch that had passed already.
	Passed []NodePassed `json:"passed,omitempty"`
	// Common is what the failed have in common, the most telling first.
	Common []Trait `json:"common,omitempty"`
	// Recall are the nodes of the open batch that have not applied the
	// declaration yet and get their previous one back.
	Recall []string `json:"recall,omitempty"`
	// Undeclared is how many nodes of the cohort never heard of the release.
	Undeclared int `json:"undeclared"`
	// Listened is the listening time since the batch opened, without the time
	// in which the link was away.
	Listened Duration `json:"listened"`
	Control  Control  `json:"control,omitzero"`
	// Evidence is what the halt rests on besides the failures' own.
	Evidence Evidence `json:"evidence,omitzero"`
	AsOf     Position `json:"as_of,omitzero"`
}

func (*RolloutHalted) EventType() string { return "mesh.rollout.halted.v1" }
func (*RolloutHalted) aggregate() string { return AggregateRollout }

// PauseCause is who or what paused or resumed a rollout.
type PauseCause string

const (
	ByOperator PauseCause = "operator"
	ByLink     PauseCause = "link" // the control group fell silent too, or came back
)

// RolloutPaused: no batch is opened until it is resumed. An open batch is
// watched on: what nodes report counts at once.
type RolloutPaused struct {
	Because PauseCause `json:"because"`
	Reason  string     `json:"reason,omitempty"`
	// Control is what made the mesh find that the link is away. The window
	// stands still from Control.Since on.
	Control Control  `json:"control,omitzero"`
	AsOf    Position `json:"as_of,omitzero"`
}

func (*RolloutPaused) EventType() string { return "mesh.rollout.paused.v1" }
func (*RolloutPaused) aggregate() string { return AggregateRollout }

// ResumeMode is what a resumed rollout does about the nodes that failed.
type ResumeMode string

const (
	ResumeRetry    ResumeMode = "retry"     // they try the version again
	ResumeLeaveOut ResumeMode = "leave-out" // they keep what they run
)

// RolloutResumed: a paused or halted rollout goes on.
type RolloutResumed struct {
	Because PauseCause `json:"because"`
	Reason  string     `json:"reason,omitempty"`
	// Mode is set when a halted rollout is resumed. What failed before then
	// is accepted: it no longer counts against the rollout.
	Mode    ResumeMode `json:"mode,omitempty"`
	Control Control    `json:"control,omitzero"`
	AsOf    Position   `json:"as_of,omitzero"`
}

func (*RolloutResumed) EventType() string { return "mesh.rollout.resumed.v1" }
func (*RolloutResumed) aggregate() string { return AggregateRollout }

// RolloutAborted: an operator ended it. Nodes keep what they have.
type RolloutAborted struct {
	Reason string `json:"reason,omitempty"`
	// Recall is as in [RolloutHalted], for a rollout aborted while it runs.
	Recall []string `json:"recall,omitempty"`
}

func (*RolloutAborted) EventType() string { return "mesh.rollout.aborted.v1" }
func (*RolloutAborted) aggregate() string { return AggregateRollout }

// RolloutReverted: an operator ended it, and every node that was declared the
// version gets back what it had before.
type RolloutReverted struct {
	Reason string   `json:"reason,omitempty"`
	Nodes  []string `json:"nodes"`
}

func (*RolloutReverted) EventType() string { return "mesh.rollout.reverted.v1" }
func (*RolloutReverted) aggregate() string { return AggregateRollout }

// RolloutCompleted: every node that could be reached passed or was tolerated.
type RolloutCompleted struct {
	Passed int `json:"passed"`
	Failed int `json:"failed"`
	// Tail are the nodes of the cohort that were never heard in time. They are
	// declared when they are next heard, unless the release is held.
	Tail []string `json:"tail,omitempty"`
	AsOf Position `json:"as_of,omitzero"`
}

func (*RolloutCompleted) EventType() string { return "mesh.rollout.completed.v1" }
func (*RolloutCompleted) aggregate() string { return AggregateRollout }

// RolloutAmended: evidence that came after a batch, or the rollout, was closed.
type RolloutAmended struct {
	Passed   []NodePassed `json:"passed,omitempty"`
	Failures []Failure    `json:"failures,omitempty"`
	AsOf     Position     `json:"as_of,omitzero"`
}

func (*RolloutAmended) EventType() string { return "mesh.rollout.amended.v1" }
func (*RolloutAmended) aggregate() string { return AggregateRollout }
