package server

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"noxmesh/events"
)

// stored is a package of three parts.
func stored(t *testing.T, m *mesh) (events.Release, []byte) {
	t.Helper()
	raw := debSpec{payload: noise(2*events.PackagePartSize + 1000)}.build(t)
	path := writeDeb(t, raw)
	r, err := ReadDeb(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := put(testContext(t), m, path, r); err != nil {
		t.Fatal(err)
	}
	return r, raw
}

// put stores a package as an operator's client and the server do between them.
func put(ctx context.Context, m *mesh, path string, r events.Release) error {
	return releaseParts(path, r, func(name string, part []byte) error {
		_, err := storePart(ctx, m.js, name, part)
		return err
	})
}

func TestPackageRoundTrip(t *testing.T) {
	m := startMesh(t, t.TempDir())
	ctx := testContext(t)
	r, raw := stored(t, m)
	if err := CheckPackage(ctx, m.js, r); err != nil {
		t.Error(err)
	}
	// As a node reads it: two Direct Gets a part, until all bytes are there.
	node := connectNode(t, m, "a")
	get := func(subject string) []byte {
		t.Helper()
		msg, err := node.RequestWithContext(ctx, directGet(events.StreamPackages, subject), nil)
		if err != nil {
			t.Fatal(err)
		}
		if status := msg.Header.Get("Status"); status != "" {
			t.Fatalf("%s: %s", subject, status)
		}
		return msg.Data
	}
	var got []byte
	parts := 0
	for int64(len(got)) < r.Size {
		name := base64.URLEncoding.EncodeToString([]byte(events.PackagePart(r.SHA256, parts)))
		var info jetstream.ObjectInfo
		if err := json.Unmarshal(get("$O.packages.M."+name), &info); err != nil {
			t.Fatal(err)
		}
		got = append(got, get("$O.packages.C."+info.NUID)...)
		parts++
	}
	if parts != 3 || !bytes.Equal(got, raw) {
		t.Errorf("a node read %d bytes in %d parts, want %d in 3, equal: %v", len(got), parts, len(raw), bytes.Equal(got, raw))
	}
}

func lastSeq(ctx context.Context, t *testing.T, m *mesh, stream string) uint64 {
	t.Helper()
	s, err := m.js.Stream(ctx, stream)
	if err != nil {
		t.Fatal(err)
	}
	return s.CachedInfo().State.LastSeq
}

func TestPutPackageAgainStoresOnlyWhatIsMissing(t *testing.T) {
	m := startMesh(t, t.TempDir())
	ctx := testContext(t)
	r, raw := stored(t, m)
	path := writeDeb(t, raw)
	before := lastSeq(ctx, t, m, events.StreamPackages)
	if err := put(ctx, m, path, r); err != nil {
		t.Fatal(err)
	}
	if after := lastSeq(ctx, t, m, events.StreamPackages); after != before {
		t.Errorf("a second upload stored %d messages", after-before)
	}
	store, err := m.js.ObjectStore(ctx, events.BucketPackages)
	if err != nil {
		t.Fatal(err)
	}
	stream, err := m.js.Stream(ctx, events.StreamPackages)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name, want string
		damage     func() error
	}{
		{"part deleted", "part 2 of 3", func() error { return store.Delete(ctx, events.PackagePart(r.SHA256, 1)) }},
		{"content lost", "its content is not there", func() error {
			info, err := store.GetInfo(ctx, events.PackagePart(r.SHA256, 2))
			if err != nil {
				return err
			}
			return stream.Purge(ctx, jetstream.WithPurgeSubject("$O.packages.C."+info.NUID))
		}},
		{"content changed", "its sha256 is", func() error {
			_, err := store.Put(ctx, jetstream.ObjectMeta{
				Name: events.PackagePart(r.SHA256, 0), Opts: &jetstream.ObjectMetaOptions{ChunkSize: events.PackagePartSize},
			}, bytes.NewReader(make([]byte, events.PackagePartSize)))
			return err
		}},
		{"content short", "it has 1 bytes", func() error {
			_, err := store.PutBytes(ctx, events.PackagePart(r.SHA256, 0), []byte("x"))
			return err
		}},
		{"many chunks", "not stored as one chunk", func() error {
			_, err := store.Put(ctx, jetstream.ObjectMeta{
				Name: events.PackagePart(r.SHA256, 0), Opts: &jetstream.ObjectMetaOptions{ChunkSize: 1 << 10},
			}, bytes.NewReader(raw[:events.PackagePartSize]))
			return err
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if err := tt.damage(); err != nil {
				t.Fatal(err)
			}
			wantError(t, CheckPackage(ctx, m.js, r), r.File, tt.want, "add the release again")
			if err := put(ctx, m, path, r); err != nil {
				t.Fatal(err)
			}
			if err := CheckPackage(ctx, m.js, r); err != nil {
				t.Error("after it was put again:", err)
			}
		})
	}
}

func TestPutPackageThatChanged(t *testing.T) {
	m := startMesh(t, t.TempDir())
	ctx := testContext(t)
	path := writeDeb(t, debSpec{}.build(t))
	r, err := ReadDeb(path)
	if err != nil {
		t.Fatal(err)
	}
	wantError(t, CheckPackage(ctx, m.js, r), "part 1 of 1: it is not there")
	if err := os.WriteFile(path, debSpec{payload: []byte("x")}.build(t), 0o600); err != nil {
		t.Fatal(err)
	}
	wantError(t, put(ctx, m, path, r), path, "has changed")
	if n := lastSeq(ctx, t, m, events.StreamPackages); n != 0 {
		t.Errorf("%d messages were stored", n)
	}
	wantError(t, CheckPackage(ctx, m.js, events.Release{}), "checking package")
}

func TestPartsAreChecked(t *testing.T) {
	m := startMesh(t, t.TempDir())
	ctx := testContext(t)
	sum := strings.Repeat("0a", 32)
	for _, name := range []string{
		"", "part", sum, sum + ".", sum + ".x", sum + ".-1", sum + ".01", sum + ".10000", sum + ".0.0", sum + ".0\n", sum[1:] + ".0", strings.ToUpper(sum) + ".0",
		"../" + sum + ".0", sum + ".0/../x", "*", ">",
	} {
		_, err := storePart(ctx, m.js, name, []byte("x"))
		wantError(t, err, "no part of a package")
	}
	for _, n := range []int{0, events.PackagePartSize + 1} {
		_, err := storePart(ctx, m.js, sum+".0", make([]byte, n))
		wantError(t, err, "has 1 to")
	}
	if n := lastSeq(ctx, t, m, events.StreamPackages); n != 0 {
		t.Errorf("%d messages were stored", n)
	}
	for i, want := range []bool{false, true} {
		already, err := storePart(ctx, m.js, sum+".9999", make([]byte, events.PackagePartSize))
		if err != nil || already != want {
			t.Errorf("time %d: %v, %v", i+1, already, err)
		}
	}
}

// A client brings a package of many parts by commands alone.
func TestPackageIsUploaded(t *testing.T) {
	w := startServer(t, t.TempDir())
	ctx := testContext(t)
	path := writeDeb(t, debSpec{payload: noise(2*events.PackagePartSize + 1000)}.build(t))
	for i := range 2 {
		r, err := w.client.AddRelease(ctx, path, w.releaseKey(), false)
		if err != nil || r.Already != (i == 1) {
			t.Fatalf("time %d: %+v, %v", i+1, r, err)
		}
	}
	_, err := ask[PartReply](ctx, w.client, patience, cmdReleasePart, PartRequest{Name: "x", Data: make([]byte, maxRequest)})
	wantError(t, err, "over the limit")
}
