package server

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestIdentityIsKept(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	id, err := LoadOrCreateIdentity(dir)
	if err != nil {
		t.Fatal(err)
	}
	seeds := readKeys(t, dir)
	if len(seeds) != len(id.keyFiles()) {
		t.Errorf("%d keys on the disk, want %d", len(seeds), len(id.keyFiles()))
	}
	if info, err := os.Stat(filepath.Join(dir, "identity")); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("directory of the identity: %v %v, want mode 0700", info.Mode(), err)
	}
	again, err := LoadOrCreateIdentity(dir)
	if err != nil {
		t.Fatal(err)
	}
	for i, f := range id.keyFiles() {
		a, _ := (*f.key).PublicKey()
		b, _ := (*again.keyFiles()[i].key).PublicKey()
		if a == "" || a != b {
			t.Errorf("%s was %q and is %q", f.name, a, b)
		}
	}
}

// A data directory of version 0.1 has not all keys. What it has stays, and what
// is missing is made once: afterwards a missing one is damage.
func TestLaterKeysAreAdded(t *testing.T) {
	dir := t.TempDir()
	id, err := LoadOrCreateIdentity(dir)
	if err != nil {
		t.Fatal(err)
	}
	remove := func(names ...string) {
		t.Helper()
		for _, name := range names {
			if err := os.Remove(filepath.Join(dir, "identity", name)); err != nil {
				t.Fatal(err)
			}
		}
	}
	load := func() map[string]string {
		t.Helper()
		if _, err := LoadOrCreateIdentity(dir); err != nil {
			t.Fatal(err)
		}
		return readKeys(t, dir)
	}
	before := load()
	var later []string
	for _, f := range id.keyFiles() {
		if f.later {
			later = append(later, f.name)
		}
	}
	if len(later) != 6 {
		t.Fatalf("%d of the keys came later: %v", len(later), later)
	}
	remove(later...)
	after := load()
	for name, key := range before {
		if is := slices.Contains(later, name); after[name] == "" || (after[name] != key) != is {
			t.Errorf("%s: made anew: %v, came later: %v", name, after[name] != key, is)
		}
	}
	// Cut off while they were made.
	remove("role-viewer.nk", lastKeyFile)
	if again := load(); again["door.nk"] != after["door.nk"] || again["role-viewer.nk"] == "" || again[lastKeyFile] == "" {
		t.Errorf("after a start that was cut off: %v", again)
	}
	remove("role-viewer.nk")
	_, err = LoadOrCreateIdentity(dir)
	wantError(t, err, "role-viewer.nk", "backup")
}

func readKeys(t *testing.T, dir string) map[string]string {
	t.Helper()
	keys := make(map[string]string)
	entries, err := os.ReadDir(filepath.Join(dir, "identity"))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v %v, want mode 0600", e.Name(), info.Mode(), err)
		}
		raw, err := os.ReadFile(filepath.Join(dir, "identity", e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		keys[e.Name()] = string(raw)
	}
	return keys
}

// A start that was cut off leaves a directory that is not the identity yet.
func TestIdentityCutOffWhileMade(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "identity.new"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "identity.new", "operator.nk"), []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := LoadOrCreateIdentity(dir); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "identity.new")); !os.IsNotExist(err) {
		t.Error("the left-over directory is still there:", err)
	}
}

func TestDamagedIdentityIsNotReplaced(t *testing.T) {
	for name, damage := range map[string]func(path string) error{
		"missing key": os.Remove,
		"empty key":   func(p string) error { return os.WriteFile(p, nil, 0o600) },
		"garbage":     func(p string) error { return os.WriteFile(p, []byte("SOgarbage\n"), 0o600) },
		"key of another kind": func(p string) error {
			raw, err := os.ReadFile(filepath.Join(filepath.Dir(p), "operator.nk"))
			if err != nil {
				return err
			}
			return os.WriteFile(p, raw, 0o600)
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if _, err := LoadOrCreateIdentity(dir); err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(dir, "identity", "mesh.nk")
			if err := damage(path); err != nil {
				t.Fatal(err)
			}
			_, err := LoadOrCreateIdentity(dir)
			wantError(t, err, path, "backup")
			_, again := LoadOrCreateIdentity(dir)
			wantError(t, again, path)
		})
	}
}

func TestTwoFirstStartsMakeOneIdentity(t *testing.T) {
	dir := t.TempDir()
	keys := make(chan string)
	for range 8 {
		go func() {
			id, err := LoadOrCreateIdentity(dir)
			if err != nil {
				keys <- err.Error()
				return
			}
			pub, _ := id.mesh.PublicKey()
			keys <- pub
		}()
	}
	first := <-keys
	for range 7 {
		if k := <-keys; k != first {
			t.Errorf("one start got %s, another %s", first, k)
		}
	}
	if !strings.HasPrefix(first, "A") {
		t.Error(first)
	}
}

// The broker puts a user's name into its permissions as it is: "*" would be
// everyone.
func TestNamesAreCheckedBeforeSigning(t *testing.T) {
	id, err := LoadOrCreateIdentity(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	h := newHolder(t)
	signers := map[string]func(name, key string) (string, error){
		"link JWT": func(name, key string) (string, error) { return id.NodeJWT(name, key, time.Hour) },
		"door JWT": id.DoorJWT,
		"join JWT": func(name, key string) (string, error) { return id.InviteJWT(name, key, time.Hour) },
	}
	for what, sign := range signers {
		if token, err := sign("a", h.pub); err != nil || token == "" {
			t.Errorf("no %s was signed for a good name: %v", what, err)
		}
	}
	for _, name := range []string{
		"", "*", ">", "a.b", "a.*", "a b", "-a", "a-", "A", "Node", "a_b", "_mesh", "ä", "a\n", "a\x00", "{{name()}}", strings.Repeat("a", 64),
	} {
		if creds, pub, err := id.NodeCreds(name); err == nil || creds != nil || pub != "" {
			t.Errorf("a node's credential was made for %q", name)
		} else {
			wantError(t, err, "use 1 to 63 of a-z")
		}
		for _, role := range Roles {
			if creds, pub, err := id.UserCreds(name, role); err == nil || creds != nil || pub != "" {
				t.Errorf("an %s's credential was made for %q", role, name)
			}
		}
		for what, sign := range signers {
			if token, err := sign(name, h.pub); err == nil || token != "" {
				t.Errorf("a %s was signed for %q", what, name)
			}
		}
	}
	for _, name := range []string{"mesh", "stager"} {
		_, _, err := id.UserCreds(name, RoleViewer)
		wantError(t, err, "what the mesh calls itself")
	}
	for _, role := range []string{"", "node", "Operator", "invite", "*"} {
		_, _, err := id.UserCreds("ann", role)
		wantError(t, err, "there is no role", "auditor")
	}
	// A JWT for no user's key would let nobody in, or say more than a name.
	for _, key := range []string{"", "*", "UABC", h.pub[1:], must(id.mesh.PublicKey()), must(id.operator.PublicKey())} {
		for what, sign := range signers {
			if token, err := sign("a", key); err == nil || token != "" {
				t.Errorf("a %s was signed for key %q", what, key)
			}
		}
	}
	for _, name := range []string{"a", "7", "a-b", strings.Repeat("a", 63)} {
		if _, pub, err := id.NodeCreds(name); err != nil || !strings.HasPrefix(pub, "U") {
			t.Errorf("%q: %q %v", name, pub, err)
		}
	}
}

func must(s string, err error) string {
	if err != nil {
		panic(err)
	}
	return s
}
