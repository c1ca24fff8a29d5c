package events

import (
	"fmt"
	"regexp"
	"strings"
)

// Streams of the mesh. Their configuration is in package server.
const (
	StreamEvents       = "EVENTS"
	StreamDeclarations = "DECLARATIONS"
	StreamHeartbeats   = "HEARTBEATS"
	StreamReports      = "REPORTS"
)

// BucketPackages is the object store that holds the packages of releases.
// Stream names it on the broker.
const (
	BucketPackages = "packages"
	StreamPackages = "OBJ_" + BucketPackages
)

// Aggregates: the things events are about. Each is one token in a subject.
const (
	AggregateRelease     = "release"
	AggregateNode        = "node"
	AggregateDeclaration = "declaration"
	AggregateRollout     = "rollout"
	AggregateUser        = "user"
	AggregateKey         = "key" // its ids are the roles of keys
)

// PulseID is who the mesh's own heartbeats come from. It is no valid node id,
// so no node can be enrolled under it.
const PulseID = "_mesh"

var nodeID = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

// CheckNodeID refuses everything that is not a host name label. It guards
// credentials: a user named "*" would publish as everyone.
func CheckNodeID(id string) error {
	if !nodeID.MatchString(id) {
		return fmt.Errorf("%q is no node name: use 1 to 63 of a-z, 0-9 and '-', not starting or ending with '-'", id)
	}
	return nil
}

// EventSubject is where events of one aggregate are.
func EventSubject(aggregate, id string) string { return "mesh.event." + aggregate + "." + id }

// HeartbeatSubject is where one node's heartbeats are.
func HeartbeatSubject(node string) string { return "mesh.heartbeat." + node }

// ReportSubject is where one node's reports of one kind are.
func ReportSubject(node, kind string) string { return "mesh.report." + node + "." + kind }

// DeclarationSubject is where a node hears of its new declaration.
func DeclarationSubject(node string) string { return "mesh.declaration." + node }

// DeclaredSubject is where the stream DECLARATIONS keeps a node's newest
// declaration. It is not [DeclarationSubject], since a stream may not
// republish onto its own subjects.
func DeclaredSubject(node string) string { return "mesh.declared." + node }

// InboxPrefix is where replies to one user are sent; kind is "node", "user",
// "join" (an invite) or "door" (a node that returns).
func InboxPrefix(kind, name string) string { return "_INBOX." + kind + "." + name }

// APISubject is where one user asks the mesh for something. The user's name is
// part of the subject, so the broker vouches for it.
func APISubject(user, command string) string { return "mesh.api." + user + "." + command }

// JoinSubject is where an invite is traded for a node's credential.
func JoinSubject(invite string) string { return "mesh.join." + invite }

// ReturnSubject is where a node that was away longer than its credential lives
// asks for a new one.
func ReturnSubject(node string) string { return "mesh.return." + node }

// RenewSubject is where a node asks for its next credential while it is linked.
func RenewSubject(node string) string { return "mesh.renew." + node }

// SubjectNode takes the node out of a heartbeat or report subject, and the
// kind out of a report's (empty for a heartbeat).
func SubjectNode(subject string) (node, kind string, err error) {
	t := strings.Split(subject, ".")
	switch {
	case len(t) == 3 && t[0] == "mesh" && t[1] == "heartbeat":
		return t[2], "", nil
	case len(t) == 4 && t[0] == "mesh" && t[1] == "report":
		return t[2], t[3], nil
	}
	return "", "", fmt.Errorf("subject %q is neither a heartbeat's nor a report's", subject)
}

// ReleaseKey is the id of a release: version and architecture in one token.
// Debian versions have no '_', so keys of different releases differ.
func ReleaseKey(version, architecture string) string {
	return strings.ReplaceAll(version, ".", "_") + "_" + architecture
}

// SplitReleaseKey is the way back from [ReleaseKey]. What is no key gives empty
// strings.
func SplitReleaseKey(key string) (version, architecture string) {
	i := strings.LastIndexByte(key, '_')
	if i < 0 {
		return "", ""
	}
	return strings.ReplaceAll(key[:i], "_", "."), key[i+1:]
}
