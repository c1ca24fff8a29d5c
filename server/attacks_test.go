package server

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"

	"noxmesh/events"
	"noxmesh/projections"
)

// attack is something that nobody may do, tried on a running server.
type attack struct {
	who, what string
	by        hurdle
	// try gives the refusal as it was met, nil if there was none. Silence is no
	// refusal.
	try func(t *testing.T) error
}

// hurdle is what is expected to refuse an attack, for the table, and how one
// knows it by the words of the refusal.
type hurdle struct{ by, words string }

var (
	noPermission = hurdle{"the broker: no permission", `permissions violation`}
	noEntry      = hurdle{"the broker: not let in", `(?i)authorization violation|authentication expired|authentication revoked`}
	theStream    = hurdle{"the stream's configuration", `API error`}
	notHeard     = hurdle{"the border between accounts: the mesh hears nothing of it", `^not heard$`}
	notRecorded  = hurdle{"the intake: it is not in the log", `^not in the log$`}
	theDecoder   = hurdle{"the decoder: it counts against its node", `.`}
	meshClock    = hurdle{"the mesh's clock: the claim is kept, and nothing is judged by it", `^the mesh's time counts$`}
)

// arena is a running mesh with a node "self", whose credential the attacker has,
// and a node "other".
type arena struct {
	*whole
	m           *mesh
	me, them    machine
	self, other *user

	lines    atomic.Int64    // of the server's log
	start    int             // events at the start
	expected map[string]int  // events that were added for good reasons, by type
	perhaps  map[string]bool // types of which some may be added, as a record of attempts
}

func newArena(t *testing.T) *arena {
	a := &arena{
		expected: map[string]int{},
		perhaps: map[string]bool{
			(&events.NodeJoinRefused{}).EventType(): true, (&events.NodeReportRejected{}).EventType(): true,
		},
	}
	w := &whole{dir: t.TempDir()}
	logger := testLog(t).Hook(zerolog.HookFunc(func(_ *zerolog.Event, level zerolog.Level, _ string) {
		if level >= zerolog.WarnLevel {
			a.lines.Add(1)
		}
	}))
	var err error
	if w.Server, err = Start(testContext(t), Config{DataDir: w.dir, Listen: "127.0.0.1:0", Logger: logger, PulseInterval: 50 * time.Millisecond}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.stop(t) })
	if w.client, err = Dial(w.URL(), OperatorCredsFile(w.dir), CAFile(w.dir)); err != nil {
		t.Fatal(err)
	}
	a.whole, a.m = w, &mesh{dir: w.dir, identity: w.api.identity, broker: w.broker, nc: w.nc, js: w.api.js}
	a.start = len(w.record(t))
	a.me, a.them = a.join(t, "self"), a.join(t, "other")
	a.self, a.other = a.online(t, a.me), a.online(t, a.them)
	a.declare(t, "self")
	a.declare(t, "other")
	return a
}

// expect says that n events of one kind are added to the log for good reasons.
func (a *arena) expect(fact events.Fact, n int) { a.expected[fact.EventType()] += n }

func (a *arena) token(t *testing.T, node string) events.Token {
	a.expect(&events.NodeInvited{}, 1)
	return a.invite(t, node, nil)
}

func (a *arena) join(t *testing.T, node string) machine {
	a.expect(&events.NodeInvited{}, 1)
	a.expect(&events.NodeEnrolled{}, 1)
	return a.joined(t, node, nil)
}

// declare has a node declared something new, which is the last thing in the log
// and behind everything that came to it before.
func (a *arena) declare(t *testing.T, node string) {
	t.Helper()
	a.expect(&events.Declared{}, 1)
	if _, err := a.client.Declare(testContext(t), DeclareRequest{Node: node}); err != nil {
		t.Fatal(err)
	}
}

// enter connects with some credential.
func (a *arena) enter(t *testing.T, auth nats.Option, inbox string) *user {
	t.Helper()
	u := &user{denied: make(chan error, 64)}
	nc, err := nats.Connect(a.URL(), nats.RootCAs(CAFile(a.dir)), auth, nats.CustomInboxPrefix(inbox), nats.NoReconnect(),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
			select {
			case u.denied <- err:
			default:
			}
		}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	u.Conn = nc
	return u
}

func (a *arena) online(t *testing.T, x machine) *user {
	t.Helper()
	return a.enter(t, x.creds(x.reply.Link), events.InboxPrefix("node", x.node))
}

// person gives a connection of somebody who was added with a role.
func (a *arena) person(t *testing.T, name, role string) *user {
	t.Helper()
	a.expect(&events.UserAdded{}, 1)
	raw, err := os.ReadFile(a.add(t, name, role))
	if err != nil {
		t.Fatal(err)
	}
	return connectUser(t, a.m, raw, events.InboxPrefix("user", name))
}

// denial is what the broker says about the last thing that was done, nil if it
// says nothing. The channel must not hold anything older.
func (u *user) denial(verb, subject string) error {
	if err := u.Flush(); err != nil {
		return fmt.Errorf("the connection ended: %w", err)
	}
	select {
	case err := <-u.denied:
		if subject != "" && !strings.Contains(strings.ToLower(err.Error()), strings.ToLower(verb+` to "`+subject+`"`)) {
			return fmt.Errorf("something else was refused: %.200s", strings.ReplaceAll(err.Error(), "permissions", ""))
		}
		return err
	case <-time.After(patience):
		return nil
	}
}

// publishes makes rows of subjects that u may not publish on.
func publishes(who string, u *user, inbox string, subjects map[string]string) (rows []attack) {
	for _, subject := range slices.Sorted(maps.Keys(subjects)) {
		rows = append(rows, attack{who, "publishes " + subject, noPermission, func(t *testing.T) error {
			if err := u.PublishRequest(subject, inbox+".reply", []byte(subjects[subject])); err != nil {
				t.Fatal(err)
			}
			return u.denial("Publish", subject)
		}})
	}
	return rows
}

// subscribes makes rows of subjects that u may not hear.
func subscribes(who string, u *user, subjects ...string) (rows []attack) {
	for _, subject := range subjects {
		rows = append(rows, attack{who, "listens on " + subject, noPermission, func(t *testing.T) error {
			if _, err := u.SubscribeSync(subject); err != nil {
				t.Fatal(err)
			}
			return u.denial("Subscription", subject)
		}})
	}
	return rows
}

// folded waits until the mesh knows something.
func (a *arena) folded(ctx context.Context, ok func(m *projections.Mesh) bool) error {
	for {
		changed, yes := a.api.runner.Changed(), false
		a.api.runner.View(func(m *projections.Mesh) { yes = ok(m) })
		if yes {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// TestAttacks tries what a hostile node, person or stranger could, each attempt
// with the refusal that it must meet. Afterwards the log has nothing in it that
// does not belong there. NOX_MESH_ATTACKS names a file for the table.
func TestAttacks(t *testing.T) {
	a := newArena(t)
	var rows []attack
	for _, theme := range []func(*testing.T) []attack{
		a.nodeSubjects, a.nodeHeaders, a.nodeAims, a.badHeartbeats, a.badReports, a.replays, a.clockLies,
		a.names, a.people, a.badCommands, a.atTheDoor, a.fromOutside, a.floods,
	} {
		rows = append(rows, theme(t)...)
	}
	var text strings.Builder
	table := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "WHO\tATTEMPT\tREFUSED BY")
	refused := 0
	for _, row := range rows {
		by := "NOT REFUSED"
		t.Run(row.who+" "+row.what, func(t *testing.T) {
			switch met := row.try(t); {
			case met == nil:
				t.Error("it was not refused")
			case !regexp.MustCompile(row.by.words).MatchString(met.Error()):
				t.Errorf("it met %.300q, and not %s", met, row.by.by)
			default:
				by = row.by.by
				refused++
			}
		})
		fmt.Fprintf(table, "%s\t%s\t%s\n", row.who, row.what, by)
	}
	if err := table.Flush(); err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(&text, "%d attempts, %d refused\n", len(rows), refused)
	if file := os.Getenv("NOX_MESH_ATTACKS"); file != "" {
		if err := os.WriteFile(file, []byte(text.String()), 0o600); err != nil {
			t.Error(err)
		}
	}
	t.Run("the log afterwards", a.verify)
}

// verify: the log is whole, folds, and has got only what belongs there.
func (a *arena) verify(t *testing.T) {
	ctx := testContext(t)
	fold, got := projections.NewMesh(), map[string]int{}
	for i, msg := range readAll(t, a.m, events.StreamEvents) {
		e, err := events.Decode(msg.Data)
		if err != nil {
			t.Fatalf("event %d does not decode: %v", msg.Seq, err)
		}
		if subject, err := e.StreamSubject(); err != nil || subject != msg.Subject || msg.Seq != uint64(i+1) {
			t.Errorf("event %d is number %d on %s: %v", msg.Seq, i+1, msg.Subject, err)
		}
		if err := fold.ApplyEvent(events.Record{Seq: msg.Seq, Event: e}); err != nil {
			t.Fatal(err)
		}
		if i >= a.start {
			got[e.Type]++
		}
	}
	for typ, n := range got {
		if n != a.expected[typ] && !a.perhaps[typ] {
			t.Errorf("%d events %s were added, want %d", n, typ, a.expected[typ])
		}
	}
	for typ, n := range a.expected {
		if got[typ] == 0 && n > 0 {
			t.Errorf("no event %s was added, want %d", typ, n)
		}
	}
	if err := a.folded(ctx, func(m *projections.Mesh) bool { return m.EventSeq >= fold.EventSeq }); err != nil {
		t.Error(err)
	}
	opts, err := StreamOptions{}.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, want := range streamConfigs(opts) {
		names = append(names, want.Name)
		s, err := a.m.js.Stream(ctx, want.Name)
		if err != nil {
			t.Fatal(err)
		}
		if diffs := configDiffs(want, s.CachedInfo().Config); len(diffs) > 0 {
			t.Errorf("stream %s was changed: %v", want.Name, diffs)
		}
		if st := s.CachedInfo().State; want.Name == events.StreamEvents && (st.FirstSeq != 1 || st.NumDeleted != 0) {
			t.Errorf("the log lacks events: %+v", st)
		}
	}
	list := a.m.js.StreamNames(ctx)
	for name := range list.Name() {
		if !slices.Contains(names, name) {
			t.Errorf("there is a new stream %s", name)
		}
	}
	if err := errors.Join(list.Err(), a.Err(), a.broker.Healthy()); err != nil {
		t.Error(err)
	}
}
