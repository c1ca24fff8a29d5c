package notary

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/mod/sumdb/tlog"

	"noxmesh/events"
)

// Audit reads a log from its first event on, computes its tree, and says whether
// it is the log that checkpoints are of.
type Audit struct {
	hashes *Hashes
	chain  []events.Rotation // the notary's keys, as the log has them
	fault  *Fault            // the first one that shows without a checkpoint
	ended  bool              // events are missing: what comes behind cannot be placed
}

// Fault is what does not fit.
type Fault struct {
	// Seq is the first event that does not fit. Where that cannot be told, it is
	// the first that may not, and UpTo the last.
	Seq    int64  `json:"seq"`
	UpTo   int64  `json:"up_to"`
	Reason string `json:"reason"`
}

// NewAudit begins one. The tree is kept in a file, which the caller removes after
// [Audit.Close].
func NewAudit(path string) (*Audit, error) {
	h, err := OpenHashes(path)
	if err != nil {
		return nil, err
	}
	return &Audit{hashes: h}, h.Cut(0)
}

// Close closes the audit's file.
func (a *Audit) Close() error { return a.hashes.Close() }

// Size is how many events were read and could be placed.
func (a *Audit) Size() int64 { return a.hashes.Size() }

// At is what a checkpoint over the first events would say.
func (a *Audit) At(size int64) (Checkpoint, error) { return a.hashes.At(size) }

// Add takes the next message, in order. Subject is empty if the message comes
// from an export, where it follows from the event.
func (a *Audit) Add(m events.Message) error {
	if a.ended {
		return nil
	}
	seq := a.hashes.Size() + 1
	if int64(m.Seq) != seq {
		a.found(seq, fmt.Sprintf("it is missing: event %d follows event %d", m.Seq, seq-1))
		a.ended = true
		return nil
	}
	e, err := events.Decode(m.Data)
	var subject string
	if err == nil {
		subject, err = Subject(e)
	}
	switch {
	case err != nil:
		a.found(seq, err.Error())
	case m.Subject != "" && m.Subject != subject:
		a.found(seq, fmt.Sprintf("it is on subject %s, and belongs on %s", events.Printable(m.Subject, 120), subject))
	case e.Type == (*events.KeyTrusted)(nil).EventType() && e.Subject == events.KeyNotary:
		a.follow(e)
	}
	return a.hashes.Append(m.Data)
}

func (a *Audit) found(seq int64, reason string) {
	if a.fault == nil {
		a.fault = &Fault{Seq: seq, UpTo: seq, Reason: reason}
	}
}

// follow adds a key that the one before it signed.
func (a *Audit) follow(e events.Event) {
	fact, err := e.Fact()
	f, ok := fact.(*events.KeyTrusted)
	if err != nil || !ok || f.Role != events.KeyNotary || events.CheckKey(f.Role, f.Key) != nil {
		return
	}
	if n := len(a.chain); n == 0 && f.Signature == "" || n > 0 && f.Verify(a.chain[n-1].Key) == nil {
		a.chain = append(a.chain, f.Rotation)
	}
}

// Keys are the notary's keys that follow from the one that is trusted, that one
// first. In a log that verifies they are the mesh's own.
func (a *Audit) Keys(trusted string) []string {
	keys := []string{trusted}
	if i := slices.IndexFunc(a.chain, func(r events.Rotation) bool { return r.Key == trusted }); i >= 0 {
		for _, r := range a.chain[i+1:] {
			keys = append(keys, r.Key)
		}
	}
	return keys
}

// Subject is where an event belongs in the log. It knows that of types, too, that
// this program does not know: it follows from a type's name.
func Subject(e events.Event) (string, error) {
	subject, err := e.StreamSubject()
	if !errors.Is(err, events.ErrUnknownType) {
		return subject, err
	}
	parts := strings.Split(e.Type, ".")
	if len(parts) != 4 || parts[0] != "mesh" || parts[1] == "" {
		return "", err
	}
	return events.EventSubject(parts[1], e.Subject), nil
}

// Compare says what of the log does not fit the checkpoints, which were opened
// already; nil if all of it does. Stored, if there is one, reads the hashes of the
// notary: with them the first event that does not fit is told. They are not
// believed, but compared with the checkpoints.
func (a *Audit) Compare(checkpoints []Checkpoint, stored tlog.HashReader) (*Fault, error) {
	checkpoints = slices.SortedFunc(slices.Values(checkpoints), func(x, y Checkpoint) int { return int(x.Size - y.Size) })
	fits := int64(0)
	for _, c := range checkpoints {
		if c.Size <= a.Size() {
			here, err := a.hashes.At(c.Size)
			if err != nil {
				return nil, err
			}
			if here == c {
				fits = c.Size
				continue
			}
			if here.Root == c.Root {
				return nil, fmt.Errorf("the checkpoint is of log %s, and this is %s", events.Printable(c.Origin, 60), here.Origin)
			}
		}
		return a.locate(fits, c, stored), nil
	}
	return a.fault, nil
}

// locate finds what does not fit between a size that does and a checkpoint that
// does not.
func (a *Audit) locate(fits int64, c Checkpoint, stored tlog.HashReader) *Fault {
	f := &Fault{Seq: fits + 1, UpTo: min(c.Size, a.Size()+1), Reason: fmt.Sprintf("the log is not the one that was signed when it had %d events", c.Size)}
	if a.Size() < c.Size {
		f.Reason = fmt.Sprintf("the log ends at event %d, and had %d when it was signed", a.Size(), c.Size)
	}
	if stored != nil {
		if leaf, err := a.firstOther(c, stored); err == nil {
			f.Seq, f.UpTo = leaf+1, leaf+1
			f.Reason = "it is not what was signed"
		} else {
			f.Reason += fmt.Sprintf(" (where exactly cannot be told: %v)", err)
		}
	}
	if f.Seq == f.UpTo && f.Seq == a.Size()+1 {
		f.Reason = fmt.Sprintf("it is missing: the log ends at event %d, and had %d when it was signed", a.Size(), c.Size)
	}
	if a.fault != nil && a.fault.Seq <= f.Seq {
		return a.fault
	}
	if a.fault != nil && a.fault.Seq < f.UpTo {
		f.UpTo = a.fault.Seq
		f.Reason += fmt.Sprintf("; event %d is certainly wrong: %s", a.fault.Seq, a.fault.Reason)
	}
	return f
}

// errNotOfCheckpoint means that hashes do not lead to the checkpoint's root.
var errNotOfCheckpoint = errors.New("the notary's hashes are not those that were signed")

// firstOther is the first leaf that differs from the tree of a checkpoint. Each
// hash that was read is known from the one above it, and in the end from the root.
func (a *Audit) firstOther(c Checkpoint, stored tlog.HashReader) (int64, error) {
	var tops []int64
	var want []tlog.Hash
	root, err := tlog.TreeHash(c.Size, tlog.HashReaderFunc(func(indexes []int64) ([]tlog.Hash, error) {
		hashes, err := stored.ReadHashes(indexes)
		if err == nil && len(hashes) != len(indexes) {
			err = errNotOfCheckpoint
		}
		tops, want = indexes, hashes
		return hashes, err
	}))
	if err != nil {
		return 0, err
	}
	if root != c.Root {
		return 0, errNotOfCheckpoint
	}
	for i, top := range tops {
		level, n := tlog.SplitStoredHashIndex(top)
		if leaf, err := a.descend(level, n, want[i], stored); err != nil || leaf >= 0 {
			return leaf, err
		}
	}
	return 0, errors.New("no event differs, and the root does")
}

// descend gives the first leaf below a node that is not as the node says, -1 if
// all are.
func (a *Audit) descend(level int, n int64, want tlog.Hash, stored tlog.HashReader) (int64, error) {
	if (n+1)<<level <= a.Size() {
		here, err := a.hashes.ReadHashes([]int64{tlog.StoredHashIndex(level, n)})
		if err != nil {
			return 0, err
		}
		if here[0] == want {
			return -1, nil
		}
	}
	if level == 0 {
		return n, nil
	}
	below, err := stored.ReadHashes([]int64{tlog.StoredHashIndex(level-1, 2*n), tlog.StoredHashIndex(level-1, 2*n+1)})
	if err != nil {
		return 0, err
	}
	if len(below) != 2 || tlog.NodeHash(below[0], below[1]) != want {
		return 0, errNotOfCheckpoint
	}
	for i, h := range below {
		if leaf, err := a.descend(level-1, 2*n+int64(i), h, stored); err != nil || leaf >= 0 {
			return leaf, err
		}
	}
	return -1, nil
}

// Compare is [Audit.Compare] for a tree that is there already.
func (h *Hashes) Compare(checkpoints []Checkpoint, stored tlog.HashReader) (*Fault, error) {
	return (&Audit{hashes: h}).Compare(checkpoints, stored)
}
