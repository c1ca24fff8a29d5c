package server

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"regexp"

	"github.com/nats-io/nats.go/jetstream"

	"noxmesh/events"
)

// releaseParts hands over the file of a release in parts, see
// [events.PackagePart].
func releaseParts(path string, r events.Release, hand func(name string, part []byte) error) error {
	if err := handParts(path, r, hand); err != nil {
		return fmt.Errorf("storing package %s: %w", r.File, err)
	}
	return nil
}

func handParts(path string, r events.Release, hand func(name string, part []byte) error) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	// Before anything is stored: the name of a part promises this sum.
	sum := sha256.New()
	if _, err := io.Copy(sum, f); err != nil {
		return err
	}
	if err := sumIs(sum, r.SHA256); err != nil {
		return fmt.Errorf("%s has changed since it was read (%w): try again when nothing writes to it", path, err)
	}
	buf := make([]byte, events.PackagePartSize)
	for n := range partsOf(r) {
		part := buf[:partLen(r, n)]
		if _, err := f.ReadAt(part, int64(n)*events.PackagePartSize); err != nil {
			return err
		}
		if err := hand(events.PackagePart(r.SHA256, n), part); err != nil {
			return fmt.Errorf("part %d of %d: %w", n+1, partsOf(r), err)
		}
	}
	return nil
}

var partName = regexp.MustCompile(`^[0-9a-f]{64}\.(0|[1-9][0-9]{0,3})$`)

// storePart keeps one part of a package. One that is there and whole is left
// alone, so an upload that is repeated stores only what is missing.
func storePart(ctx context.Context, js jetstream.JetStream, name string, part []byte) (already bool, err error) {
	if !partName.MatchString(name) {
		return false, fmt.Errorf("%q is no part of a package", events.Printable(name, 80))
	}
	if len(part) == 0 || len(part) > events.PackagePartSize {
		return false, fmt.Errorf("a part of a package has 1 to %d bytes, this one %d", events.PackagePartSize, len(part))
	}
	parts, err := openParts(ctx, js)
	if err != nil {
		return false, err
	}
	if have, err := parts.read(ctx, name); err == nil && bytes.Equal(have, part) {
		return true, nil
	}
	store, err := js.ObjectStore(ctx, events.BucketPackages)
	if err != nil {
		return false, err
	}
	_, err = store.Put(ctx, jetstream.ObjectMeta{
		Name: name,
		Opts: &jetstream.ObjectMetaOptions{ChunkSize: events.PackagePartSize},
	}, bytes.NewReader(part))
	return false, err
}

// CheckPackage reads a release's package back from the store, as a node does,
// and checks that it is all there and what the release says: version and
// architecture too are the package's own word, not the client's.
func CheckPackage(ctx context.Context, js jetstream.JetStream, r events.Release) error {
	if err := r.Validate(); err != nil {
		return fmt.Errorf("checking package %s: %w", r.File, err)
	}
	if err := checkPackage(ctx, js, r); err != nil {
		return fmt.Errorf("package %s is not whole in the store: %w: add the release again", r.File, err)
	}
	return nil
}

func checkPackage(ctx context.Context, js jetstream.JetStream, r events.Release) (err error) {
	if r.Size > maxPackage {
		return fmt.Errorf("it is larger than %d bytes", int64(maxPackage))
	}
	parts, err := openParts(ctx, js)
	if err != nil {
		return err
	}
	f, err := os.CreateTemp("", "nox-mesh-package-*")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close(), os.Remove(f.Name())) }()
	sum := sha256.New()
	for n := range partsOf(r) {
		part, err := parts.read(ctx, events.PackagePart(r.SHA256, n))
		if err == nil && len(part) != partLen(r, n) {
			err = fmt.Errorf("it has %d bytes, want %d", len(part), partLen(r, n))
		}
		if err != nil {
			return fmt.Errorf("part %d of %d: %w", n+1, partsOf(r), err)
		}
		sum.Write(part)
		if _, err := f.Write(part); err != nil {
			return err
		}
	}
	if err := sumIs(sum, r.SHA256); err != nil {
		return err
	}
	is, err := readDeb(f, r.Size)
	if err != nil {
		return err
	}
	if is.Version != r.Version || is.Architecture != r.Architecture || is.File != r.File {
		return fmt.Errorf("it is %s for %s in file %s, and was said to be %s for %s in file %s", is.Version, is.Architecture, is.File, r.Version, r.Architecture, r.File)
	}
	return nil
}

func partsOf(r events.Release) int {
	return int((r.Size + events.PackagePartSize - 1) / events.PackagePartSize)
}

func partLen(r events.Release, n int) int {
	return int(min(r.Size-int64(n)*events.PackagePartSize, events.PackagePartSize))
}

func sumIs(h hash.Hash, want string) error {
	if got := hex.EncodeToString(h.Sum(nil)); got != want {
		return fmt.Errorf("its sha256 is %s, want %s", got, want)
	}
	return nil
}

// packageParts reads parts by the two subjects that nodes have rights to.
type packageParts struct {
	stream jetstream.Stream
}

func openParts(ctx context.Context, js jetstream.JetStream) (packageParts, error) {
	s, err := js.Stream(ctx, events.StreamPackages)
	return packageParts{stream: s}, err
}

func (p packageParts) read(ctx context.Context, name string) ([]byte, error) {
	meta, err := p.stream.GetLastMsgForSubject(ctx, "$O."+events.BucketPackages+".M."+base64.URLEncoding.EncodeToString([]byte(name)))
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return nil, errors.New("it is not there")
	}
	if err != nil {
		return nil, err
	}
	var info jetstream.ObjectInfo
	if err := json.Unmarshal(meta.Data, &info); err != nil {
		return nil, fmt.Errorf("its description does not read: %w", err)
	}
	if info.Deleted || info.Chunks != 1 {
		return nil, errors.New("it is not stored as one chunk")
	}
	chunk, err := p.stream.GetLastMsgForSubject(ctx, "$O."+events.BucketPackages+".C."+info.NUID)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return nil, errors.New("its content is not there")
	}
	if err != nil {
		return nil, err
	}
	return chunk.Data, nil
}
