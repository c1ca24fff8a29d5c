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

func known(fresh func() Fact) {
	name := fresh().EventType()
	factTypes[name], typeNames[name] = fresh, name
}

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
	known(func() Fact { return &batchOpenedV1{} })
	known(func() Fact { return &BatchPassed{} })
	known(func() Fact { return &RolloutHalted{} })
	known(func() Fact { return &RolloutAborted{} })
	known(func() Fact { return &RolloutCompleted{} })
	known(func() Fact { return &ReleaseHeld{} })
	known(func() Fact { return &ReleaseHoldLifted{} })
	known(func() Fact { return &NodeDecommissioned{} })
	known(func() Fact { return &NodeInvited{} })
	known(func() Fact { return &NodeJoinRefused{} })
	known(func() Fact { return &NodeRevoked{} })
	known(func() Fact { return &NodeAway{} })
	known(func() Fact { return &UserAdded{} })
	known(func() Fact { return &UserRevoked{} })
	known(func() Fact { return &KeyTrusted{} })
	known(func() Fact { return &RolloutPaused{} })
	known(func() Fact { return &RolloutResumed{} })
	known(func() Fact { return &RolloutReverted{} })
	known(func() Fact { return &RolloutAmended{} })
}

// Release is one version of the host package for one architecture.
type Release struct {
	Version      string `json:"version"`
	Architecture string `json:"architecture"`
	File         string `json:"file"`
	Size         int64  `json:"size"` // bytes
	SHA256       string `json:"sha256"`
	// Signature is by the release key, over [ReleaseText]. Nodes that pinned
	// that key install nothing without it.
	Signature string `json:"signature,omitempty"`
}

// ReleaseAdded: a package is in the object store, whole and checked.
type ReleaseAdded struct {
	Release
}

func (*ReleaseAdded) EventType() string { return "mesh.release.added.v1" }
func (*ReleaseAdded) aggregate() string { return AggregateRelease }

// NodeEnrolled: a machine joined under the node's name. Only its newest key is
// let in: one that joined before under the same name is not, any more.
type NodeEnrolled struct {
	Labels map[string]string `json:"labels,omitempty"`
	// PublicKey is the machine's own nkey. Its seed never leaves the machine.
	PublicKey string `json:"public_key"`
	Invite    string `json:"invite,omitempty"`     // that it joined with
	MachineID string `json:"machine_id,omitempty"` // what the machine calls itself
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

// ReleaseHeld: nobody is declared the release until the hold is lifted.
type ReleaseHeld struct {
	Reason string `json:"reason"`
	// Rollout and Evidence say on what the mesh itself held the release.
	Rollout  string   `json:"rollout,omitempty"`
	Evidence Evidence `json:"evidence,omitzero"`
	AsOf     Position `json:"as_of,omitzero"`
}

func (*ReleaseHeld) EventType() string { return "mesh.release.held.v1" }
func (*ReleaseHeld) aggregate() string { return AggregateRelease }

// ReleaseHoldLifted: the release may be declared again.
type ReleaseHoldLifted struct {
	Reason string `json:"reason,omitempty"`
}

func (*ReleaseHoldLifted) EventType() string { return "mesh.release.hold-lifted.v1" }
func (*ReleaseHoldLifted) aggregate() string { return AggregateRelease }

// NodeDecommissioned: the machine is no longer part of the fleet. It leaves the
// cohort of every rollout.
type NodeDecommissioned struct {
	Reason string `json:"reason,omitempty"`
}

func (*NodeDecommissioned) EventType() string { return "mesh.node.decommissioned.v1" }
func (*NodeDecommissioned) aggregate() string { return AggregateNode }

// NodeInvited: a token was issued with which one machine may join under the
// node's name, once.
type NodeInvited struct {
	Invite  string            `json:"invite"`
	Labels  map[string]string `json:"labels,omitempty"`
	Expires time.Time         `json:"expires"`
	// PublicKey is the invite's own nkey, which opens the joining door only.
	PublicKey string `json:"public_key"`
}

func (*NodeInvited) EventType() string { return "mesh.node.invited.v1" }
func (*NodeInvited) aggregate() string { return AggregateNode }

// NodeJoinRefused: somebody knocked at the joining door and was not let in. At
// most one a minute for each node is recorded.
type NodeJoinRefused struct {
	Invite    string `json:"invite,omitempty"` // empty: a node that wanted to return
	Reason    string `json:"reason"`
	PublicKey string `json:"public_key,omitempty"`
	MachineID string `json:"machine_id,omitempty"`
}

func (*NodeJoinRefused) EventType() string { return "mesh.node.join-refused.v1" }
func (*NodeJoinRefused) aggregate() string { return AggregateNode }

// NodeRevoked: the node's key is no longer let in.
type NodeRevoked struct {
	Reason string `json:"reason,omitempty"`
}

func (*NodeRevoked) EventType() string { return "mesh.node.revoked.v1" }
func (*NodeRevoked) aggregate() string { return AggregateNode }

// UserAdded: a credential was issued for a person or a tool.
type UserAdded struct {
	Role      string `json:"role"`
	PublicKey string `json:"public_key"`
}

func (*UserAdded) EventType() string { return "mesh.user.added.v1" }
func (*UserAdded) aggregate() string { return AggregateUser }

// UserRevoked: the user's credentials are no longer let in.
type UserRevoked struct {
	Reason string `json:"reason,omitempty"`
}

func (*UserRevoked) EventType() string { return "mesh.user.revoked.v1" }
func (*UserRevoked) aggregate() string { return AggregateUser }

// KeyTrusted: a key signs from now on, the delivery key declarations and the
// release key releases. The first of each is trusted by who joins; each later
// one is signed by the one before it.
type KeyTrusted struct {
	Rotation
}

func (*KeyTrusted) EventType() string { return "mesh.key.trusted.v1" }
func (*KeyTrusted) aggregate() string { return AggregateKey }
