package server

import (
	"errors"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"noxmesh/events"
)

// Every command has its roles, and every role its commands. The lists are
// written out: a command that changes something must not get into the wrong one
// by the same hand that put it into the table.
func TestCommandsHaveRoles(t *testing.T) {
	commands := slices.Sorted(maps.Keys((&api{}).commands()))
	if got := slices.Sorted(maps.Keys(permitted)); !slices.Equal(got, commands) {
		t.Errorf("roles are given for\n%v\nand the commands are\n%v", got, commands)
	}
	for role, want := range map[string][]string{
		RoleOperator: commands,
		RoleAuditor: {cmdFleet, cmdLogCheckpoint, cmdLogCheckpoints, cmdLogHashes, cmdLogProve, cmdLogRead, cmdReleaseList, cmdRolloutBacktest, cmdRolloutList, cmdRolloutStatus,
			cmdStreamRead, cmdViewWatch},
		RoleViewer: {cmdFleet, cmdReleaseList, cmdRolloutList, cmdRolloutStatus, cmdViewWatch},
	} {
		if got := commandsOf(role); !slices.Equal(got, want) {
			t.Errorf("an %s may give\n%v\nwant\n%v", role, got, want)
		}
	}
	for name, roles := range permitted {
		for _, r := range roles {
			if !slices.Contains(Roles, r) {
				t.Errorf("%s is for role %q, which is none", name, r)
			}
		}
	}
}

// docs/security.md has the table, so that people need not read code for it.
func TestRolesAreDocumented(t *testing.T) {
	raw, err := os.ReadFile("../docs/security.md")
	if err != nil {
		t.Fatal(err)
	}
	table := "| command | operator | auditor | viewer |\n|---|---|---|---|\n"
	for _, name := range slices.Sorted(maps.Keys(permitted)) {
		table += "| `" + name + "` |"
		for _, role := range Roles {
			if slices.Contains(permitted[name], role) {
				table += " yes |"
			} else {
				table += " |"
			}
		}
		table += "\n"
	}
	if !strings.Contains(string(raw), table) {
		t.Errorf("docs/security.md lacks this table:\n%s", table)
	}
}

// echo answers on a subject, as the mesh, with the subject that it heard.
func (m *mesh) echo(t *testing.T, subject string) (heard *nats.Subscription) {
	t.Helper()
	heard, err := m.nc.SubscribeSync(subject)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.nc.Subscribe(subject, func(msg *nats.Msg) { _ = msg.Respond([]byte(msg.Subject)) }); err != nil {
		t.Fatal(err)
	}
	if err := m.nc.FlushWithContext(testContext(t)); err != nil {
		t.Fatal(err)
	}
	return heard
}

// The broker lets through what the table says, under the own name, and nothing
// else.
func TestPeopleGiveTheCommandsOfTheirRole(t *testing.T) {
	m := populated(t)
	m.echo(t, "mesh.api.>")
	for _, role := range Roles {
		u := connectPerson(t, m, "p-"+role, role)
		for _, command := range slices.Sorted(maps.Keys(permitted)) {
			t.Run(role+" "+command, func(t *testing.T) {
				subject := events.APISubject("p-"+role, command)
				if !slices.Contains(permitted[command], role) {
					if err := u.Publish(subject, nil); err != nil {
						t.Fatal(err)
					}
					u.refused(t, "Publish", subject)
					return
				}
				// The mesh hears who asks from the subject, which the broker vouches for.
				answer, err := u.RequestWithContext(testContext(t), subject, nil)
				if err != nil || string(answer.Data) != subject {
					t.Errorf("asking the mesh: %v %v", answer, err)
				}
			})
		}
	}
}

func TestPeopleMayNot(t *testing.T) {
	m := populated(t)
	m.echo(t, "mesh.>")
	before := streamStates(t, m)
	for _, role := range Roles {
		u := connectPerson(t, m, "self", role)
		for _, subject := range []string{
			"mesh.api.self.no.such", "mesh.api.self", "mesh.api.self.fleet.x", "mesh.api.other.fleet", "mesh.api.other.release.add", "mesh.api.operator.rollout.start",
			"mesh.event.rollout.r", "mesh.event.node.self", "mesh.event.user.self", "mesh.event.key.delivery", "mesh.event.declaration.self",
			"mesh.heartbeat.self", "mesh.heartbeat._mesh", "mesh.report.self.confirmed", "mesh.declaration.self", "mesh.declared.self",
			"mesh.renew.self", "mesh.join.self", "mesh.return.self",
			"$KV.fleet.x", "$O.packages.M.x", "$O.packages.C.x",
			"$JS.API.INFO", "$JS.API.STREAM.LIST", "$JS.API.STREAM.NAMES", "$JS.API.STREAM.INFO.EVENTS", "$JS.API.STREAM.MSG.GET.EVENTS",
			"$JS.API.STREAM.CREATE.MINE", "$JS.API.STREAM.UPDATE.EVENTS", "$JS.API.STREAM.DELETE.EVENTS", "$JS.API.STREAM.PURGE.OBJ_packages",
			"$JS.API.STREAM.MSG.DELETE.REPORTS", "$JS.API.STREAM.SNAPSHOT.EVENTS", "$JS.API.DIRECT.GET.DECLARATIONS",
			"$JS.API.DIRECT.GET.DECLARATIONS.mesh.declared.self", "$JS.API.DIRECT.GET.OBJ_packages.$O.packages.M.x",
			"$JS.API.CONSUMER.CREATE.EVENTS", "$JS.API.CONSUMER.CREATE.EVENTS.x", "$JS.API.CONSUMER.MSG.NEXT.EVENTS.x", "$JS.ACK.EVENTS.x.1.1.1.1.0", "$JS.FC.EVENTS.x",
			"$SYS.REQ.SERVER.PING", "$SYS.REQ.USER.INFO", "_INBOX.user.other.x", "_INBOX.user.self.x", "_INBOX.node.self.x", "_INBOX.x",
		} {
			t.Run(role+" "+subject, func(t *testing.T) {
				if err := u.PublishRequest(subject, events.InboxPrefix("user", "self")+".reply", []byte("{}")); err != nil {
					t.Fatal(err)
				}
				u.refused(t, "Publish", subject)
			})
		}
		for _, subject := range []string{
			">", "*", "mesh.>", "mesh.api.>", "mesh.api.self.>", "mesh.api.other.fleet", "mesh.declaration.self", "mesh.event.>", "mesh.heartbeat.>",
			"_INBOX.>", "_INBOX.*", "_INBOX.user.>", "_INBOX.user.*.x", "_INBOX.user.other.>", "_INBOX.user.other.x", "_INBOX.node.self.>", "_INBOX.join.>",
			"_R_.>", "$JS.>", "$KV.>", "$O.>", "$SYS.>",
		} {
			t.Run(role+" subscribe "+subject, func(t *testing.T) {
				if _, err := u.SubscribeSync(subject); err != nil {
					t.Fatal(err)
				}
				u.refused(t, "Subscription", subject)
			})
		}
		u.Close()
	}
	if after := streamStates(t, m); after != before {
		t.Errorf("streams were\n%sand are\n%s", before, after)
	}
}

// connectDoor is somebody who stands at the door.
func connectDoor(t *testing.T, m *mesh, kind, who string) *user {
	t.Helper()
	creds, _, err := newCreds(who, func(key string) (string, error) {
		if kind == "join" {
			return m.identity.InviteJWT(who, key, time.Hour)
		}
		return m.identity.DoorJWT(who, key)
	})
	if err != nil {
		t.Fatal(err)
	}
	return connectUser(t, m, creds, events.InboxPrefix(kind, who))
}

func TestAtTheDoor(t *testing.T) {
	m := populated(t)
	m.echo(t, "mesh.>")
	before := streamStates(t, m)
	for kind, may := range map[string]string{"join": "mesh.join.self", "door": "mesh.return.self"} {
		u := connectDoor(t, m, kind, "self")
		for _, subject := range []string{
			"mesh.join.self", "mesh.join.other", "mesh.join.self.x", "mesh.return.self", "mesh.return.other", "mesh.renew.self",
			"mesh.heartbeat.self", "mesh.report.self.confirmed", "mesh.event.node.self", "mesh.api.self.fleet", "mesh.api.operator.fleet",
			"mesh.declaration.self", "$JS.API.INFO", "$JS.API.STREAM.INFO.EVENTS", "$JS.API.DIRECT.GET.DECLARATIONS.mesh.declared.self",
			"$KV.fleet.x", "$O.packages.M.x", "$SYS.REQ.SERVER.PING", "_INBOX.door.self.x", "_INBOX.join.self.x", "_INBOX.x",
		} {
			t.Run(kind+" "+subject, func(t *testing.T) {
				if subject == may {
					if answer, err := u.RequestWithContext(testContext(t), subject, nil); err != nil || string(answer.Data) != subject {
						t.Errorf("it is answered with %v %v", answer, err)
					}
					return
				}
				if err := u.Publish(subject, nil); err != nil {
					t.Fatal(err)
				}
				u.refused(t, "Publish", subject)
			})
		}
		for _, subject := range []string{
			">", "mesh.>", "mesh.join.>", "mesh.join.self", "mesh.return.>", "mesh.declaration.self", "_INBOX.>", "_INBOX.join.>", "_INBOX.door.>",
			"_INBOX.join.other.>", "_INBOX.door.other.>", "_INBOX.node.self.>", "_INBOX.user.self.>", "_R_.>", "$SYS.>",
		} {
			t.Run(kind+" subscribe "+subject, func(t *testing.T) {
				if _, err := u.SubscribeSync(subject); err != nil {
					t.Fatal(err)
				}
				u.refused(t, "Subscription", subject)
			})
		}
		t.Run(kind+" many subscriptions", func(t *testing.T) {
			for _, n := range []string{"a", "b", "c"} {
				if _, err := u.SubscribeSync(events.InboxPrefix(kind, "self") + "." + n); err != nil {
					t.Fatal(err)
				}
			}
			select {
			case err := <-u.denied:
				if !strings.Contains(err.Error(), "maximum subscriptions exceeded") {
					t.Error(err)
				}
			case <-time.After(patience):
				t.Error("there is no limit")
			}
		})
		t.Run(kind+" large message", func(t *testing.T) {
			// The client knows the limit of its credential, and keeps to it.
			if err := u.Publish(may, make([]byte, 4<<10+1)); !errors.Is(err, nats.ErrMaxPayload) {
				t.Error("there is no limit:", err)
			}
		})
	}
	if after := streamStates(t, m); after != before {
		t.Errorf("streams were\n%sand are\n%s", before, after)
	}
}

// An answer goes where whoever asks says, and no permission is checked for that.
// It must not be heard as somebody else's request.
func TestAnswersAreNotHeardAsRequests(t *testing.T) {
	m := populated(t)
	heard := m.echo(t, "mesh.>")
	for _, tt := range []struct {
		u   *user
		ask string
	}{
		{connectPerson(t, m, "self", RoleViewer), events.APISubject("self", cmdFleet)},
		{connectDoor(t, m, "join", "self"), events.JoinSubject("self")},
		{connectDoor(t, m, "door", "self"), events.ReturnSubject("self")},
		{connectNode(t, m, "self"), events.RenewSubject("self")},
	} {
		t.Run(tt.ask, func(t *testing.T) {
			for _, aim := range append([]string{
				"mesh.api.other.fleet", "mesh.api.self.release.add", "mesh.join.other", "mesh.return.other", "mesh.renew.other",
			}, aims...) {
				if err := tt.u.PublishRequest(tt.ask, aim, []byte("x")); err != nil {
					t.Fatal(err)
				}
			}
			// Its answer is the last of all answers, and what they led to came
			// before it.
			if _, err := tt.u.RequestWithContext(testContext(t), tt.ask, []byte("fence")); err != nil {
				t.Fatal(err)
			}
			if err := m.nc.FlushWithContext(testContext(t)); err != nil {
				t.Fatal(err)
			}
			asked := 0
			for n, _, _ := heard.Pending(); n > 0; n-- {
				msg, err := heard.NextMsgWithContext(testContext(t))
				if err != nil {
					t.Fatal(err)
				}
				if msg.Subject == tt.ask {
					asked++
				} else {
					t.Errorf("the mesh was asked on %s: %q", msg.Subject, msg.Data)
				}
			}
			if want := len(aims) + 6; asked != want {
				t.Errorf("the mesh was asked %d times, want %d", asked, want)
			}
		})
	}
}
