package notary

import (
	"errors"
	"fmt"
	"math/bits"
	"os"
	"path/filepath"

	"golang.org/x/mod/sumdb/tlog"
)

// Hashes is the tree of a log in a file: the hashes of tlog's stored layout, 32
// bytes each, appended leaf by leaf. It is a cache; see the package's guarantees.
// It is not safe for concurrent use.
type Hashes struct {
	file    *os.File
	leaves  int64
	stored  int64  // hashes in the file
	pending []byte // hashes behind them, not written yet
}

// flushAt is how much is kept back while many leaves come at once, in bytes.
const flushAt = 64 << 10

// OpenHashes opens the file, or makes it. What is behind its last whole leaf is
// cut off.
func OpenHashes(path string) (*Hashes, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("opening the notary's hashes: %w", err)
	}
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening the notary's hashes: %w", err)
	}
	h := &Hashes{file: file}
	info, err := file.Stat()
	if err == nil {
		h.leaves = wholeLeaves(info.Size() / tlog.HashSize)
		err = h.Cut(h.leaves)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("opening the notary's hashes: %w", err), file.Close())
	}
	return h, nil
}

// storedCount is how many hashes a tree of n leaves has in the layout: one for
// each leaf and each full subtree above.
func storedCount(n int64) int64 { return 2*n - int64(bits.OnesCount64(uint64(n))) }

// wholeLeaves is the largest number of leaves whose hashes are among the first
// stored ones.
func wholeLeaves(stored int64) int64 {
	n := stored/2 + 1
	for n < stored && storedCount(n+1) <= stored {
		n++
	}
	for n > 0 && storedCount(n) > stored {
		n--
	}
	return n
}

// Size is the number of leaves.
func (h *Hashes) Size() int64 { return h.leaves }

// Append adds the next leaf. [Hashes.Flush] writes what is kept back.
func (h *Hashes) Append(data []byte) error {
	more, err := tlog.StoredHashes(h.leaves, data, h)
	if err != nil {
		return fmt.Errorf("adding event %d to the tree: %w", h.leaves+1, err)
	}
	for _, m := range more {
		h.pending = append(h.pending, m[:]...)
	}
	h.leaves++
	if len(h.pending) >= flushAt {
		return h.Flush()
	}
	return nil
}

// Flush writes to the file.
func (h *Hashes) Flush() error {
	if _, err := h.file.WriteAt(h.pending, h.stored*tlog.HashSize); err != nil {
		return fmt.Errorf("writing the notary's hashes: %w", err)
	}
	h.stored += int64(len(h.pending)) / tlog.HashSize
	h.pending = h.pending[:0]
	return nil
}

// Cut takes the tree back to a number of leaves that it has.
func (h *Hashes) Cut(leaves int64) error {
	if leaves > h.leaves {
		return fmt.Errorf("the tree has %d leaves and not %d", h.leaves, leaves)
	}
	h.leaves, h.stored, h.pending = leaves, storedCount(leaves), nil
	return h.file.Truncate(h.stored * tlog.HashSize)
}

// ReadHashes gives stored hashes by their index. It is [tlog.HashReader].
func (h *Hashes) ReadHashes(indexes []int64) ([]tlog.Hash, error) {
	out := make([]tlog.Hash, len(indexes))
	for i, index := range indexes {
		switch back := index - h.stored; {
		case index < 0 || back*tlog.HashSize >= int64(len(h.pending)):
			return nil, fmt.Errorf("the tree of %d events has no hash %d", h.leaves, index)
		case back >= 0:
			copy(out[i][:], h.pending[back*tlog.HashSize:])
		default:
			if _, err := h.file.ReadAt(out[i][:], index*tlog.HashSize); err != nil {
				return nil, fmt.Errorf("reading the notary's hashes: %w", err)
			}
		}
	}
	return out, nil
}

// Leaf gives the hash of one leaf.
func (h *Hashes) Leaf(i int64) (tlog.Hash, error) {
	out, err := h.ReadHashes([]int64{tlog.StoredHashIndex(0, i)})
	if err != nil {
		return tlog.Hash{}, err
	}
	return out[0], nil
}

// At gives what a checkpoint says of the tree's first leaves.
func (h *Hashes) At(size int64) (Checkpoint, error) {
	if size < 1 || size > h.leaves {
		return Checkpoint{}, fmt.Errorf("the tree has %d leaves and not %d", h.leaves, size)
	}
	first, err := h.Leaf(0)
	if err != nil {
		return Checkpoint{}, err
	}
	root, err := tlog.TreeHash(size, h)
	if err != nil {
		return Checkpoint{}, err
	}
	return Checkpoint{Origin: Origin(first), Size: size, Root: root}, nil
}

// Sync writes everything, down to the disk.
func (h *Hashes) Sync() error {
	if err := h.Flush(); err != nil {
		return err
	}
	return h.file.Sync()
}

// Close writes everything and closes the file.
func (h *Hashes) Close() error { return errors.Join(h.Flush(), h.file.Close()) }
