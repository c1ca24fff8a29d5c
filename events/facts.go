package events

import "time"

// Fact is the data of one event type. The set is closed: a fact lives in this
// package.
type Fact interface {
	// EventType is the full type, mesh.<aggregate>.<fact>.v<n>.
	EventType() string
	aggregate() string
}

// factTypes makes an empty fact for each type this program knows.
var factTypes = map[string]func() Fact{}

func known(fresh func() Fact) { factTypes[fresh().EventType()] = fresh }

func init() {
	known(func() Fact { return &ReleaseAdded{} })
	known(func() Fact { return &NodeEnrolled{} })
	known(func() Fact { return &NodeConfirmed{} })
	known(func() Fact { return &NodeRolledBack{} })
	known(func() Fact { return &NodeRefused{} })
	known(func() Fact { return &NodeFailedToApply{} })
	known(func() Fact { return &NodeReportRejected{} })
	known(func() Fact { return &Declared{} })
	known(func() Fact { return &RolloutStarted{} })
	known(func() Fact { return &BatchOpened{} })
	known(func() Fact { return &BatchPassed{} })
	known(func() Fact { return &RolloutHalted{} })
	known(func() Fact { return &RolloutAborted{} })
	known(func() Fact { return &RolloutCompleted{} })
}

// Release is one version of the host package for one architecture.
type Release struct {
	Version      string `json:"version"`
	Architecture string `json:"architecture"`
	File         string `json:"file"`
	Size         int64  `json:"size"` // bytes
	SHA256       string `json:"sha256"`
}

// ReleaseAdded: a package is in the object store, whole and checked.
type ReleaseAdded struct {
	Release
}

func (*ReleaseAdded) EventType() string { return "mesh.release.added.v1" }
func (*ReleaseAdded) aggregate() string { return AggregateRelease }

// NodeEnrolled: a credential was issued for a node.
type NodeEnrolled struct {
	Labels map[string]string `json:"labels,omitempty"`
	// PublicKey is the user nkey that the credential is for.
	PublicKey string `json:"public_key"`
}

func (*NodeEnrolled) EventType() string { return "mesh.node.enrolled.v1" }
func (*NodeEnrolled) aggregate() string { return AggregateNode }

// Receipt says from which report of the node a fact was taken.
type Receipt struct {
	ReportID  string `json:"report_id"`
	ReportSeq uint64 `json:"report_seq"` // in REPORTS
	// NodeTime is the node's own clock. It is shown, never judged by.
	NodeTime time.Time `json:"node_time"`
}

// SetReceipt is how the intake adds the receipt to a decoded report.
func (r *Receipt) SetReceipt(v Receipt) { *r = v }

// GetReceipt tells from which report the fact was taken.
func (r *Receipt) GetReceipt() Receipt { return *r }

// NodeConfirmed: the host started and completed one full reconcile.
type NodeConfirmed struct {
	Receipt
	Version  string `json:"version"`
	Revision uint64 `json:"revision"` // applied declaration, 0 before the first
	StartID  string `json:"start_id"`
}

func (*NodeConfirmed) EventType() string { return "mesh.node.confirmed.v1" }
func (*NodeConfirmed) aggregate() string { return AggregateNode }

// NodeRolledBack: the node's service manager gave a version up and put the
// known-good one back.
type NodeRolledBack struct {
	Receipt
	From     string `json:"from"`
	To       string `json:"to"`
	SHA256   string `json:"sha256,omitempty"`   // of the failed package, where known
	Revision uint64 `json:"revision,omitempty"` // that asked for the failed version, where known
	At       string `json:"at,omitempty"`       // node's clock, as the script wrote it
	Reason   string `json:"reason,omitempty"`
	Restarts int    `json:"restarts"`
	Exit     string `json:"exit,omitempty"`   // exit status of the last start
	Result   string `json:"result,omitempty"` // systemd's word for it
	Systemd  string `json:"systemd,omitempty"`
	// Journal is the last lines of the failing host, oldest first.
	Journal []string `json:"journal,omitempty"`
}

func (*NodeRolledBack) EventType() string { return "mesh.node.rolled-back.v1" }
func (*NodeRolledBack) aggregate() string { return AggregateNode }

// NodeRefused: the node will not install what it is declared to run.
type NodeRefused struct {
	Receipt
	Version  string `json:"version"`
	SHA256   string `json:"sha256,omitempty"`
	Revision uint64 `json:"revision"`
	Reason   string `json:"reason"`
}

func (*NodeRefused) EventType() string { return "mesh.node.refused.v1" }
func (*NodeRefused) aggregate() string { return AggregateNode }

// NodeFailedToApply: one resource of a declaration does not apply. The node
// goes on trying; this is said once for each revision, resource and error.
type NodeFailedToApply struct {
	Receipt
	Revision uint64 `json:"revision"`
	Resource string `json:"resource"` // type/name
	Error    string `json:"error"`
}

func (*NodeFailedToApply) EventType() string { return "mesh.node.failed-to-apply.v1" }
func (*NodeFailedToApply) aggregate() string { return AggregateNode }

// NodeReportRejected: a node sent something that is no report. At most one an
// hour for each node is recorded, so that a broken node cannot fill the log.
type NodeReportRejected struct {
	Receipt
	Kind   string `json:"kind"`
	Reason string `json:"reason"`
}

func (*NodeReportRejected) EventType() string { return "mesh.node.report-rejected.v1" }
func (*NodeReportRejected) aggregate() string { return AggregateNode }

// RolloutStarted freezes the plan.
type RolloutStarted struct {
	Version  string    `json:"version"`
	Releases []Release `json:"releases"` // one for each architecture met
	Selector string    `json:"selector,omitempty"`
	Cohort   []string  `json:"cohort"` // sorted
	// Targets is how many nodes of the cohort may be declared once batch i
	// (counted from 0) is open. It rises strictly and ends with the cohort.
	Targets []int  `json:"targets"`
	Policy  Policy `json:"policy"`
	Seed    uint64 `json:"seed"`
	// Retry asks nodes that rolled the version back to try it again.
	Retry bool `json:"retry,omitempty"`
}

func (*RolloutStarted) EventType() string { return "mesh.rollout.started.v1" }
func (*RolloutStarted) aggregate() string { return AggregateRollout }

// Policy is what a rollout is judged by.
type Policy struct {
	Batches []string `json:"batches"` // as the operator wrote them
	// Window is how long a batch may stay unheard, in listening time.
	Window Duration `json:"window"`
	// Soak is how long the same process start must keep beating to pass.
	Soak Duration `json:"soak"`
	// Presence is how lately a node must have been heard to be chosen.
	Presence Duration `json:"presence"`
	// MaxFailed is how many failures a batch after the first may have.
	MaxFailed int `json:"max_failed"`
}

// BatchOpened names the nodes of a batch. Their declarations follow from it.
type BatchOpened struct {
	Batch int      `json:"batch"` // from 1
	Nodes []string `json:"nodes"` // in the order chosen
	// Presence is, for each node, the heartbeat that showed it present.
	Presence []uint64 `json:"presence"`
}

func (*BatchOpened) EventType() string { return "mesh.rollout.batch-opened.v1" }
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
}

// BatchPassed: every node of the batch was judged, and few enough failed.
type BatchPassed struct {
	Batch    int          `json:"batch"`
	Passed   []NodePassed `json:"passed"`
	Failures []Failure    `json:"failures,omitempty"`
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
}

// Diagnosis is what a halt says is broken.
type Diagnosis string

const (
	DiagnosisRelease      Diagnosis = "release"
	DiagnosisMachine      Diagnosis = "machine"
	DiagnosisLink         Diagnosis = "link"
	DiagnosisInconclusive Diagnosis = "inconclusive"
)

// RolloutHalted: the rollout stopped on evidence. Only an operator moves it on.
type RolloutHalted struct {
	Batch     int       `json:"batch"`
	Reason    string    `json:"reason"`
	Diagnosis Diagnosis `json:"diagnosis"`
	Failures  []Failure `json:"failures"`
	// Recall are the nodes of the open batch that have not applied the
	// declaration yet and get their previous one back.
	Recall []string `json:"recall,omitempty"`
	// Undeclared is how many nodes of the cohort never heard of the release.
	Undeclared int `json:"undeclared"`
	// Listened is the listening time since the batch opened.
	Listened Duration `json:"listened"`
}

func (*RolloutHalted) EventType() string { return "mesh.rollout.halted.v1" }
func (*RolloutHalted) aggregate() string { return AggregateRollout }

// RolloutAborted: an operator ended it. Nodes keep what they have.
type RolloutAborted struct {
	Reason string `json:"reason,omitempty"`
	// Recall is as in [RolloutHalted], for a rollout aborted while it runs.
	Recall []string `json:"recall,omitempty"`
}

func (*RolloutAborted) EventType() string { return "mesh.rollout.aborted.v1" }
func (*RolloutAborted) aggregate() string { return AggregateRollout }

// RolloutCompleted: every node that could be reached passed or was tolerated.
type RolloutCompleted struct {
	Passed int `json:"passed"`
	Failed int `json:"failed"`
	// Tail are the nodes of the cohort that were never heard in time.
	Tail []string `json:"tail,omitempty"`
}

func (*RolloutCompleted) EventType() string { return "mesh.rollout.completed.v1" }
func (*RolloutCompleted) aggregate() string { return AggregateRollout }
