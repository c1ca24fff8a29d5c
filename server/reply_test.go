package server

import (
	"encoding/base64"
	"testing"

	"github.com/nats-io/nats.go"

	"noxmesh/events"
)

// aims are subjects that a node could have the broker's answers sent to.
var aims = []string{
	"mesh.event.node.x", "mesh.event.declaration.other", "mesh.event.rollout.r", "mesh.event.release.r",
	"mesh.heartbeat.other", "mesh.report.other.confirmed", "mesh.declared.other", "mesh.api.operator.rollout.start",
	"$KV.fleet.other", "$O.packages.M.x", "$O.packages.C.x",
}

// The answer to a node's request goes where the node says, and no permission
// is checked for that. It must not get into a stream by that way.
func TestNodeCannotAimAnswersIntoStreams(t *testing.T) {
	m := populated(t)
	ctx := testContext(t)
	u := connectNode(t, m, "self")
	api, err := m.nc.SubscribeSync("mesh.api.>")
	if err != nil {
		t.Fatal(err)
	}
	fence(ctx, t, u)
	before := countBySubject(t, m)
	for _, aim := range aims {
		for _, ask := range []string{
			events.HeartbeatSubject("self"),
			events.ReportSubject("self", events.ReportConfirmed),
			directGet(events.StreamDeclarations, events.DeclaredSubject("self")),
			"$JS.API.DIRECT.GET.OBJ_packages.$O.packages.M." + base64.URLEncoding.EncodeToString([]byte("part")),
		} {
			if err := u.PublishRequest(ask, aim, []byte("x")); err != nil {
				t.Fatal(err)
			}
		}
	}
	fence(ctx, t, u)
	// Behind everything that could have been aimed at the log.
	declare(t, m, "fence", 1, 0)
	after := countBySubject(t, m)
	for subject, n := range after {
		switch subject {
		case events.HeartbeatSubject("self"), events.ReportSubject("self", events.ReportConfirmed):
		case events.EventSubject(events.AggregateDeclaration, "fence"), events.DeclaredSubject("fence"):
		default:
			if n != before[subject] {
				t.Errorf("%s had %d messages and has %d", subject, before[subject], n)
			}
		}
	}
	if n, _, _ := api.Pending(); n != 0 {
		t.Errorf("the mesh was asked for %d things as an operator", n)
	}
}

// Within the mesh's account the same thing works: that is why nodes are not in
// it, and it shows that the test above would see it.
func TestAnswersCanBeAimedWithinOneAccount(t *testing.T) {
	m := populated(t)
	ctx := testContext(t)
	u := connectNode(t, m, "self")
	msg := nats.NewMsg(events.HeartbeatSubject("self"))
	msg.Reply = "mesh.event.node.x"
	if err := m.nc.PublishMsg(msg); err != nil {
		t.Fatal(err)
	}
	if err := m.nc.FlushWithContext(ctx); err != nil {
		t.Fatal(err)
	}
	fence(ctx, t, u)
	declare(t, m, "fence", 1, 0)
	if n := countBySubject(t, m)["mesh.event.node.x"]; n != 1 {
		t.Errorf("%d messages were aimed into the log, want 1", n)
	}
}

func countBySubject(t *testing.T, m *mesh) map[string]int {
	t.Helper()
	n := make(map[string]int)
	for _, s := range []string{
		events.StreamEvents, events.StreamDeclarations, events.StreamHeartbeats, events.StreamReports, events.StreamPackages, "KV_fleet",
	} {
		for _, msg := range readAll(t, m, s) {
			n[msg.Subject]++
		}
	}
	return n
}
