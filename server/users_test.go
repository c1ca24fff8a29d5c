package server

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"noxmesh/events"
)

// add has a user added and gives the credential's file.
func (w *whole) add(t *testing.T, name, role string) (file string) {
	t.Helper()
	r, err := w.client.AddUser(testContext(t), UserAddRequest{User: name, Role: role})
	if err != nil {
		t.Fatal(err)
	}
	file = filepath.Join(t.TempDir(), name+".creds")
	if err := os.WriteFile(file, []byte(r.Creds), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// dial connects with a credential, or says why it is not let in.
func (w *whole) dial(t *testing.T, file string) (*Client, error) {
	t.Helper()
	c, err := Dial(w.URL(), file, CAFile(w.dir))
	if err == nil {
		t.Cleanup(c.Close)
	}
	return c, err
}

func (w *whole) as(t *testing.T, file string) *Client {
	t.Helper()
	c, err := w.dial(t, file)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// users words who is on record.
func (w *whole) users(t *testing.T) string {
	t.Helper()
	list, err := w.client.Users(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, u := range list.Users {
		word := u.User + " " + u.Role
		if u.Revoked {
			word += " revoked"
		}
		if u.PublicKey == "" || time.Since(u.Since) > time.Minute {
			t.Errorf("%+v lacks something", u)
		}
		out = append(out, word)
	}
	return strings.Join(out, ", ")
}

func TestUsers(t *testing.T) {
	dir := t.TempDir()
	w := startServer(t, dir)
	ctx := testContext(t)
	if got := w.users(t); got != "operator operator" {
		t.Errorf("on record at the start: %s", got)
	}
	auditor, viewer := w.add(t, "aud", RoleAuditor), w.add(t, "view", RoleViewer)
	aud, view := w.as(t, auditor), w.as(t, viewer)
	for _, c := range []*Client{aud, view} {
		if _, err := c.Fleet(ctx); err != nil {
			t.Error(err)
		}
		_, err := c.Hold(ctx, "1.0.0", "x")
		refused(t, "holding as "+c.conn.User(), err, `the role of "`+c.conn.User()+`" does not allow release.hold`)
		_, err = c.AddUser(ctx, UserAddRequest{User: "eve", Role: RoleOperator})
		refused(t, "adding an operator as "+c.conn.User(), err, "does not allow user.add")
	}
	n := 0
	count := func(events.Record) error { n++; return nil }
	if err := aud.ReadLog(ctx, LogRequest{}, false, count); err != nil || n < 3 {
		t.Errorf("the auditor read %d events, %v", n, err)
	}
	refused(t, "reading the log as a viewer", view.ReadLog(ctx, LogRequest{}, false, count), "does not allow log.read")

	// The log names who it was, as the broker knows them.
	ann := w.as(t, w.add(t, "ann", RoleOperator))
	if _, err := ann.RevokeUser(ctx, "view", "left\x1b[2J"); err != nil {
		t.Fatal(err)
	}
	var last events.Record
	if err := aud.ReadLog(ctx, LogRequest{Type: "user.revoked"}, false, func(r events.Record) error { last = r; return nil }); err != nil {
		t.Fatal(err)
	}
	fact, err := last.Event.Fact()
	if f, ok := fact.(*events.UserRevoked); err != nil || !ok || last.Event.Subject != "view" || last.Event.Actor != "ann" || f.Reason != "left?[2J" {
		t.Errorf("the revocation is %+v %+v, %v", last.Event, fact, err)
	}
	// Out at once, and for good.
	_, err = view.Fleet(ctx)
	refused(t, "a revoked viewer", err, "does not let \"view\" in any more")
	_, err = w.dial(t, viewer)
	refused(t, "a revoked viewer's credential", err, "was revoked or replaced")
	if r, err := ann.RevokeUser(ctx, "view", ""); err != nil || !r.Already {
		t.Errorf("revoking again gives %+v, %v", r, err)
	}
	_, err = ann.RevokeUser(ctx, "nobody", "")
	refused(t, "revoking one that is not there", err, "there is no user")

	// Adding again replaces.
	again := w.add(t, "aud", RoleViewer)
	_, err = aud.Fleet(ctx)
	refused(t, "the former auditor", err, "in any more")
	if _, err := w.dial(t, auditor); err == nil {
		t.Error("the replaced credential is let in")
	}
	if _, err := w.as(t, again).Fleet(ctx); err != nil {
		t.Error(err)
	}
	back := w.as(t, w.add(t, "view", RoleViewer))
	if _, err := back.Fleet(ctx); err != nil {
		t.Error(err)
	}
	if _, err := w.dial(t, viewer); err == nil {
		t.Error("the revoked credential is let in since its user is back")
	}
	const want = "ann operator, aud viewer, operator operator, view viewer"
	if got := w.users(t); got != want {
		t.Errorf("on record are %s, want %s", got, want)
	}

	// Still so after a restart, from the first moment.
	w.stop(t)
	w = startServer(t, dir)
	for _, file := range []string{auditor, viewer} {
		if _, err := w.dial(t, file); err == nil {
			t.Errorf("after a restart %s is let in", file)
		}
	}
	if _, err := w.as(t, again).Fleet(ctx); err != nil {
		t.Error(err)
	}
	if got := w.users(t); got != want {
		t.Errorf("after a restart on record are %s, want %s", got, want)
	}
}

func TestNobodyLocksTheLastOperatorOut(t *testing.T) {
	w := startServer(t, t.TempDir())
	ctx := testContext(t)
	ann := w.as(t, w.add(t, "ann", RoleOperator))
	// Nor themselves: the answer, with a new credential, would not reach them.
	_, err := ann.RevokeUser(ctx, "ann", "")
	refused(t, "revoking oneself", err, "have another operator revoke you")
	_, err = ann.AddUser(ctx, UserAddRequest{User: "ann", Role: RoleOperator})
	refused(t, "replacing oneself", err, "you are ann")

	// Two who revoke each other at once: one is left.
	first := w.client
	var wg sync.WaitGroup
	var errs [2]error
	wg.Go(func() { _, errs[0] = ann.RevokeUser(ctx, FirstOperator, "") })
	wg.Go(func() { _, errs[1] = first.RevokeUser(ctx, "ann", "") })
	wg.Wait()
	if (errs[0] == nil) == (errs[1] == nil) {
		t.Fatalf("two who revoke each other are answered with %v and %v", errs[0], errs[1])
	}
	left, gone := ann, FirstOperator
	if errs[1] == nil {
		left, gone = first, "ann"
	}
	w.client = left
	if got := w.users(t); strings.Count(got, "revoked") != 1 || !strings.Contains(got, gone+" operator revoked") {
		t.Errorf("on record are %s", got)
	}
	// The one that is left cannot be made less by a command of its own that was
	// under way, or by anything else.
	var a *api = w.api
	for _, name := range []string{"ann", FirstOperator} {
		if name == gone {
			continue
		}
		_, err := a.revokeUser(ctx, caller{actor: "other"}, UserRevokeRequest{User: name})
		refused(t, "revoking the last operator", err, "is the last operator")
		for _, role := range []string{RoleAuditor, RoleViewer} {
			_, err = a.addUser(ctx, caller{actor: "other"}, UserAddRequest{User: name, Role: role})
			refused(t, "making the last operator an "+role, err, "is the last operator")
		}
	}
	for _, q := range []UserAddRequest{
		{"*", RoleViewer}, {"a.b", RoleViewer}, {"", RoleViewer}, {"mesh", RoleViewer}, {"stager", RoleOperator}, {"eve", ""}, {"eve", "root"},
	} {
		if r, err := left.AddUser(ctx, q); err == nil || r.Creds != "" {
			t.Errorf("%+v is answered with %v", q, r)
		}
	}
}

func keyOf(t *testing.T, w *whole) string {
	t.Helper()
	have, err := w.api.identity.operatorCreds(OperatorCredsFile(w.dir))
	if err != nil {
		t.Fatal(err)
	}
	return have.key
}

// recorded gives the keys of the first operator that are in the log.
func (w *whole) recorded(t *testing.T) (keys []string) {
	t.Helper()
	err := w.client.ReadLog(testContext(t), LogRequest{Type: "user.added"}, false, func(r events.Record) error {
		fact, err := r.Event.Fact()
		if f, ok := fact.(*events.UserAdded); ok && r.Event.Subject == FirstOperator {
			keys = append(keys, f.PublicKey)
			if f.Role != RoleOperator || r.Event.Actor != "mesh" {
				t.Errorf("the first operator is recorded as %+v by %s", f, r.Event.Actor)
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return keys
}

func TestFirstOperator(t *testing.T) {
	dir := t.TempDir()
	path := OperatorCredsFile(dir)
	w := startServer(t, dir)
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v %v, want mode 0600", info, err)
	}
	first := keyOf(t, w)
	if got := w.recorded(t); !slices.Equal(got, []string{first}) {
		t.Errorf("recorded are %v, want %s", got, first)
	}
	creds, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	w.stop(t)
	w = startServer(t, dir)
	if again, _ := os.ReadFile(path); !bytes.Equal(again, creds) {
		t.Error("the credential is another after a restart")
	}
	if got := w.recorded(t); len(got) != 1 {
		t.Errorf("recorded are %v", got)
	}
	// One of version 0.1 is not let in, and replaced.
	old, _, err := newCreds(FirstOperator, func(key string) (string, error) {
		id := w.api.identity
		return scopedJWT(FirstOperator, key, id.mesh, id.roleOperator, time.Time{})
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := nats.Connect(w.URL(), nats.RootCAs(CAFile(dir)), nats.UserCredentialBytes(old)); !errors.Is(err, nats.ErrAuthorization) {
		t.Errorf("an operator of version 0.1 is answered with %v", err)
	}
	w.stop(t)
	if err := os.WriteFile(path, old, 0o600); err != nil {
		t.Fatal(err)
	}
	w = startServer(t, dir)
	second := keyOf(t, w)
	if got := w.recorded(t); second == "" || !slices.Equal(got, []string{first, second}) {
		t.Errorf("recorded are %v, want %s and %s", got, first, second)
	}
	former := filepath.Join(t.TempDir(), "former.creds")
	if err := os.WriteFile(former, creds, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := w.dial(t, former); err == nil {
		t.Error("the one before it is let in")
	}

	// Taken away, it is not made again; lost, it is made anew when asked for.
	w.stop(t)
	taken := filepath.Join(t.TempDir(), "taken.creds")
	if err := os.Rename(path, taken); err != nil {
		t.Fatal(err)
	}
	s, err := Start(testContext(t), Config{DataDir: dir, Listen: "127.0.0.1:0", Logger: testLog(t)})
	if err != nil {
		t.Fatal(err)
	}
	w = &whole{Server: s, dir: dir}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Error("the credential that was taken away is there again:", err)
	}
	w.client = w.as(t, taken)
	if got := w.recorded(t); len(got) != 2 {
		t.Errorf("recorded are %v", got)
	}
	w.stop(t)
	if err := os.WriteFile(path, []byte("garbage"), 0o600); err != nil {
		t.Fatal(err)
	}
	if s, err = Start(testContext(t), Config{DataDir: dir, Listen: "127.0.0.1:0", Logger: testLog(t), NewOperator: true}); err != nil {
		t.Fatal(err)
	}
	w = &whole{Server: s, dir: dir}
	w.client = w.as(t, path)
	if got := w.recorded(t); len(got) != 3 || got[2] != keyOf(t, w) {
		t.Errorf("recorded are %v", got)
	}
	if _, err := w.dial(t, taken); err == nil {
		t.Error("the one that was lost is let in")
	}
	w.stop(t)
}

// A server that stops between the credential's file and its event makes up for
// it at the next start.
func TestFirstOperatorCutOff(t *testing.T) {
	dir := t.TempDir()
	id, err := LoadOrCreateIdentity(dir)
	if err != nil {
		t.Fatal(err)
	}
	creds, key, err := id.UserCreds(FirstOperator, RoleOperator)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(OperatorCredsFile(dir), creds, 0o600); err != nil {
		t.Fatal(err)
	}
	w := startServer(t, dir)
	if got := w.recorded(t); !slices.Equal(got, []string{key}) {
		t.Errorf("recorded are %v, want %s", got, key)
	}
}

// Of all the mesh knows, nothing else lets one in: somebody else's file is left
// alone while there are operators, and not taken for one when there are none.
func TestForeignOperatorFile(t *testing.T) {
	other, err := LoadOrCreateIdentity(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	creds, _, err := other.UserCreds(FirstOperator, RoleOperator)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.WriteFile(OperatorCredsFile(dir), creds, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = Start(testContext(t), Config{DataDir: dir, Listen: "127.0.0.1:0", Logger: testLog(t)})
	wantError(t, err, OperatorCredsFile(dir), "--new-operator")
	if have, _ := os.ReadFile(OperatorCredsFile(dir)); !bytes.Equal(have, creds) {
		t.Error("the file was written over")
	}
}

// A credential that was replaced and still lies in the data directory does not
// come back to life with a restart.
func TestReplacedFirstOperatorStaysOut(t *testing.T) {
	dir := t.TempDir()
	w := startServer(t, dir)
	file := w.add(t, "ann", RoleOperator)
	r, err := w.as(t, file).AddUser(testContext(t), UserAddRequest{User: FirstOperator, Role: RoleOperator})
	if err != nil || !r.Replaced {
		t.Fatalf("%+v, %v", r, err)
	}
	w.stop(t)
	s, err := Start(testContext(t), Config{DataDir: dir, Listen: "127.0.0.1:0", Logger: testLog(t)})
	if err != nil {
		t.Fatal(err)
	}
	w = &whole{Server: s, dir: dir}
	defer w.stop(t)
	w.client = w.as(t, file)
	w.once(t, &events.UserAdded{}, 3)
	if _, err := w.dial(t, OperatorCredsFile(dir)); err == nil {
		t.Error("the replaced credential is let in")
	}
}
