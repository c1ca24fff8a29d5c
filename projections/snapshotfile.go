package projections

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/google/renameio/v2"
)

// A snapshot is one file: a line that says what it is, a line of JSON that says
// of what ([snapshotHead]), the encoded folds with their lengths, and the SHA-256
// of all that. State and checkpoint are in one file, so they cannot part.
const (
	snapshotFile  = "snapshot"
	snapshotMagic = "nox-mesh snapshot 1\n"
)

// snapshotHead says what a snapshot is a fold of.
type snapshotHead struct {
	Version    int       `json:"version"` // [Version] of who wrote it
	Written    time.Time `json:"written"`
	Events     streamAt  `json:"events"`
	EventID    string    `json:"event_id"` // of the last event in it
	Heartbeats streamAt  `json:"heartbeats"`
}

// streamAt is a position in a stream's life.
type streamAt struct {
	Created time.Time `json:"created"` // identifies the stream
	Seq     uint64    `json:"seq"`
}

// writeSnapshot puts a snapshot in the place of the one before it, or leaves
// that one.
func writeSnapshot(dir string, head snapshotHead, sections ...[]byte) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("writing a snapshot: %w", err)
	}
	line, err := json.Marshal(head)
	if err != nil {
		return fmt.Errorf("writing a snapshot: %w", err)
	}
	f, err := renameio.NewPendingFile(filepath.Join(dir, snapshotFile), renameio.WithPermissions(0o600))
	if err != nil {
		return fmt.Errorf("writing a snapshot: %w", err)
	}
	defer func() { _ = f.Cleanup() }() // nothing is left to clean up after success
	sum := sha256.New()
	write := func(parts ...[]byte) {
		for _, p := range parts {
			if err == nil {
				sum.Write(p)
				_, err = f.Write(p)
			}
		}
	}
	write([]byte(snapshotMagic), line, []byte{'\n'})
	for _, s := range sections {
		write(binary.BigEndian.AppendUint64(nil, uint64(len(s))), s)
	}
	write(sum.Sum(nil))
	if err == nil {
		err = f.CloseAtomicallyReplace()
	}
	if err != nil {
		return fmt.Errorf("writing a snapshot into %s: %w", dir, err)
	}
	return nil
}

// sweepSnapshots removes what a write that was cut off has left.
func sweepSnapshots(dir string) {
	left, _ := filepath.Glob(filepath.Join(dir, "."+snapshotFile+"*"))
	for _, path := range left {
		_ = os.Remove(path) // it is in nobody's way but the disk's
	}
}

// errNoSnapshot: there is none.
var errNoSnapshot = errors.New("no snapshot")

// readSnapshot reads what [writeSnapshot] wrote. A damaged file is an error, and
// no reason to stop: the log has it all.
func readSnapshot(dir string) (head snapshotHead, sections [][]byte, err error) {
	path := filepath.Join(dir, snapshotFile)
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return head, nil, errNoSnapshot
	}
	if err != nil {
		return head, nil, fmt.Errorf("reading a snapshot: %w", err)
	}
	damaged := func(why string) (snapshotHead, [][]byte, error) {
		return snapshotHead{}, nil, fmt.Errorf("the snapshot %s is damaged: %s", path, why)
	}
	if len(raw) < sha256.Size {
		return damaged("it is cut off")
	}
	body, sum := raw[:len(raw)-sha256.Size], raw[len(raw)-sha256.Size:]
	if got := sha256.Sum256(body); !bytes.Equal(got[:], sum) {
		return damaged("its checksum does not fit")
	}
	body, ok := bytes.CutPrefix(body, []byte(snapshotMagic))
	if !ok {
		return damaged("another format")
	}
	line, body, ok := bytes.Cut(body, []byte{'\n'})
	if !ok || json.Unmarshal(line, &head) != nil {
		return damaged("its head does not read")
	}
	for len(body) > 0 {
		if len(body) < 8 || binary.BigEndian.Uint64(body) > uint64(len(body)-8) {
			return damaged("a section is cut off")
		}
		n := binary.BigEndian.Uint64(body)
		sections = append(sections, body[8:8+n])
		body = body[8+n:]
	}
	return head, sections, nil
}
