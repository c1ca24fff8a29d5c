package nodeagent

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"

	"noxmesh/events"
)

// shelf is an object store in memory.
type shelf map[string][]byte

func (s shelf) get(_ context.Context, stream, subject string) ([]byte, error) {
	if stream != "OBJ_packages" {
		return nil, errors.New("another stream")
	}
	if raw, ok := s[subject]; ok {
		return raw, nil
	}
	return nil, errNothing
}

func shelve(raw []byte) (shelf, events.Release) {
	sum := sha256.Sum256(raw)
	rel := events.Release{Version: "1.0.0", Architecture: "amd64", SHA256: hex.EncodeToString(sum[:]), Size: int64(len(raw))}
	s := shelf{}
	for part := 0; len(raw) > 0; part++ {
		n := min(len(raw), events.PackagePartSize)
		s[meta(rel, part)] = fmt.Appendf(nil, `{"nuid":"N%d","size":%d,"chunks":1}`, part, n)
		s[fmt.Sprintf("$O.packages.C.N%d", part)] = raw[:n]
		raw = raw[n:]
	}
	return s, rel
}

func meta(rel events.Release, part int) string {
	return "$O.packages.M." + base64.URLEncoding.EncodeToString(fmt.Appendf(nil, "%s.%d", rel.SHA256, part))
}

func TestFetchSizes(t *testing.T) {
	for _, size := range []int{1, events.PackagePartSize - 1, events.PackagePartSize, events.PackagePartSize + 1, 3 * events.PackagePartSize} {
		raw := bytes.Repeat([]byte{7}, size)
		s, rel := shelve(raw)
		file := filepath.Join(t.TempDir(), "f")
		if err := fetch(t.Context(), s.get, rel, file); err != nil {
			t.Errorf("%d bytes: %v", size, err)
		}
		if got, err := os.ReadFile(file); err != nil || !bytes.Equal(got, raw) {
			t.Errorf("%d bytes came as %d, %v", size, len(got), err)
		}
	}
}

func TestFetchOfWhatIsNotAsDeclared(t *testing.T) {
	for _, c := range []struct {
		name, want string
		spoil      func(s shelf, rel *events.Release)
	}{
		{"other bytes", "has sha256", func(s shelf, _ *events.Release) { s["$O.packages.C.N1"] = []byte("aaaaa") }},
		{"a chunk too long", "6 bytes came and 5 were expected", func(s shelf, _ *events.Release) { s["$O.packages.C.N1"] = []byte("aaaaaa") }},
		{"a part too long", "not 5 bytes in one", func(s shelf, rel *events.Release) { s[meta(*rel, 1)] = []byte(`{"nuid":"N1","size":6,"chunks":1}`) }},
		{"two chunks", "not 5 bytes in one", func(s shelf, rel *events.Release) { s[meta(*rel, 1)] = []byte(`{"nuid":"N1","size":5,"chunks":2}`) }},
		{"a wild subject", "not 5 bytes in one", func(s shelf, rel *events.Release) { s[meta(*rel, 1)] = []byte(`{"nuid":">","size":5,"chunks":1}`) }},
		{"deleted", "nothing there", func(s shelf, rel *events.Release) {
			s[meta(*rel, 1)] = []byte(`{"nuid":"N1","size":5,"chunks":1,"deleted":true}`)
		}},
		{"no entry", "nothing there", func(s shelf, rel *events.Release) { delete(s, meta(*rel, 1)) }},
		{"garbage for an entry", "does not read", func(s shelf, rel *events.Release) { s[meta(*rel, 1)] = []byte(`nuid`) }},
		{"no chunk", "nothing there", func(s shelf, _ *events.Release) { delete(s, "$O.packages.C.N0") }},
		{"declared shorter", "not 4 bytes in one", func(_ shelf, rel *events.Release) { rel.Size-- }},
		{"declared longer", "nothing there", func(_ shelf, rel *events.Release) { rel.Size += events.PackagePartSize }},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { // some are asked for again, after pauses
				s, rel := shelve(bytes.Repeat([]byte{7}, events.PackagePartSize+5))
				c.spoil(s, &rel)
				if c.name == "declared longer" {
					s[meta(rel, 1)] = fmt.Appendf(nil, `{"nuid":"N0","size":%d,"chunks":1}`, events.PackagePartSize)
				}
				err := fetch(t.Context(), s.get, rel, filepath.Join(t.TempDir(), "f"))
				if err == nil || !strings.Contains(err.Error(), c.want) {
					t.Errorf("got %v", err)
				}
			})
		})
	}
}

func TestFetchAsksAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, rel := shelve([]byte("package"))
		failures := 3
		flaky := func(ctx context.Context, stream, subject string) ([]byte, error) {
			if failures--; failures >= 0 {
				return nil, errors.New("no answer")
			}
			return s.get(ctx, stream, subject)
		}
		if err := fetch(t.Context(), flaky, rel, filepath.Join(t.TempDir(), "f")); err != nil {
			t.Error(err)
		}
		asked := 0
		dead := func(context.Context, string, string) ([]byte, error) { asked++; return nil, errors.New("no answer") }
		if err := fetch(t.Context(), dead, rel, filepath.Join(t.TempDir(), "f")); err == nil || asked != fetchTries {
			t.Errorf("it asked %d times: %v", asked, err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		asked = 0
		ended := func(context.Context, string, string) ([]byte, error) {
			asked++
			cancel()
			return nil, errors.New("no answer")
		}
		if err := fetch(ctx, ended, rel, filepath.Join(t.TempDir(), "f")); err == nil || asked != 1 {
			t.Errorf("it asked %d times after the end: %v", asked, err)
		}
	})
}
