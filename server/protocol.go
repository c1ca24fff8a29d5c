package server

import (
	"time"

	"noxmesh/events"
	"noxmesh/projections"
	"noxmesh/projections/client"
	"noxmesh/rollout"
)

// What operators and tools ask the mesh. A request is JSON on
// mesh.api.<user>.<command>; the broker vouches for the user. The reply is a
// [reply] with a result or an error in plain words.

const (
	cmdNodeInvite       = "node.invite"
	cmdNodeRevoke       = "node.revoke"
	cmdNodeDeclare      = "node.declare"
	cmdNodeDecommission = "node.decommission"
	cmdReleasePart      = "release.part"
	cmdReleaseAdd       = "release.add"
	cmdReleaseList      = "release.list"
	cmdReleaseHold      = "release.hold"
	cmdReleaseLift      = "release.lift"
	cmdRolloutPlan      = "rollout.plan"
	cmdRolloutStart     = "rollout.start"
	cmdRolloutStatus    = "rollout.status"
	cmdRolloutList      = "rollout.list"
	cmdRolloutPause     = "rollout.pause"
	cmdRolloutResume    = "rollout.resume"
	cmdRolloutAbort     = "rollout.abort"
	cmdRolloutRevert    = "rollout.revert"
	cmdRolloutBacktest  = "rollout.backtest"
	cmdUserAdd          = "user.add"
	cmdUserList         = "user.list"
	cmdUserRevoke       = "user.revoke"
	cmdFleet            = "fleet"
	cmdLogRead          = "log.read"
	cmdStreamRead       = "stream.read"
)

// The form of requests and replies is package client's.
const (
	headerCommand = client.HeaderCommand
	maxRequest    = client.MaxRequest
)

type reply = client.Reply

// DeclareRequest sets what a node should be besides its host version, which is
// a rollout's business.
type DeclareRequest struct {
	Node      string            `json:"node"`
	Resources []events.Resource `json:"resources"`
}

// DeclareReply names the new declaration.
type DeclareReply struct {
	Revision uint64 `json:"revision"`
}

// DecommissionRequest takes a machine out of the fleet.
type DecommissionRequest struct {
	Node   string `json:"node"`
	Reason string `json:"reason,omitempty"`
}

// DecommissionReply tells what the node has left.
type DecommissionReply struct {
	Node    string `json:"node"`
	Already bool   `json:"already"` // it was decommissioned before
	// Rollouts are the open ones whose cohort it left.
	Rollouts []string `json:"rollouts,omitempty"`
}

// PartRequest brings one part of a package, see [events.PackagePart]. Parts that
// no release names do no harm.
type PartRequest struct {
	Name string `json:"name"`
	Data []byte `json:"data"`
}

// PartReply tells what became of a part.
type PartReply struct {
	Already bool `json:"already"` // it was there, and whole
}

// ReleaseAddRequest says that a package is in the object store.
type ReleaseAddRequest struct {
	Release events.Release `json:"release"`
	// Replace takes a rebuilt package in the place of one of the same version.
	Replace bool `json:"replace,omitempty"`
}

// ReleaseAddReply tells whether the release is new.
type ReleaseAddReply struct {
	Release events.Release `json:"release"`
	Already bool           `json:"already"`
	// Signed says that the release was there, and got its signature now.
	Signed bool `json:"signed,omitempty"`
	// Held is why nobody is declared the release, if it is held.
	Held string `json:"held,omitempty"`
}

// HoldRequest holds a version, or lifts the hold on it.
type HoldRequest struct {
	Version string `json:"version"`
	Reason  string `json:"reason,omitempty"` // needed to hold
}

// HoldReply tells which releases of the version the command changed.
type HoldReply struct {
	Version string `json:"version"`
	// Changed and Already are architectures. Already are those whose release
	// was held, or was not, as asked for.
	Changed []string `json:"changed"`
	Already []string `json:"already,omitempty"`
	// Rollouts are the open ones of the version.
	Rollouts []string `json:"rollouts,omitempty"`
}

// ReleaseList is all releases, the newest first.
type ReleaseList struct {
	Releases []projections.ReleaseView `json:"releases"`
	EventSeq uint64                    `json:"event_seq"`
	Past     *Past                     `json:"past,omitempty"`
}

// StartRequest asks for a rollout. Fields of the policy that are zero take
// their defaults.
type StartRequest struct {
	Version  string        `json:"version"`
	Selector string        `json:"selector,omitempty"`
	Policy   events.Policy `json:"policy"`
	// MaxFailed is what a batch after the canaries may have in failures, as
	// [ParseMaxFailed] reads it. If it is empty the policy counts; a policy that
	// says nothing about it either is "auto".
	MaxFailed string `json:"max_failed,omitempty"`
	Seed      uint64 `json:"seed,omitempty"` // random if zero
	// Retry asks nodes that rolled the version back to try it again.
	Retry bool `json:"retry,omitempty"`
}

// PlanReply is what a rollout that is asked for now would do now. Nothing is
// written.
type PlanReply struct {
	Version  string        `json:"version"`
	Selector string        `json:"selector,omitempty"`
	Cohort   int           `json:"cohort"`
	Batches  int           `json:"batches"` // planned
	Policy   events.Policy `json:"policy"`
	// Seed repeats the choice: a rollout that starts with it, while the same
	// nodes are heard, opens these batches.
	Seed     uint64           `json:"seed"`
	Schedule rollout.Schedule `json:"schedule"`
	// EventSeq and HeartbeatSeq are what the plan reflects.
	EventSeq     uint64 `json:"event_seq"`
	HeartbeatSeq uint64 `json:"heartbeat_seq"`
}

// RolloutRequest names a rollout, by its id or as "latest".
type RolloutRequest struct {
	ID     string `json:"id"`
	Reason string `json:"reason,omitempty"` // why it is paused, resumed or ended
	// Mode is for resuming a halted rollout.
	Mode events.ResumeMode `json:"mode,omitempty"`
	// At is the moment wanted of a status, now if there is none.
	At *time.Time `json:"at,omitempty"`
}

// AtRequest asks for a list as it was at a moment, or is now if there is none.
type AtRequest struct {
	At *time.Time `json:"at,omitempty"`
}

// RolloutStatus is the status of a rollout, now or at the moment asked for.
type RolloutStatus struct {
	*rollout.Status
	Past *Past `json:"past,omitempty"`
}

// RolloutList is all rollouts, the newest first, without their nodes.
type RolloutList struct {
	Rollouts []*rollout.Status `json:"rollouts"`
	EventSeq uint64            `json:"event_seq"`
	Past     *Past             `json:"past,omitempty"`
}

// FleetRequest asks for a page of the fleet, or for one node in full detail.
type FleetRequest struct {
	After string `json:"after,omitempty"`
	Node  string `json:"node,omitempty"`
	// At is the moment wanted, now if there is none.
	At *time.Time `json:"at,omitempty"`
}

// Fleet is (a page of) the fleet, by name.
type Fleet struct {
	Nodes []projections.NodeView `json:"nodes"`
	More  bool                   `json:"more,omitempty"`
	// EventSeq and HeartbeatSeq are what the view reflects.
	EventSeq     uint64 `json:"event_seq"`
	HeartbeatSeq uint64 `json:"heartbeat_seq"`
	// Past is set in an answer about a moment that was asked for.
	Past *Past `json:"past,omitempty"`
}

// UserAddRequest asks for a credential for a person or a tool. One that the user
// has already is replaced, and no longer let in.
type UserAddRequest struct {
	User string `json:"user"`
	Role string `json:"role"`
}

// UserAddReply holds the credential. It is a secret.
type UserAddReply struct {
	Creds    string `json:"creds"`
	Replaced bool   `json:"replaced"` // the user had one that was let in until now
}

// UserRevokeRequest shuts a person or a tool out.
type UserRevokeRequest struct {
	User   string `json:"user"`
	Reason string `json:"reason,omitempty"`
}

// UserRevokeReply tells whether there was something to do.
type UserRevokeReply struct {
	User    string `json:"user"`
	Already bool   `json:"already"` // was revoked before
}

// UserList is everybody who was ever given a credential, by name.
type UserList struct {
	Users    []UserView `json:"users"`
	EventSeq uint64     `json:"event_seq"`
}

// UserView is one person or tool.
type UserView struct {
	User      string    `json:"user"`
	Role      string    `json:"role"`
	PublicKey string    `json:"public_key"` // of the newest credential
	Revoked   bool      `json:"revoked"`
	Since     time.Time `json:"since"` // of the newest credential, or of the revocation
}

// BacktestRequest asks what another policy would have made of a rollout. What
// is empty or zero stays as it was recorded.
type BacktestRequest struct {
	ID        string          `json:"id"`
	MaxFailed string          `json:"max_failed,omitempty"` // as in [StartRequest]
	Window    events.Duration `json:"window,omitempty"`
	Soak      events.Duration `json:"soak,omitempty"`
	Presence  events.Duration `json:"presence,omitempty"`
}
