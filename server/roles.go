package server

import (
	"slices"
	"time"

	"github.com/nats-io/jwt/v2"

	"noxmesh/events"
)

// The log is in an account that nobody from outside gets into. Permissions bind
// the subject that a client publishes on, not the subject that it asks the
// answer to be sent to, and the broker answers with its own rights. In the
// account of the streams a node could publish its heartbeat with
// mesh.event.node.x as reply subject, and the broker would append its
// acknowledgement to the log, which cannot be purged (measured with nats-server
// 2.15.3; the test of that is in reply_test.go). A consumer's deliveries can be
// aimed as well. In the accounts of nodes, of people and of the door there is no
// log to aim at, and no JetStream. What they share with the account of the
// streams is listed here and in people.go, and nowhere else.

// name is where the broker puts the user's name into a template.
const name = "{{name()}}"

// directGet is the subject form of Direct Get, which is limited to the subjects
// in it. The bare form takes the wanted subject from its payload, where no
// permission reaches it: it is never granted.
func directGet(stream, subject string) string {
	return "$JS.API.DIRECT.GET." + stream + "." + subject
}

const (
	packageMeta  = "$O." + events.BucketPackages + ".M.*"
	packageChunk = "$O." + events.BucketPackages + ".C.*"
)

// nodeRequests are the subjects on which the mesh's account hears nodes.
func nodeRequests(node string, kinds ...string) []string {
	out := []string{
		events.HeartbeatSubject(node),
		directGet(events.StreamDeclarations, events.DeclaredSubject(node)),
		directGet(events.StreamPackages, packageMeta),
		directGet(events.StreamPackages, packageChunk),
		events.RenewSubject(node),
	}
	for _, kind := range kinds {
		out = append(out, events.ReportSubject(node, kind))
	}
	return out
}

// doorRequests are the subjects on which the mesh's account hears those who
// stand at the door.
func doorRequests(who string) []string {
	return []string{events.JoinSubject(who), events.ReturnSubject(who)}
}

// accounts makes the claims of the accounts that have users.
func (id *Identity) accounts(revoked RevokedKeys) ([]*jwt.AccountClaims, error) {
	pub, err := id.publicKeys()
	if err != nil {
		return nil, err
	}
	mesh := pub[id.mesh]
	nodes := nodesAccount(pub[id.nodes], mesh, pub[id.roleNode])
	revoke(nodes, revoked.Nodes)
	people := peopleAccount(pub[id.people], mesh, map[string]string{
		RoleOperator: pub[id.roleOperator], RoleAuditor: pub[id.roleAuditor], RoleViewer: pub[id.roleViewer],
	})
	revoke(people, revoked.People)
	door := doorAccount(pub[id.door], mesh, pub[id.roleInvite], pub[id.roleReturn])
	revoke(door, revoked.Door)
	return []*jwt.AccountClaims{meshAccount(mesh), nodes, people, door}, nil
}

// meshAccount is the account of the streams and of the server.
func meshAccount(pub string) *jwt.AccountClaims {
	a := jwt.NewAccountClaims(pub)
	a.Name = "mesh"
	a.Limits.JetStreamLimits = jwt.JetStreamLimits{
		MemoryStorage: jwt.NoLimit, DiskStorage: jwt.NoLimit, // memory: readers' state
		Streams: jwt.NoLimit, Consumer: jwt.NoLimit,
		MaxAckPending: jwt.NoLimit, MemoryMaxStreamBytes: jwt.NoLimit, DiskMaxStreamBytes: jwt.NoLimit,
	}
	for _, s := range slices.Concat(nodeRequests("*", "*"), doorRequests("*"), []string{events.APISubject("*", ">")}) {
		a.Exports.Add(&jwt.Export{Name: s, Subject: jwt.Subject(s), Type: jwt.Service})
	}
	s := jwt.Subject(events.DeclarationSubject("*"))
	a.Exports.Add(&jwt.Export{Name: string(s), Subject: s, Type: jwt.Stream})
	return a
}

// nodesAccount is the account of the nodes. It has no streams.
func nodesAccount(pub, mesh, role string) *jwt.AccountClaims {
	a := jwt.NewAccountClaims(pub)
	a.Name = "nodes"
	for _, s := range nodeRequests("*", "*") {
		a.Imports.Add(&jwt.Import{Name: s, Account: mesh, Subject: jwt.Subject(s), Type: jwt.Service})
	}
	s := jwt.Subject(events.DeclarationSubject("*"))
	a.Imports.Add(&jwt.Import{Name: string(s), Account: mesh, Subject: s, Type: jwt.Stream})
	a.SigningKeys.AddScopedSigner(nodeRole(role))
	return a
}

// doorAccount is the account of those who join or come back. All they can do is
// to ask for that.
func doorAccount(pub, mesh, invites, returns string) *jwt.AccountClaims {
	a := jwt.NewAccountClaims(pub)
	a.Name = "door"
	for _, s := range doorRequests("*") {
		a.Imports.Add(&jwt.Import{Name: s, Account: mesh, Subject: jwt.Subject(s), Type: jwt.Service})
	}
	a.SigningKeys.AddScopedSigner(doorRole("invite", invites, events.JoinSubject(name), events.InboxPrefix("join", name)))
	a.SigningKeys.AddScopedSigner(doorRole("return", returns, events.ReturnSubject(name), events.InboxPrefix("door", name)))
	return a
}

// doorRole is what one who stands at the door may do.
func doorRole(role, key, request, inbox string) *jwt.UserScope {
	scope := jwt.NewUserScope()
	scope.Key = key
	scope.Role = role
	t := &scope.Template
	t.Pub.Allow.Add(request)
	t.Sub.Allow.Add(inbox + ".>")
	t.NatsLimits.Subs = 2
	t.NatsLimits.Payload = 4 << 10
	t.AllowedConnectionTypes.Add(jwt.ConnectionTypeStandard, jwt.ConnectionTypeInProcess)
	return scope
}

// nodeRole is what a node may do: say its own heartbeat and reports, read its
// own declaration and any package.
func nodeRole(key string) *jwt.UserScope {
	scope := jwt.NewUserScope()
	scope.Key = key
	scope.Role = "node"
	t := &scope.Template
	t.Pub.Allow.Add(nodeRequests(name, events.ReportKinds...)...)
	t.Sub.Allow.Add(events.DeclarationSubject(name), events.InboxPrefix("node", name)+".>")
	t.NatsLimits.Subs = 16
	t.NatsLimits.Payload = events.MaxReport + 4<<10 // headers too
	t.AllowedConnectionTypes.Add(jwt.ConnectionTypeStandard, jwt.ConnectionTypeInProcess)
	return scope
}

// dedupWindow is how long the broker remembers message ids on streams that
// nodes write. Ids are the sender's to choose, so a long one would let a node
// use up another's; a repeated report is recognised by what is in it.
const dedupWindow = time.Second
