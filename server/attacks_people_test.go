package server

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"noxmesh/events"
	"noxmesh/projections"
)

// names that would be more than a name in a subject, at the places where a name
// comes in.
func (a *arena) names(*testing.T) (rows []attack) {
	aName := hurdle{"the mesh: it is no name", `is no node name|is no name for a person or a tool|is what the mesh calls itself`}
	unknown := hurdle{"the mesh: there is none of that name", `no node ".*" is enrolled`}
	for _, name := range []string{"*", "a.b", ">", "", strings.Repeat("a", 64), "Upper", "ümlaut", "two words", "a\tb", "a\nb", "a\x00b", "_mesh", "-a", "a-", "{{name()}}", "a*"} {
		shown := name
		if len(name) > 20 {
			shown = "64 characters"
		}
		rows = append(rows, attack{"operator", "invites a node named " + quoted(shown), aName, func(t *testing.T) error {
			_, err := a.client.Invite(testContext(t), InviteRequest{Nodes: []string{"fine", name}})
			return err
		}}, attack{"operator", "adds a person named " + quoted(shown), aName, func(t *testing.T) error {
			_, err := a.client.AddUser(testContext(t), UserAddRequest{User: name, Role: RoleViewer})
			return err
		}})
	}
	for _, name := range actors {
		rows = append(rows, attack{"operator", "adds a person named " + quoted(name), aName, func(t *testing.T) error {
			_, err := a.client.AddUser(testContext(t), UserAddRequest{User: name, Role: RoleViewer})
			return err
		}})
	}
	for _, name := range []string{"*", ">", "_mesh", "self.x"} {
		rows = append(rows, attack{"operator", "revokes a node named " + quoted(name), unknown, func(t *testing.T) error {
			_, err := a.client.RevokeNode(testContext(t), RevokeRequest{Node: name})
			return err
		}}, attack{"operator", "declares for a node named " + quoted(name), unknown, func(t *testing.T) error {
			_, err := a.client.Declare(testContext(t), DeclareRequest{Node: name})
			return err
		}}, attack{"auditor", "reads the log of a node named " + quoted(name), aName, func(t *testing.T) error {
			return a.client.ReadLog(testContext(t), LogRequest{Node: name}, false, func(events.Record) error { return nil })
		}})
	}
	return append(rows, attack{"operator", "adds a person with role root", hurdle{"the mesh: no such role", "there is no role"}, func(t *testing.T) error {
		_, err := a.client.AddUser(testContext(t), UserAddRequest{User: "eve", Role: "root"})
		return err
	}})
}

func quoted(s string) string {
	return `"` + strings.NewReplacer("\t", `\t`, "\n", `\n`, "\x00", `\0`).Replace(s) + `"`
}

// people try what their role does not give them.
func (a *arena) people(t *testing.T) (rows []attack) {
	for _, role := range Roles {
		who := "an-" + role
		u := a.person(t, who, role)
		inbox := events.InboxPrefix("user", who)
		for _, command := range slices.Sorted(maps.Keys(permitted)) {
			if !slices.Contains(permitted[command], role) {
				rows = append(rows, publishes(role, u, inbox, map[string]string{events.APISubject(who, command): "{}"})...)
			}
		}
		rows = append(rows, publishes(role, u, inbox, subjects("{}", `
			mesh.api.operator.fleet mesh.api.operator.release.add mesh.api.operator.user.add mesh.api.other.fleet mesh.api.*.fleet
			mesh.api.`+who+` mesh.api.`+who+`.no.such mesh.api.`+who+`.fleet.x _INBOX.user.operator.x _INBOX.user.`+who+`.x _INBOX.node.self.x _INBOX.x
			mesh.event.node.self mesh.event.rollout.r mesh.event.user.eve mesh.event.key.delivery mesh.event.declaration.self mesh.declared.self
			mesh.declaration.self mesh.heartbeat.self mesh.heartbeat._mesh mesh.report.self.confirmed mesh.renew.self mesh.join.self mesh.return.self
			$KV.fleet.x $O.packages.M.x $O.packages.C.x $SYS.REQ.SERVER.PING $SYS.REQ.USER.INFO $SYS.REQ.CLAIMS.UPDATE
			$JS.API.DIRECT.GET.DECLARATIONS.mesh.declared.self $JS.API.DIRECT.GET.OBJ_packages.$O.packages.M.x
			$JS.ACK.EVENTS.c.1.1.1.1.0 $JS.FC.EVENTS.c.x`))...)
		if role == RoleOperator {
			rows = append(rows, publishes(role, u, inbox, jetstreamAPI(events.StreamEvents))...)
		}
		rows = append(rows, subscribes(role, u, strings.Fields(`> mesh.> mesh.api.> mesh.api.`+who+`.> mesh.declaration.self mesh.event.>
			_INBOX.> _INBOX.user.> _INBOX.user.*.x _INBOX.user.operator.> _INBOX.node.self.> $JS.> $SYS.>`)...)...)
		rows = append(rows, attack{role, "has an answer sent to another's command", notHeard, func(t *testing.T) error {
			heard, err := a.m.nc.SubscribeSync("mesh.api.operator.node.revoke")
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = heard.Unsubscribe() }()
			msg := nats.NewMsg(events.APISubject(who, cmdFleet))
			msg.Reply, msg.Data = "mesh.api.operator.node.revoke", []byte(`{}`)
			msg.Header.Set(headerCommand, "aimed-"+role)
			if err := u.PublishMsg(msg); err != nil {
				t.Fatal(err)
			}
			a.command(t, u.Conn, who, cmdFleet, "after-aimed-"+role, "{}")
			if err := a.m.nc.FlushWithContext(testContext(t)); err != nil {
				t.Fatal(err)
			}
			if n, _, _ := heard.Pending(); n > 0 {
				return nil
			}
			return errors.New("not heard")
		}})
	}
	two := a.person(t, "second", RoleOperator)
	viewer := a.person(t, "gone", RoleViewer)
	busy := a.person(t, "busy", RoleViewer)
	return append(rows,
		attack{"operator", "gives another's command id with a command of its own", hurdle{"the mesh: an id is carried out once", "^nothing$"}, func(t *testing.T) error {
			a.expect(&events.Declared{}, 1)
			declared := `{"node":"self","resources":[]}`
			if r := a.command(t, a.client.nc, FirstOperator, cmdNodeDeclare, "an-id-of-another", declared); r.Error != "" {
				t.Fatal(r.Error)
			}
			a.command(t, two.Conn, "second", cmdNodeDecommission, "an-id-of-another", `{"node":"other"}`)
			var there bool
			a.api.runner.View(func(m *projections.Mesh) { there = m.Enrolled("other") != nil })
			if !there {
				return nil
			}
			return errors.New("nothing")
		}},
		attack{"operator", "gives a command without an id", hurdle{"the mesh: a command has an id", "needs an id"}, func(t *testing.T) error {
			return said(a.command(t, two.Conn, "second", cmdNodeDecommission, "", `{"node":"other"}`))
		}},
		attack{"operator", "revokes itself", hurdle{"the mesh: nobody does that", "have another operator"}, func(t *testing.T) error {
			return said(a.command(t, two.Conn, "second", cmdUserRevoke, "r1", `{"user":"second"}`))
		}},
		attack{"viewer", "gives 300 commands at once", hurdle{"the mesh: 8 of a user at a time; others are served meanwhile", "busy with other commands"}, func(t *testing.T) error {
			answers, err := busy.SubscribeSync(events.InboxPrefix("user", "busy") + ".many")
			if err != nil {
				t.Fatal(err)
			}
			for i := range 300 {
				msg := &nats.Msg{Subject: events.APISubject("busy", cmdFleet), Reply: answers.Subject, Data: []byte("{}"), Header: nats.Header{}}
				msg.Header.Set(headerCommand, fmt.Sprint("many", i))
				if err := busy.PublishMsg(msg); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := a.client.Fleet(testContext(t)); err != nil {
				t.Error("the first operator meanwhile:", err)
			}
			var no error
			for range 300 {
				msg, err := answers.NextMsgWithContext(testContext(t))
				if err != nil {
					t.Fatal(err)
				}
				if strings.Contains(string(msg.Data), `"busy":true`) {
					no = errors.New(string(msg.Data))
				}
			}
			return no
		}},
		attack{"viewer", "fills the server's log with commands that want no answer", fewLines, func(t *testing.T) error {
			return a.quiet(t, func() {
				for range 300 {
					if err := busy.Publish(events.APISubject("busy", cmdFleet), nil); err != nil {
						t.Fatal(err)
					}
				}
				a.command(t, busy.Conn, "busy", cmdFleet, "", "{}") // is answered after those
			})
		}},
		attack{"revoked viewer", "goes on with a connection from before", hurdle{"the broker: disconnected", "ended"}, func(t *testing.T) error {
			a.expect(&events.UserRevoked{}, 1)
			if _, err := a.client.RevokeUser(testContext(t), "gone", ""); err != nil {
				t.Fatal(err)
			}
			if err := viewer.FlushTimeout(patience); err != nil {
				return errors.New("the connection ended: " + err.Error())
			}
			return nil
		}})
}

// said is the error of an answer.
func said(r reply) error {
	if r.Error == "" {
		return nil
	}
	return errors.New(r.Error)
}

// command gives a command under an id, as it is written.
func (a *arena) command(t *testing.T, nc *nats.Conn, user, command, id, payload string) (r reply) {
	t.Helper()
	msg := nats.NewMsg(events.APISubject(user, command))
	msg.Data = []byte(payload)
	if id != "" {
		msg.Header.Set(headerCommand, id)
	}
	answer, err := nc.RequestMsgWithContext(testContext(t), msg)
	if err == nil {
		err = json.Unmarshal(answer.Data, &r)
	}
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// badCommands: an operator's credential with a hostile program behind it.
func (a *arena) badCommands(t *testing.T) (rows []attack) {
	strict := hurdle{"the decoder of commands, each of them", "does not read"}
	n := 0
	id := func() string { n++; return "bad-" + strings.Repeat("x", n%7) + time.Now().Format("150405.000000000") }
	for _, c := range append([]hostileCase{
		{"a field that there is not", `{"no_such_field":1}`},
		{"brackets 12,000 deep in a field that there is not", `{"x":` + strings.Repeat("[", 12000) + strings.Repeat("]", 12000) + `}`},
	}, hostile...) {
		if c.what == "null" {
			continue // reads as an empty request, as {} does
		}
		rows = append(rows, attack{"operator", "sends each command " + c.what, strict, func(t *testing.T) error {
			var all error
			for _, command := range slices.Sorted(maps.Keys(permitted)) {
				r := a.command(t, a.client.nc, FirstOperator, command, id(), string(c.of("{}")))
				if !strings.Contains(r.Error, "does not read") {
					t.Logf("%s is answered with %.200q", command, r.Error)
					return nil
				}
				all = errors.New(r.Error)
			}
			return all
		}})
	}
	mega := strings.Repeat("x", maxRequest-100)
	for _, c := range []struct{ command, what, payload, want string }{
		{cmdNodeDeclare, "a node name of 1 MiB", `{"node":"` + mega + `"}`, "is enrolled"},
		{cmdNodeInvite, "a node name of 1 MiB", `{"nodes":["` + mega + `"]}`, "is no node name"},
		{cmdNodeRevoke, "a node name of 1 MiB", `{"node":"` + mega + `"}`, "is enrolled"},
		{cmdUserAdd, "a name of 1 MiB", `{"user":"` + mega + `","role":"viewer"}`, "is no name"},
		{cmdUserRevoke, "a name of 1 MiB", `{"user":"` + mega + `"}`, "there is no user"},
		{cmdRolloutStatus, "an id of 1 MiB", `{"id":"` + mega + `"}`, "rollout"},
		{cmdReleaseHold, "a version of 1 MiB", `{"version":"` + mega + `","reason":"x"}`, "version|release"},
		{cmdReleasePart, "a part name of 1 MiB", `{"name":"` + mega + `","data":"eA=="}`, "is no part"},
		{cmdNodeInvite, "a life of a year", `{"nodes":["fine"],"ttl":"9999h"}`, "choose --ttl"},
		{cmdNodeInvite, "an address without TLS", `{"nodes":["fine"],"url":"http://plain.example:80"}`, "begins with tls"},
		{cmdNodeDeclare, "a path that climbs", `{"node":"self","resources":[{"type":"file","name":"/etc/../x","spec":{"mode":"0644","content":""}}]}`, "no clean absolute path"},
		{cmdNodeDeclare, "a host version by hand", `{"node":"self","resources":[{"type":"host","name":"x","spec":{}}]}`, "cannot be declared by hand"},
		{cmdReleaseAdd, "a file outside of the store", `{"release":{"version":"1.0.0","architecture":"amd64","file":"../x","size":1,"sha256":"00"}}`, "release|version|file|sha256"},
	} {
		rows = append(rows, attack{"operator", "sends " + c.command + " with " + c.what, hurdle{"the mesh: it is not what the command takes", c.want}, func(t *testing.T) error {
			return said(a.command(t, a.client.nc, FirstOperator, c.command, id(), c.payload))
		}})
	}
	return rows
}
