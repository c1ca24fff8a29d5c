package server

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"noxmesh/events"
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
	for _, name := range []string{
		"", "*", ">", "a.b", "a.*", "a b", "-a", "a-", "A", "Node", "a_b", "_mesh", "ä", "a\n", "a\x00", "{{name()}}", strings.Repeat("a", 64),
	} {
		if creds, pub, err := id.NodeCreds(name); err == nil || creds != nil || pub != "" {
			t.Errorf("a node's credential was made for %q", name)
		} else {
			wantError(t, err, "use 1 to 63 of a-z")
		}
		if creds, err := id.OperatorCreds(name); err == nil || creds != nil {
			t.Errorf("an operator's credential was made for %q", name)
		}
	}
	for _, name := range []string{"a", "7", "a-b", strings.Repeat("a", 63)} {
		if _, pub, err := id.NodeCreds(name); err != nil || !strings.HasPrefix(pub, "U") {
			t.Errorf("%q: %q %v", name, pub, err)
		}
	}
}

func TestOperatorCredsFile(t *testing.T) {
	m := startMesh(t, t.TempDir())
	for range 2 {
		if err := m.identity.WriteOperatorCreds(m.dir); err != nil {
			t.Fatal(err)
		}
	}
	path := OperatorCredsFile(m.dir)
	creds, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v %v, want mode 0600", info.Mode(), err)
	}
	connectUser(t, m, creds, events.InboxPrefix("user", "operator"))
	if err := m.identity.WriteOperatorCreds(m.dir); err != nil {
		t.Fatal(err)
	}
	if again, _ := os.ReadFile(path); !bytes.Equal(creds, again) {
		t.Error("the file was written over")
	}
}
