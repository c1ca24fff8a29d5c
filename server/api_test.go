package server

import (
	"encoding/json"
	"testing"

	"github.com/nats-io/nats.go"

	"noxmesh/events"
)

// An answer that somebody had sent to where commands are heard has no id.
func TestCommandNeedsAnID(t *testing.T) {
	w := startServer(t, t.TempDir())
	msg := nats.NewMsg(events.APISubject(FirstOperator, cmdFleet))
	msg.Data = []byte("{}")
	answer, err := w.client.nc.RequestMsgWithContext(testContext(t), msg)
	if err != nil {
		t.Fatal(err)
	}
	var r reply
	if err := json.Unmarshal(answer.Data, &r); err != nil || r.Result != nil {
		t.Errorf("it is answered with %s, %v", answer.Data, err)
	}
	wantError(t, errText(r.Error), "needs an id")
}

type errText string

func (e errText) Error() string { return string(e) }

func TestOneUserLeavesRoomForOthers(t *testing.T) {
	var g gate
	g.limits(maxCommands, maxUserCommands)
	enter := func(user string, n, want int) {
		t.Helper()
		in := 0
		for range n {
			if g.enter(user) {
				in++
			}
		}
		if in != want {
			t.Errorf("%d commands of %s are at work, want %d", in, user, want)
		}
	}
	enter("eve", 100, maxUserCommands)
	enter("ann", 3, 3)
	enter("bob", 100, maxCommands-maxUserCommands-3)
	enter("cay", 1, 0)
	for range maxUserCommands {
		g.leave("eve")
	}
	enter("cay", 1, 1)
	enter("eve", 100, maxUserCommands-1)
	for user, n := range map[string]int{"eve": maxUserCommands - 1, "ann": 3, "bob": maxCommands - maxUserCommands - 3, "cay": 1} {
		for range n {
			g.leave(user)
		}
	}
	if g.all != 0 || len(g.user) != 0 {
		t.Errorf("nothing is at work, and it counts %+v", g.user)
	}
}

// A client that is told that the server is busy asks again.
func TestBusyServerIsAskedAgain(t *testing.T) {
	w := startServer(t, t.TempDir())
	w.api.gate.mu.Lock()
	w.api.gate.all = maxCommands
	w.api.gate.mu.Unlock()
	asked, err := w.nc.SubscribeSync(events.APISubject("*", ">"))
	if err != nil {
		t.Fatal(err)
	}
	if err := w.nc.Flush(); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { _, err := w.client.Fleet(testContext(t)); done <- err }()
	var ids []string
	for range 2 {
		msg, err := asked.NextMsgWithContext(testContext(t))
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, msg.Header.Get(headerCommand))
	}
	w.api.gate.mu.Lock()
	w.api.gate.all = 0
	w.api.gate.mu.Unlock()
	if err := <-done; err != nil || ids[0] != ids[1] || ids[0] == "" {
		t.Errorf("%v, asked as %v", err, ids)
	}
}
