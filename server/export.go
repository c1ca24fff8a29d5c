package server

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/mod/sumdb/tlog"

	"noxmesh/events"
	"noxmesh/projections/notary"
)

// CheckpointFile is where an export has its checkpoint.
func CheckpointFile(export string) string { return export + ".checkpoint" }

// Export is what was exported.
type Export struct {
	Events int64 `json:"events"`
	// Resumed is how many of them the file had already.
	Resumed int64 `json:"resumed"`
	// Checkpoint is the signed note over them, and Keys the notary's, the first one
	// first.
	Checkpoint string   `json:"checkpoint"`
	Keys       []string `json:"keys"`
}

// Export writes the log to a file, one event a line, byte for byte, and goes on
// where a former run on that file ended. It fails if the file is not of this log,
// or if the log does not fit the checkpoint that it asks for.
func (c *Client) Export(ctx context.Context, path string, progress func(next, last uint64)) (out Export, err error) {
	signed, err := c.Checkpoint(ctx)
	if err != nil {
		return out, err
	}
	checkpoint, err := notary.OpenCheckpoint([]byte(signed.Checkpoint), signed.Keys...)
	if err != nil {
		return out, err
	}
	out.Checkpoint, out.Keys = signed.Checkpoint, signed.Keys
	dir, err := os.MkdirTemp("", "nox-mesh-export-*")
	if err != nil {
		return out, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	tree, err := notary.OpenHashes(filepath.Join(dir, "hashes"))
	if err != nil {
		return out, err
	}
	defer func() { err = errors.Join(err, tree.Close()) }()
	file, err := c.resumeExport(ctx, path, tree, checkpoint)
	if err != nil {
		return out, err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	out.Resumed = tree.Size()
	if err := c.writeEvents(ctx, file, tree, checkpoint.Size, progress); err != nil {
		return out, fmt.Errorf("exporting to %s: %w", path, err)
	}
	out.Events = tree.Size()
	if at, err := tree.At(checkpoint.Size); err != nil || at != checkpoint {
		return out, errors.Join(err, fmt.Errorf("the log is not what the notary signed: %s is no backup of it; nox-mesh log verify shows what was changed", path))
	}
	return out, nil
}

// resumeExport opens the file at the end of its last whole line, with the tree of
// what is in it.
func (c *Client) resumeExport(ctx context.Context, path string, tree *notary.Hashes, whole notary.Checkpoint) (*os.File, error) {
	end, err := notary.ReadLines(path, func(m events.Message) error { return tree.Append(m.Data) })
	if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, notary.ErrTorn) {
		return nil, fmt.Errorf("reading what was exported before: %w", err)
	}
	if n := tree.Size(); n > whole.Size {
		return nil, fmt.Errorf("%s has %d events and the log %d: it is another log's, or events were lost; name another file", path, n, whole.Size)
	} else if n > 0 {
		here, err := tree.At(n)
		if err != nil {
			return nil, err
		}
		root, err := tlog.TreeHash(n, c.StoredHashes(ctx))
		if err != nil {
			return nil, err
		}
		if here.Origin != whole.Origin || here.Root != root {
			return nil, fmt.Errorf("%s does not hold the first %d events of this log: it is another log's, or was changed; name another file", path, n)
		}
	}
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err = file.Truncate(end); err == nil {
		_, err = file.Seek(end, 0)
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}

// writeEvents writes what the tree has not yet, up to a size.
func (c *Client) writeEvents(ctx context.Context, file *os.File, tree *notary.Hashes, size int64, progress func(next, last uint64)) error {
	out := bufio.NewWriterSize(file, 1<<20)
	errDone := errors.New("done")
	err := error(nil)
	if tree.Size() < size {
		err = c.ReadStream(ctx, events.StreamEvents, uint64(tree.Size())+1, progress, func(m events.Message) error {
			if next := tree.Size() + 1; int64(m.Seq) != next {
				return fmt.Errorf("event %d is missing from the log", next)
			}
			if bytes.ContainsRune(m.Data, '\n') {
				return fmt.Errorf("event %d has a line break, so no mesh wrote it: nox-mesh log verify shows what was changed", m.Seq)
			}
			if err := tree.Append(m.Data); err != nil {
				return err
			}
			if _, err := out.Write(append(m.Data, '\n')); err != nil {
				return err
			}
			if tree.Size() == size {
				return errDone
			}
			return nil
		})
	}
	if errors.Is(err, errDone) {
		err = nil
	}
	// What was read is kept, whatever ended it.
	return errors.Join(err, out.Flush(), file.Sync())
}
