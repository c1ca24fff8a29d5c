package nodeagent

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"regexp"
	"syscall"
	"time"

	"noxmesh/events"
)

// getter reads the last message on a subject of a stream.
type getter func(ctx context.Context, stream, subject string) ([]byte, error)

// errUnfit: the store has something else than was declared; asking again is no use.
var errUnfit = errors.New("add the release again")

// fetchTries is how often one part is asked for.
const fetchTries = 5

// fetch writes a release's package to a file and checks size and sha256. The
// file is on disk when it returns. It reads only as many bytes as the release
// says, whatever the store holds.
func fetch(ctx context.Context, get getter, rel events.Release, file string) error {
	f, err := os.OpenFile(file, os.O_CREATE|os.O_WRONLY|os.O_TRUNC|syscall.O_NOFOLLOW, 0o644)
	if err != nil {
		return err
	}
	err = fetchInto(ctx, get, rel, f)
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

func fetchInto(ctx context.Context, get getter, rel events.Release, f *os.File) error {
	h := sha256.New()
	for part, left := 0, rel.Size; left > 0; part++ {
		raw, err := fetchPart(ctx, get, events.PackagePart(rel.SHA256, part), min(left, events.PackagePartSize))
		if err != nil {
			return fmt.Errorf("part %d of %s: %w", part, rel.SHA256, err)
		}
		h.Write(raw)
		if _, err := f.Write(raw); err != nil {
			return err
		}
		left -= int64(len(raw))
	}
	if sum := hex.EncodeToString(h.Sum(nil)); sum != rel.SHA256 {
		return fmt.Errorf("the package has sha256 %s and %s was declared: %w", sum, rel.SHA256, errUnfit)
	}
	return nil
}

// fetchPart asks for a part until it comes, the tries are used up, or the mesh
// says that it has none.
func fetchPart(ctx context.Context, get getter, name string, size int64) ([]byte, error) {
	for try := 1; ; try++ {
		raw, err := getPart(ctx, get, name, size)
		if err == nil || try == fetchTries || errors.Is(err, errNothing) || errors.Is(err, errUnfit) {
			return raw, err
		}
		if wait(ctx, backoff(try, 500*time.Millisecond, 10*time.Second)) != nil {
			return nil, err
		}
	}
}

var nuidForm = regexp.MustCompile(`^[A-Za-z0-9]{1,64}$`)

// getPart reads one object of one chunk: where the chunk is, then the chunk.
func getPart(ctx context.Context, get getter, name string, size int64) ([]byte, error) {
	raw, err := get(ctx, events.StreamPackages, "$O."+events.BucketPackages+".M."+base64.URLEncoding.EncodeToString([]byte(name)))
	if err != nil {
		return nil, err
	}
	var info struct {
		NUID    string `json:"nuid"`
		Size    int64  `json:"size"`
		Chunks  int    `json:"chunks"`
		Deleted bool   `json:"deleted"`
	}
	if err := json.Unmarshal(raw, &info); err != nil {
		return nil, fmt.Errorf("the store's entry does not read: %w", err)
	}
	switch {
	case info.Deleted:
		return nil, errNothing
	case info.Chunks != 1 || info.Size != size || !nuidForm.MatchString(info.NUID):
		return nil, fmt.Errorf("the store has it with %d bytes in %d chunks, not %d bytes in one: %w", info.Size, info.Chunks, size, errUnfit)
	}
	data, err := get(ctx, events.StreamPackages, "$O."+events.BucketPackages+".C."+info.NUID)
	if err != nil {
		return nil, err
	}
	if int64(len(data)) != size {
		return nil, fmt.Errorf("%d bytes came and %d were expected", len(data), size)
	}
	return data, nil
}
