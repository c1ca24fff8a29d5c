package server

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"noxmesh/events"
	"noxmesh/projections"
)

// jetstreamAPI is every call that the broker's JetStream answers, for a stream
// and a consumer of it.
func jetstreamAPI(stream string) map[string]string {
	out := map[string]string{}
	for _, call := range strings.Fields(`
		INFO STREAM.LIST STREAM.NAMES META.LEADER.STEPDOWN META.RESCUE SERVER.REMOVE SERVER.EVACUATE
		ACCOUNT.PURGE.nodes ACCOUNT.STREAM.MOVE.mesh.S ACCOUNT.STREAM.CANCEL_MOVE.mesh.S
		STREAM.CREATE.MINE STREAM.UPDATE.S STREAM.INFO.S STREAM.DELETE.S STREAM.PURGE.S STREAM.SNAPSHOT.S STREAM.RESTORE.S
		STREAM.MSG.GET.S STREAM.MSG.DELETE.S STREAM.PEER.REMOVE.S STREAM.PEER.EVACUATE.S STREAM.LEADER.STEPDOWN.S STREAM.CANCEL_MOVE.S
		DIRECT.GET DIRECT.GET.S DIRECT.GET.S.> DIRECT.GET.S.mesh.declared.other
		CONSUMER.CREATE.S CONSUMER.CREATE.S.c CONSUMER.CREATE.S.c.mesh.declared.self CONSUMER.DURABLE.CREATE.S.c CONSUMER.DELETE.S.c
		CONSUMER.INFO.S.c CONSUMER.LIST.S CONSUMER.NAMES.S CONSUMER.MSG.NEXT.S.c CONSUMER.PAUSE.S.c CONSUMER.RESET.S.c CONSUMER.UNPIN.S.c
		CONSUMER.LEADER.STEPDOWN.S.c CONSUMER.PEER.REMOVE.S.c CONSUMER.PEER.EVACUATE.S.c`) {
		tokens := strings.Split(call, ".")
		for i := range tokens {
			if tokens[i] == "S" {
				tokens[i] = stream
			}
		}
		out["$JS.API."+strings.Join(tokens, ".")] = "{}"
	}
	out["$JS.API.STREAM.CREATE.MINE"] = `{"name":"MINE","subjects":["mesh.mine"]}`
	out["$JS.API.STREAM.MSG.GET."+stream] = `{"seq":1}`
	out["$JS.API.DIRECT.GET."+stream] = `{"seq":1}`
	out["$JS.API.STREAM.SNAPSHOT."+stream] = `{"deliver_subject":"_INBOX.node.self.x"}`
	out["$JS.API.CONSUMER.CREATE."+stream] = `{"stream_name":"` + stream + `","config":{"deliver_subject":"mesh.event.node.self"}}`
	return out
}

// subjects makes a map of subjects with one payload.
func subjects(payload, list string) map[string]string {
	out := map[string]string{}
	for _, s := range strings.Fields(list) {
		out[s] = payload
	}
	return out
}

func (a *arena) nodeSubjects(t *testing.T) (rows []attack) {
	all := map[string]string{}
	for _, list := range []map[string]string{
		subjects("{}", `mesh.heartbeat.other mesh.heartbeat._mesh mesh.heartbeat.self.x mesh.heartbeat.* mesh.heartbeat
			mesh.report.other.confirmed mesh.report.other.rolled-back mesh.report.other.refused mesh.report.other.failed-to-apply
			mesh.report.self.confirmed.x mesh.report.self.no-such-kind mesh.report.self.* mesh.report.*.confirmed mesh.report.self
			mesh.event.node.self mesh.event.node.other mesh.event.declaration.self mesh.event.declaration.other mesh.event.rollout.r
			mesh.event.release.r mesh.event.user.operator mesh.event.key.delivery mesh.event.key.release
			mesh.declared.self mesh.declared.other mesh.declaration.self mesh.declaration.other
			mesh.api.operator.release.add mesh.api.operator.node.invite mesh.api.self.fleet mesh.api.self.log.read
			mesh.renew.other mesh.renew.* mesh.return.self mesh.return.other mesh.join.self mesh.join.0123456789abcdef
			_INBOX.node.other.x _INBOX.node.self.x _INBOX.user.operator.x _INBOX.door.other.x _INBOX.join.other.x _INBOX.x _R_.x.y`),
		subjects("x", `$KV.fleet.other $KV.fleet.self $O.packages.M.x $O.packages.C.x $O.packages.C.x.y`),
		subjects("{}", `$SYS.REQ.SERVER.PING $SYS.REQ.SERVER.PING.VARZ $SYS.REQ.SERVER.PING.CONNZ $SYS.REQ.ACCOUNT.PING.INFO
			$SYS.REQ.USER.INFO $SYS.REQ.CLAIMS.UPDATE $SYS.REQ.CLAIMS.DELETE $SYS.REQ.CLAIMS.LIST $SYS.ACCOUNT.nodes.CONNECT $SYS.DEBUG.SUBSCRIBERS`),
		jetstreamAPI(events.StreamEvents), jetstreamAPI(events.StreamDeclarations),
		{"$JS.API.STREAM.PURGE.OBJ_packages": "{}", "$JS.API.STREAM.UPDATE.KV_fleet": "{}", "$JS.API.DIRECT.GET.OBJ_packages": `{"seq":1}`,
			"$JS.API.DIRECT.GET.KV_fleet.$KV.fleet.other": "", "$JS.API.DIRECT.GET.HEARTBEATS.mesh.heartbeat.other": ""},
		subjects("", `$JS.ACK.EVENTS.c.1.1.1.1.0 $JS.FC.EVENTS.c.x $JS.SNAPSHOT.ACK.EVENTS.x $JS.SNAPSHOT.RESTORE.EVENTS.x
			$JS.EVENT.ADVISORY.API $JS.hub.API.INFO $JSC.R.x`),
	} {
		maps.Copy(all, list)
	}
	rows = publishes("node", a.self, events.InboxPrefix("node", "self"), all)
	rows = append(rows, subscribes("node", a.self, strings.Fields(`
		> * mesh.> *.declaration.self mesh.declaration.* mesh.declaration.> mesh.declaration.other mesh.declared.self mesh.declared.>
		mesh.heartbeat.> mesh.heartbeat.other mesh.report.> mesh.event.> mesh.api.> mesh.join.> mesh.return.> mesh.renew.> mesh.renew.self
		$KV.> $O.> $JS.> $JS.API.> $JS.EVENT.> _INBOX.> _INBOX.* _INBOX.node.> _INBOX.node.*.x _INBOX.node.other.> _INBOX.user.>
		_INBOX.user.operator.x _INBOX.door.self.> _R_.> $SYS.> $SYS.REQ.>`)...)...)
	rows = append(rows, attack{"node", "listens on mesh.declaration.other as one of a queue", noPermission, func(t *testing.T) error {
		if _, err := a.self.QueueSubscribeSync("mesh.declaration.other", "q"); err != nil {
			t.Fatal(err)
		}
		return a.self.denial("Subscription", "")
	}}, attack{"node", "subscribes without end", hurdle{"the broker: 16 subscriptions", "maximum subscriptions exceeded"}, func(t *testing.T) error {
		u := a.online(t, a.me)
		for i := range 17 {
			if _, err := u.SubscribeSync(fmt.Sprintf("_INBOX.node.self.%d", i)); err != nil {
				t.Fatal(err)
			}
		}
		return u.denial("", "")
	}})
	return rows
}

// nodeHeaders: on its own subjects a node may say what it likes, but not how it
// is kept.
func (a *arena) nodeHeaders(t *testing.T) (rows []attack) {
	js, err := jetstream.New(a.self.Conn)
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range [][]string{
		{"Nats-Rollup", "all"}, {"Nats-Rollup", "sub"}, {"Nats-TTL", "1s"}, {"Nats-TTL", "never"}, {"Nats-Incr", "1"},
		{"Nats-Schedule", "@at 2030-01-01T00:00:00Z", "Nats-Schedule-Target", "mesh.event.node.other"},
		{"Nats-Schedule", "@every 1s", "Nats-Schedule-Target", "mesh.heartbeat.other"},
		{"Nats-Expected-Stream", events.StreamEvents}, {"Nats-Expected-Last-Sequence", "999999"}, {"Nats-Expected-Last-Msg-Id", "x"},
		{"Nats-Expected-Last-Subject-Sequence", "999999"},
		{"Nats-Expected-Last-Subject-Sequence", "999999", "Nats-Expected-Last-Subject-Sequence-Subject", "mesh.report.other.>"},
		{"Nats-Batch-Id", "b", "Nats-Batch-Sequence", "1", "Nats-Batch-Commit", "1"},
	} {
		for _, subject := range []string{events.HeartbeatSubject("self"), events.ReportSubject("self", events.ReportConfirmed)} {
			what := map[string]string{events.HeartbeatSubject("self"): "a heartbeat", events.ReportSubject("self", events.ReportConfirmed): "a report"}[subject]
			for i := 0; i < len(h); i += 2 {
				what += " with " + strings.TrimPrefix(h[i], "Nats-") + ": " + h[i+1]
			}
			rows = append(rows, attack{"node", "sends " + what, theStream, func(t *testing.T) error {
				msg := nats.NewMsg(subject)
				for i := 0; i < len(h); i += 2 {
					msg.Header.Set(h[i], h[i+1])
				}
				_, err := js.PublishMsg(testContext(t), msg)
				return err
			}})
		}
	}
	for subject, size := range map[string]int{
		events.HeartbeatSubject("self"): events.MaxHeartbeat, events.ReportSubject("self", events.ReportRefused): events.MaxReport,
	} {
		rows = append(rows, attack{"node", fmt.Sprintf("sends %s of %d bytes", subject, size+headerRoom+1), theStream, func(t *testing.T) error {
			_, err := js.Publish(testContext(t), subject, make([]byte, size+headerRoom+1))
			return err
		}})
	}
	return append(rows, attack{"node", "sends a message of 1 MiB", hurdle{"the broker: the credential's limit", "Maximum Payload Violation"}, func(t *testing.T) error {
		return a.shout(t, a.me, fmt.Sprintf("PUB mesh.report.self.refused %d\r\n%s\r\n", 1<<20, make([]byte, 1<<20)))
	}}, attack{"node", "sends a command line of 1 MiB", hurdle{"the broker: its protocol", "maximum control line exceeded|Maximum Control Line"}, func(t *testing.T) error {
		return a.shout(t, a.me, "PUB "+strings.Repeat("x", 1<<20)+" 0\r\n\r\n")
	}})
}

// nodeAims: the broker's answer goes where the node says, unchecked, so that must
// lead nowhere.
func (a *arena) nodeAims(t *testing.T) (rows []attack) {
	for _, aim := range append([]string{
		"mesh.event.node.other", "mesh.event.user.operator", "mesh.event.key.delivery", "mesh.api.self.release.add",
		"mesh.join.other", "mesh.return.other", "mesh.renew.other", "$JS.API.STREAM.DELETE.EVENTS", "$SYS.REQ.SERVER.PING",
	}, aims...) {
		rows = append(rows, attack{"node", "has answers sent to " + aim, notHeard, func(t *testing.T) error {
			heard, err := a.m.nc.SubscribeSync(aim)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = heard.Unsubscribe() }()
			ctx := testContext(t)
			asks := []string{events.HeartbeatSubject("self"), events.RenewSubject("self"), directGet(events.StreamDeclarations, events.DeclaredSubject("self"))}
			for _, ask := range asks {
				if err := a.self.PublishRequest(ask, aim, []byte("{}")); err != nil {
					t.Fatal(err)
				}
			}
			for _, ask := range asks { // these are answered after those
				if _, err := a.self.RequestWithContext(ctx, ask, []byte("{}")); err != nil {
					t.Fatal(err)
				}
			}
			if err := a.m.nc.FlushWithContext(ctx); err != nil {
				t.Fatal(err)
			}
			if n, _, _ := heard.Pending(); n > 0 {
				msg, err := heard.NextMsgWithContext(ctx)
				t.Logf("the mesh heard %+v, %v", msg, err)
				return nil
			}
			return errors.New("not heard")
		}})
	}
	// The other node hears it, as the broker's answer: what is in it is not the
	// attacker's to say, and a declaration for another node is not what its
	// signature says.
	rows = append(rows, attack{"node", "has its own declaration sent to another node", hurdle{"the signature: it names the node", "signature"}, func(t *testing.T) error {
		sub, err := a.other.SubscribeSync(events.DeclarationSubject("other"))
		if err != nil {
			t.Fatal(err)
		}
		if err := a.other.Flush(); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = sub.Unsubscribe() }()
		if err := a.self.PublishRequest(directGet(events.StreamDeclarations, events.DeclaredSubject("self")), events.DeclarationSubject("other"), nil); err != nil {
			t.Fatal(err)
		}
		msg, err := sub.NextMsgWithContext(testContext(t))
		if err != nil {
			t.Fatal(err)
		}
		e, err := events.Decode(msg.Data)
		if err != nil {
			t.Fatal(err)
		}
		fact, err := e.Fact()
		d, ok := fact.(*events.Declared)
		if err != nil || !ok {
			t.Fatal(fact, err)
		}
		d.Node = "other" // as the other node has to take it
		var key string
		a.api.runner.View(func(m *projections.Mesh) { key = m.Key(events.KeyDelivery) })
		return events.VerifyDeclaration(key, d)
	}})
	return rows
}

func (a *arena) replays(t *testing.T) []attack {
	return []attack{
		{"node", "sends an old report again", notRecorded, func(t *testing.T) error {
			raw := confirmed(t, "old", "1.0.0")
			a.confirm(t, a.self, "self", "old")
			a.confirm(t, a.self, "self", "newer")
			seq := sent(t, a.self, "self", events.ReportConfirmed, raw).Sequence
			a.settle(t, "after a replay")
			return a.unrecorded(t, seq)
		}},
		{"node", "sends another node's report id before that node does", hurdle{"ids count for each node on its own: both are in the log", "^both$"}, func(t *testing.T) error {
			a.confirm(t, a.self, "self", "squatted")
			a.confirm(t, a.other, "other", "squatted")
			return errors.New("both")
		}},
		{"node", "uses up another node's message id", hurdle{"the stream remembers message ids for a second only", "^counts$"}, func(t *testing.T) error {
			a.expect(&events.NodeConfirmed{}, 2)
			id := jetstream.WithMsgID("squatted")
			sent(t, a.self, "self", events.ReportConfirmed, confirmed(t, "m1", "1.0.0"), id)
			ctx := testContext(t)
			for sent(t, a.other, "other", events.ReportConfirmed, confirmed(t, "m2", "1.0.0"), id).Duplicate {
				if ctx.Err() != nil {
					return nil
				}
			}
			if err := a.folded(ctx, func(m *projections.Mesh) bool {
				return m.Nodes["self"].HasReport("m1") && m.Nodes["other"].HasReport("m2")
			}); err != nil {
				t.Fatal(err)
			}
			return errors.New("counts")
		}},
		{"node", "reports under the id of a command, so that the command counts as carried out", hurdle{"the fold: a report is no command", "^carried out$"}, func(t *testing.T) error {
			a.confirm(t, a.self, "self", "command-to-come")
			before := a.revision("other")
			r := a.command(t, a.client.nc, FirstOperator, cmdNodeDeclare, "command-to-come", `{"node":"other","resources":[]}`)
			if r.Error != "" {
				t.Fatal(r.Error)
			}
			if a.revision("other") == before {
				return nil
			}
			a.expect(&events.Declared{}, 1)
			return errors.New("carried out")
		}},
		{"node", "renews for another node's key", hurdle{"the mesh: the key on record only", "^the own key$"}, func(t *testing.T) error {
			raw, err := json.Marshal(events.ReturnRequest{PublicKey: a.them.public()})
			if err != nil {
				t.Fatal(err)
			}
			msg, err := a.self.RequestWithContext(testContext(t), events.RenewSubject("self"), raw)
			if err != nil {
				t.Fatal(err)
			}
			reply, err := events.DecodeDoorReply(msg.Data)
			if err != nil {
				t.Fatal(err)
			}
			c, err := jwt.DecodeUserClaims(reply.Link)
			if err != nil || c.Subject != a.me.public() || c.Name != "self" {
				return nil
			}
			return errors.New("the own key")
		}},
	}
}

func (a *arena) revision(node string) (r uint64) {
	a.api.runner.View(func(m *projections.Mesh) { r = m.Nodes[node].Revision() })
	return r
}
