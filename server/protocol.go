package server

import (
	"encoding/json"

	"noxmesh/events"
	"noxmesh/projections"
	"noxmesh/rollout"
)

// What operators and tools ask the mesh. A request is JSON on
// mesh.api.<user>.<command>; the broker vouches for the user. The reply is a
// [reply] with a result or an error in plain words.

const (
	cmdNodeEnroll    = "node.enroll"
	cmdNodeDeclare   = "node.declare"
	cmdReleaseAdd    = "release.add"
	cmdReleaseList   = "release.list"
	cmdRolloutStart  = "rollout.start"
	cmdRolloutStatus = "rollout.status"
	cmdRolloutList   = "rollout.list"
	cmdRolloutAbort  = "rollout.abort"
	cmdFleet         = "fleet"
)

// headerCommand carries the id of a command, made by whoever gives it. It is the
// cause of the events that follow.
const headerCommand = "Nox-Mesh-Command"

type reply struct {
	Error  string          `json:"error,omitempty"`
	Result json.RawMessage `json:"result,omitempty"`
}

// EnrollRequest asks for a credential for a node.
type EnrollRequest struct {
	Node   string            `json:"node"`
	Labels map[string]string `json:"labels,omitempty"`
	// Again issues a further credential for a node that is enrolled already.
	Again bool `json:"again,omitempty"`
}

// EnrollReply holds the credential. It is a secret.
type EnrollReply struct {
	Creds string `json:"creds"`
}

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
}

// ReleaseList is all releases, the newest first.
type ReleaseList struct {
	Releases []projections.ReleaseView `json:"releases"`
	EventSeq uint64                    `json:"event_seq"`
}

// StartRequest asks for a rollout. Fields of the policy that are zero take
// their defaults.
type StartRequest struct {
	Version  string        `json:"version"`
	Selector string        `json:"selector,omitempty"`
	Policy   events.Policy `json:"policy"`
	Seed     uint64        `json:"seed,omitempty"` // random if zero
	// Retry asks nodes that rolled the version back to try it again.
	Retry bool `json:"retry,omitempty"`
}

// RolloutRequest names a rollout: its id, or "latest".
type RolloutRequest struct {
	ID     string `json:"id"`
	Reason string `json:"reason,omitempty"` // for an abort
}

// RolloutList is all rollouts, the newest first, without their nodes.
type RolloutList struct {
	Rollouts []*rollout.Status `json:"rollouts"`
	EventSeq uint64            `json:"event_seq"`
}

// FleetRequest asks for a page of the fleet.
type FleetRequest struct {
	After string `json:"after,omitempty"`
}

// Fleet is (a page of) the fleet, by name.
type Fleet struct {
	Nodes []projections.NodeView `json:"nodes"`
	More  bool                   `json:"more,omitempty"`
	// EventSeq and HeartbeatSeq are what the view reflects.
	EventSeq     uint64 `json:"event_seq"`
	HeartbeatSeq uint64 `json:"heartbeat_seq"`
}
