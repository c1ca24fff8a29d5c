package notary

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"
)

// KeptCheckpoint is a checkpoint that the notary signed, and when.
type KeptCheckpoint struct {
	Signed time.Time `json:"signed"` // the mesh's clock, UTC
	// Checkpoint is the signed note.
	Checkpoint string `json:"checkpoint"`
}

// Kept is the checkpoints of a notary, one a line of a file that is only ever
// appended to. It is not safe for concurrent use.
type Kept struct {
	path string
	last *KeptCheckpoint
}

// OpenKept opens the file and cuts a torn last line off. One that does not read
// otherwise is an error: checkpoints are what proofs rest on.
func OpenKept(path string) (*Kept, error) {
	k := &Kept{path: path}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("opening the notary's checkpoints: %w", err)
	}
	whole := int64(0)
	err := k.read(func(c KeptCheckpoint, end int64) error {
		if _, err := ReadUnchecked([]byte(c.Checkpoint)); err != nil {
			return err
		}
		k.last, whole = &c, end
		return nil
	})
	if err == nil {
		err = os.Truncate(path, whole)
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("the notary's checkpoints at %s do not read: %w: restore the file from a backup", path, err)
	}
	return k, nil
}

// read hands over each whole line and where it ends.
func (k *Kept) read(fn func(c KeptCheckpoint, end int64) error) error {
	file, err := os.Open(k.path)
	if err != nil {
		return err
	}
	defer file.Close()
	in := bufio.NewReader(file)
	for n, end := 1, int64(0); ; n++ {
		line, err := in.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return nil // what is left is torn
		}
		if err != nil {
			return err
		}
		end += int64(len(line))
		var c KeptCheckpoint
		if err = json.Unmarshal(bytes.TrimSpace(line), &c); err == nil {
			err = fn(c, end)
		}
		if err != nil {
			return fmt.Errorf("line %d: %w", n, err)
		}
	}
}

// Last is the newest one, nil if there is none.
func (k *Kept) Last() *KeptCheckpoint { return k.last }

// Append keeps one more, down to the disk.
func (k *Kept) Append(c KeptCheckpoint) error {
	raw, err := json.Marshal(c)
	if err == nil {
		err = appendSynced(k.path, append(raw, '\n'))
	}
	if err != nil {
		return fmt.Errorf("keeping a checkpoint: %w", err)
	}
	k.last = &c
	return nil
}

func appendSynced(path string, raw []byte) error {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	info, err := file.Stat()
	if err != nil {
		return errors.Join(err, file.Close())
	}
	if _, err = file.Write(raw); err == nil {
		err = file.Sync()
	}
	if err != nil { // half a line must not run into the next one
		err = errors.Join(err, file.Truncate(info.Size()))
	}
	if err = errors.Join(err, file.Close()); err != nil || info.Size() > 0 {
		return err
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// List gives up to max checkpoints of logs of more than after events, oldest
// first.
func (k *Kept) List(after int64, max int) ([]KeptCheckpoint, error) {
	out := []KeptCheckpoint{}
	err := k.read(func(c KeptCheckpoint, _ int64) error {
		cp, err := ReadUnchecked([]byte(c.Checkpoint))
		if err == nil && cp.Size > after && len(out) < max {
			out = append(out, c)
		}
		return err
	})
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("reading the notary's checkpoints: %w", err)
	}
	return out, nil
}
