package server

import (
	"time"

	"github.com/nats-io/jwt/v2"

	"noxmesh/events"
)

// Nodes have an account of their own. Permissions bind the subject that a
// client publishes on, not the subject that it asks the answer to be sent to,
// and the broker answers with its own rights. In the account of the streams a
// node could publish its heartbeat with mesh.event.node.x as reply subject, and
// the broker would append its acknowledgement to the log, which cannot be
// purged (measured with nats-server 2.15.3; the test of that is in
// reply_test.go). In the nodes' account there is no log to aim at. What the two
// accounts share is listed here and nowhere else.

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
func nodeRequests(node, kind string) []string {
	return []string{
		events.HeartbeatSubject(node),
		events.ReportSubject(node, kind),
		directGet(events.StreamDeclarations, events.DeclaredSubject(node)),
		directGet(events.StreamPackages, packageMeta),
		directGet(events.StreamPackages, packageChunk),
	}
}

// meshAccount is the account of the streams, the server and the operators.
func meshAccount(pub, operators string) *jwt.AccountClaims {
	a := jwt.NewAccountClaims(pub)
	a.Name = "mesh"
	a.Limits.JetStreamLimits = jwt.JetStreamLimits{
		MemoryStorage: jwt.NoLimit, DiskStorage: jwt.NoLimit, // memory: readers' state
		Streams: jwt.NoLimit, Consumer: jwt.NoLimit,
		MaxAckPending: jwt.NoLimit, MemoryMaxStreamBytes: jwt.NoLimit, DiskMaxStreamBytes: jwt.NoLimit,
	}
	for _, s := range nodeRequests("*", "*") {
		a.Exports.Add(&jwt.Export{Name: s, Subject: jwt.Subject(s), Type: jwt.Service})
	}
	s := jwt.Subject(events.DeclarationSubject("*"))
	a.Exports.Add(&jwt.Export{Name: string(s), Subject: s, Type: jwt.Stream})
	a.SigningKeys.AddScopedSigner(operatorRole(operators))
	return a
}

// nodesAccount is the account of the nodes. It has no streams.
func nodesAccount(pub, role, mesh string) *jwt.AccountClaims {
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

// nodeRole is what a node may do: say its own heartbeat and reports, read its
// own declaration and any package.
func nodeRole(key string) *jwt.UserScope {
	scope := jwt.NewUserScope()
	scope.Key = key
	scope.Role = "node"
	t := &scope.Template
	t.Pub.Allow.Add(nodeRequests(name, "*")...)
	t.Sub.Allow.Add(events.DeclarationSubject(name), events.InboxPrefix("node", name)+".>")
	t.NatsLimits.Subs = 16
	t.NatsLimits.Payload = events.MaxReport + 4<<10 // headers too
	t.AllowedConnectionTypes.Add(jwt.ConnectionTypeStandard, jwt.ConnectionTypeInProcess)
	return scope
}

// operatorRole is what an operator or a tool may do: ask the mesh under its own
// name, read every stream, and bring packages. Facts are the mesh's to write.
func operatorRole(key string) *jwt.UserScope {
	scope := jwt.NewUserScope()
	scope.Key = key
	scope.Role = "operator"
	t := &scope.Template
	t.Pub.Allow.Add(events.APISubject(name, ">"),
		"$JS.API.INFO", "$JS.API.STREAM.NAMES", "$JS.API.STREAM.LIST",
		"$O."+events.BucketPackages+".>", "$JS.API.STREAM.PURGE."+events.StreamPackages)
	for _, s := range []string{
		events.StreamEvents, events.StreamDeclarations, events.StreamHeartbeats, events.StreamReports, events.StreamPackages,
	} {
		t.Pub.Allow.Add("$JS.API.STREAM.INFO."+s, "$JS.API.STREAM.MSG.GET."+s, directGet(s, ">"),
			"$JS.API.CONSUMER.CREATE."+s+".>", "$JS.API.CONSUMER.INFO."+s+".*", "$JS.API.CONSUMER.DELETE."+s+".*",
			"$JS.API.CONSUMER.MSG.NEXT."+s+".*", "$JS.FC."+s+".>")
	}
	t.Sub.Allow.Add(events.InboxPrefix("user", name) + ".>")
	t.AllowedConnectionTypes.Add(jwt.ConnectionTypeStandard, jwt.ConnectionTypeInProcess)
	return scope
}

// dedupWindow is how long the broker remembers message ids on streams that
// nodes write. Ids are the sender's to choose, so a long one would let a node
// use up another's; a repeated report is recognised by what is in it.
const dedupWindow = time.Second
