package server

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/nats-io/nats.go/jetstream"

	"noxmesh/events"
	"noxmesh/projections"
)

// hostile are payloads that read as nothing. %s is where a good one would be.
var hostile = []hostileCase{
	{"nothing", ""},
	{"bytes that are no text", "\x00\xff\xfe\x00"},
	{"null", "null"},
	{"a list", "[]"},
	{"a number of 1,000 digits", strings.Repeat("9", 1000)},
	{"brackets 12,000 deep", strings.Repeat("[", 12000)},
	{"objects 2,000 deep and not closed", strings.Repeat(`{"a":`, 2000)},
	{"half of a message", `{"id":"x","da`},
	{"two messages", "%s%s"},
	{"a message and NUL bytes", "%s\x00\x00"},
	{"a message and more", "%s ]"},
	{"NUL bytes within a message", "{\x00%s"},
	{"a string that does not end", `{"id":"` + strings.Repeat("x", 12000)},
}

func (h hostileCase) of(good string) []byte { return []byte(strings.ReplaceAll(h.payload, "%s", good)) }

type hostileCase struct{ what, payload string }

const goodBeat = `{"start_id":"s","version":"1.0.0"}`

func (a *arena) badHeartbeats(t *testing.T) (rows []attack) {
	js, err := jetstream.New(a.self.Conn)
	if err != nil {
		t.Fatal(err)
	}
	cases := append([]hostileCase{
		{"a revision that is too large", `{"start_id":"s","version":"1.0.0","revision":1e999}`},
		{"a revision below zero", `{"start_id":"s","version":"1.0.0","revision":-1}`},
		{"a revision in words", `{"start_id":"s","version":"1.0.0","revision":"many"}`},
		{"a version twice, the second of them no version", `{"start_id":"s","version":"1.0.0","version":"* *"}`},
		{"a version of control characters", `{"start_id":"s","version":"\u001b[2J\u0000"}`},
		{"a version that is no UTF-8", "{\"start_id\":\"s\",\"version\":\"1.0\xff\"}"},
		{"a known-good version of wildcards", `{"start_id":"s","version":"1.0.0","known_good":"mesh.>"}`},
		{"a start id of 12,000 bytes", `{"start_id":"` + strings.Repeat("x", 12000) + `","version":"1.0.0"}`},
		{"the year 10000", `{"start_id":"s","version":"1.0.0","at":"10000-01-01T00:00:00Z"}`},
	}, hostile...)
	for _, c := range cases {
		rows = append(rows, attack{"node", "sends as heartbeat " + c.what, theDecoder, func(t *testing.T) error {
			ctx := testContext(t)
			var before, after projections.Node
			look := func(n *projections.Node) func(*projections.Mesh) {
				return func(m *projections.Mesh) {
					if m.Nodes["self"] != nil {
						*n = *m.Nodes["self"]
					}
				}
			}
			s, err := a.m.js.Stream(ctx, events.StreamHeartbeats)
			if err != nil {
				t.Fatal(err)
			}
			// What was sent before is not to be counted here.
			if err := a.folded(ctx, func(m *projections.Mesh) bool { return m.HeartbeatSeq >= s.CachedInfo().State.LastSeq }); err != nil {
				t.Fatal(err)
			}
			a.api.runner.View(look(&before))
			ack, err := js.Publish(ctx, events.HeartbeatSubject("self"), c.of(goodBeat))
			if err != nil {
				t.Fatal(err)
			}
			if err := a.folded(ctx, func(m *projections.Mesh) bool { return m.HeartbeatSeq >= ack.Sequence }); err != nil {
				t.Fatal(err)
			}
			a.api.runner.View(look(&after))
			if after.Malformed != before.Malformed+1 || after.Heard != before.Heard {
				return nil
			}
			return errors.New(after.MalformedReason)
		}})
	}
	return append(rows, attack{"node", "sends control characters for people's terminals", hurdle{"the decoder: free text is made printable", "^printable$"}, func(t *testing.T) error {
		ctx := testContext(t)
		ack, err := js.Publish(ctx, events.HeartbeatSubject("self"), []byte(`{"start_id":"s","version":"1.0.0","os":"a\u001b[2J","kernel":"\u009b2J",
			"architecture":"\u202ex","problems":["a\nb","\u0000\u007f","\u0085\u009b31m","\u2028\u202e\u200b"]}`))
		if err != nil {
			t.Fatal(err)
		}
		if err := a.folded(ctx, func(m *projections.Mesh) bool { return m.HeartbeatSeq >= ack.Sequence }); err != nil {
			t.Fatal(err)
		}
		var h events.Heartbeat
		a.api.runner.View(func(m *projections.Mesh) { h = m.Nodes["self"].Heard.Heartbeat })
		for _, s := range append(h.Problems, h.OS, h.Kernel, h.Architecture) {
			if i := strings.IndexFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }); i >= 0 {
				t.Logf("%+q is shown", s)
				return nil
			}
		}
		return errors.New("printable")
	}})
}

// sent is a report that was sent, by its place in the stream.
func sent(t *testing.T, u *user, node, kind string, raw []byte, opts ...jetstream.PublishOpt) *jetstream.PubAck {
	t.Helper()
	js, err := jetstream.New(u.Conn)
	if err != nil {
		t.Fatal(err)
	}
	ack, err := js.Publish(testContext(t), events.ReportSubject(node, kind), raw, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return ack
}

// settle waits until the intake is done with everything that was sent before.
func (a *arena) settle(t *testing.T, id string) {
	t.Helper()
	a.confirm(t, a.other, "other", id)
}

// confirm has a node report something and waits until it is in the log.
func (a *arena) confirm(t *testing.T, u *user, node, id string) {
	t.Helper()
	a.expect(&events.NodeConfirmed{}, 1)
	sent(t, u, node, events.ReportConfirmed, confirmed(t, id, "1.0.0"))
	if err := a.folded(testContext(t), func(m *projections.Mesh) bool { return m.Nodes[node].HasReport(id) }); err != nil {
		t.Fatalf("report %s of %s: %v", id, node, err)
	}
}

// fromReport gives the events that a report led to, but for the note that one
// was rejected.
func (a *arena) fromReport(t *testing.T, seq uint64) (out []events.Event) {
	t.Helper()
	for _, rec := range a.record(t) {
		fact, err := rec.Event.Fact()
		if err != nil {
			t.Fatal(err)
		}
		if f, ok := fact.(interface{ GetReceipt() events.Receipt }); ok && f.GetReceipt().ReportSeq == seq {
			if _, note := fact.(*events.NodeReportRejected); !note {
				out = append(out, rec.Event)
			}
		}
	}
	return out
}

func (a *arena) unrecorded(t *testing.T, seq uint64) error {
	if len(a.fromReport(t, seq)) > 0 {
		return nil
	}
	return errors.New("not in the log")
}

func (a *arena) badReports(t *testing.T) (rows []attack) {
	u := a.online(t, a.join(t, "liar"))
	for _, kind := range events.ReportKinds {
		good := map[string]string{
			events.ReportConfirmed:     `{"id":"%s","data":{"version":"1.0.0","start_id":"s"}}`,
			events.ReportRolledBack:    `{"id":"%s","data":{"from":"1.1.0","to":"1.0.0"}}`,
			events.ReportRefused:       `{"id":"%s","data":{"version":"1.0.0"}}`,
			events.ReportFailedToApply: `{"id":"%s","data":{"resource":"file","error":"x"}}`,
		}[kind]
		cases := append([]hostileCase{
			{"data of a wrong type", `{"id":"x","data":"x"}`},
			{"data that is a list", `{"id":"x","data":[{}]}`},
			{"data that lacks everything", `{"id":"x","data":{}}`},
			{"data twice, the second empty", strings.Replace(fmt.Sprintf(good, "x"), `"data":`, `"data":{},"data":{},"x":`, 1)},
			{"no id", fmt.Sprintf(good, "")},
			{"an id of 60,000 bytes", fmt.Sprintf(good, strings.Repeat("x", 60000))},
			{"data 12,000 deep", `{"id":"x","data":` + strings.Repeat("[", 12000) + strings.Repeat("]", 12000) + `}`},
			{"the year 10000", strings.Replace(fmt.Sprintf(good, "x"), `{`, `{"at":"10000-01-01T00:00:00Z",`, 1)},
		}, hostile...)
		for _, c := range cases {
			seq := sent(t, u, "liar", kind, c.of(fmt.Sprintf(good, "x"))).Sequence
			rows = append(rows, attack{"node", "reports as " + kind + " " + c.what, notRecorded, func(t *testing.T) error { return a.unrecorded(t, seq) }})
		}
	}
	a.settle(t, "after bad reports")
	return rows
}

// clockLies: what a node says of the time is shown, and nothing is judged by it.
func (a *arena) clockLies(t *testing.T) (rows []attack) {
	js, err := jetstream.New(a.self.Conn)
	if err != nil {
		t.Fatal(err)
	}
	near := func(at time.Time) error {
		if d := time.Since(at); d < -time.Second || d > patience {
			return nil
		}
		return errors.New("the mesh's time counts")
	}
	for i, at := range []string{"0001-01-01T00:00:00Z", "0000-01-01T00:00:00+23:59", "9999-12-31T23:59:59Z", "9999-12-31T23:59:59-23:59", "2019-01-01T00:00:00Z"} {
		rows = append(rows, attack{"node", "says in a heartbeat that it is " + at, meshClock, func(t *testing.T) error {
			raw := fmt.Sprintf(`{"start_id":"clock%d","version":"1.0.0","at":%q,"drill":{"at":%q,"ok":true}}`, i, at, at)
			ack, err := js.Publish(testContext(t), events.HeartbeatSubject("self"), []byte(raw))
			if err != nil {
				t.Fatal(err)
			}
			var heard time.Time
			if err := a.folded(testContext(t), func(m *projections.Mesh) bool {
				heard = m.Nodes["self"].LastHeard()
				return m.HeartbeatSeq >= ack.Sequence
			}); err != nil {
				t.Fatal(err)
			}
			if _, err := a.client.Fleet(testContext(t)); err != nil {
				t.Error(err)
			}
			return near(heard)
		}}, attack{"node", "says in a report that it is " + at, meshClock, func(t *testing.T) error {
			id := fmt.Sprintf("clock%d", i)
			a.expect(&events.NodeConfirmed{}, 1)
			seq := sent(t, a.self, "self", events.ReportConfirmed, fmt.Appendf(nil, `{"id":%q,"at":%q,"data":{"version":"1.0.0","start_id":"s"}}`, id, at)).Sequence
			if err := a.folded(testContext(t), func(m *projections.Mesh) bool { return m.Nodes["self"].HasReport(id) }); err != nil {
				t.Fatal(err)
			}
			return near(a.fromReport(t, seq)[0].Time)
		}})
	}
	return rows
}
