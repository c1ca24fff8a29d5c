package client

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"noxmesh/projections"
)

func TestTokens(t *testing.T) {
	made := time.Date(2026, 11, 29, 12, 0, 0, 7, time.UTC)
	token := MakeToken("fleet", made, 42)
	for _, c := range []struct {
		token Token
		seq   uint64
		same  bool
		err   string
	}{
		{"", 0, true, ""},
		{token, 42, true, ""},
		{token.beginning(), 0, true, ""},
		{MakeToken("fleet", made.Add(1), 42), 42, false, ""},
		{MakeToken("rollouts", made, 42), 0, false, "is of rollouts and not of fleet"},
		{"fleet.x", 0, false, "is no token"},
		{"fleet.x.-1", 0, false, "is no token"},
		{"fleet.x.1.2", 0, false, "is no token"},
		{Token("\x1b[2J" + strings.Repeat("x", 500)), 0, false, "is no token"},
	} {
		seq, same, err := c.token.Parse("fleet", made)
		if (err == nil) != (c.err == "") || err != nil && (!strings.Contains(err.Error(), c.err) || len(err.Error()) > 250 || strings.Contains(err.Error(), "\x1b")) {
			t.Errorf("%q gives %v, want %q", c.token, err, c.err)
		} else if err == nil && (seq != c.seq || same != c.same) {
			t.Errorf("%q gives %d %v, want %d %v", c.token, seq, same, c.seq, c.same)
		}
	}
}

// TestHandsOver: what a watch makes of the mesh's answers, and what it asks for next.
func TestHandsOver(t *testing.T) {
	old, made := time.Unix(1, 0), time.Unix(2, 0)
	page := func(seqs ...uint64) (out []WatchEntry) {
		for _, seq := range seqs {
			entry := fmt.Sprintf(`{"key":"n%d","event_seq":%d,"heartbeat_seq":3,"value":{"node":"n%d"}}`, seq, 10*seq, seq)
			if seq == 9 {
				entry = `{"key":"n9","event_seq":90,"heartbeat_seq":3}`
			}
			out = append(out, WatchEntry{Token: MakeToken("fleet", made, seq), Entry: []byte(entry)})
		}
		return out
	}
	w := watch[projections.NodeView]{bucket: "fleet", token: MakeToken("fleet", old, 99)}
	var got []string
	hand := func(r WatchReply, stopAt int) bool {
		t.Helper()
		got = nil
		return w.hand(r, func(ch Change[projections.NodeView], err error) bool {
			what := ch.Key
			switch {
			case err != nil:
				what = "error: " + err.Error()
			case ch.Reset:
				what = "reset"
			case ch.CaughtUp:
				what = "caught up"
			case ch.Value == nil:
				what += " gone"
			case ch.Value.Node != ch.Key || ch.HeartbeatSeq != 3 || ch.EventSeq == 0:
				t.Errorf("it hands over %+v", ch)
			}
			seq, same, parseErr := ch.Token.Parse("fleet", made)
			if parseErr != nil || !same {
				t.Errorf("%s comes with token %q, %v", what, ch.Token, parseErr)
			}
			got = append(got, fmt.Sprint(what, " at ", seq))
			return len(got) != stopAt
		})
	}
	for _, c := range []struct {
		what   string
		reply  WatchReply
		stopAt int
		want   []string
		goesOn bool
		waits  bool // from then on
	}{
		{"a bucket made anew", WatchReply{Reset: true, Entries: page(1, 2), Token: MakeToken("fleet", made, 2)}, 0, []string{"reset at 0", "n1 at 1", "n2 at 2"}, true, false},
		{"the rest", WatchReply{Entries: page(3), Token: MakeToken("fleet", made, 3), CaughtUp: true}, 0, []string{"n3 at 3", "caught up at 3"}, true, true},
		{"nothing", WatchReply{Token: MakeToken("fleet", made, 3), CaughtUp: true}, 0, nil, true, true},
		{"a change", WatchReply{Entries: page(4), Token: MakeToken("fleet", made, 4), CaughtUp: true}, 0, []string{"n4 at 4"}, true, true},
		{"it has had enough", WatchReply{Entries: page(5, 6, 7), Token: MakeToken("fleet", made, 7), CaughtUp: true}, 2, []string{"n5 at 5", "n6 at 6"}, false, true},
		{"a deletion", WatchReply{Entries: page(9), Token: MakeToken("fleet", made, 9), CaughtUp: true}, 0, []string{"n9 gone at 9"}, true, true},
		{"made anew, and empty", WatchReply{Reset: true, Token: MakeToken("fleet", made, 0), CaughtUp: true}, 0, []string{"reset at 0", "caught up at 0"}, true, true},
		{"nonsense", WatchReply{Entries: []WatchEntry{{Token: MakeToken("fleet", made, 10), Entry: []byte(`{"key":"x","value":7}`)}}}, 0,
			[]string{"error: watching fleet: the value of x does not read: json: cannot unmarshal number into Go value of type projections.NodeView: is this program of another version than the server? at 10"}, false, true},
	} {
		goesOn := hand(c.reply, c.stopAt)
		if !slices.Equal(got, c.want) || goesOn != c.goesOn || w.caught != c.waits {
			t.Errorf("%s: it hands over %q, goes on %v, waits %v; want %q, %v, %v", c.what, got, goesOn, w.caught, c.want, c.goesOn, c.waits)
		}
		if _, same, err := w.token.Parse("fleet", made); err != nil || !same {
			t.Errorf("%s: it then asks with %q", c.what, w.token)
		}
	}
}
