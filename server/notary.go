package server

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"
	"golang.org/x/mod/sumdb/tlog"

	"noxmesh/events"
	"noxmesh/projections"
	"noxmesh/projections/notary"
)

// NotaryKeyFile holds the key that signs checkpoints of the log.
func NotaryKeyFile(dataDir string) string { return filepath.Join(dataDir, "notary.key") }

// NotaryDir holds the tree over the log and the checkpoints that were signed.
func NotaryDir(dataDir string) string { return filepath.Join(dataDir, "notary") }

const (
	// checkpointInterval is how often a log that grew is signed. What was appended
	// since the last checkpoint can be lost or changed without that being proven.
	checkpointInterval = 5 * time.Minute
	// rereadInterval is how often the whole log is compared with the tree.
	rereadInterval = 24 * time.Hour
)

// logNotary keeps the tree over the log and signs checkpoints of it.
type logNotary struct {
	dataDir string
	js      jetstream.JetStream
	logger  zerolog.Logger

	mu     sync.Mutex
	hashes *notary.Hashes
	kept   *notary.Kept
	key    *events.SigningKey // nil before the start, or if it is not here
	keys   []string           // public, all that ever signed, oldest first
	grown  chan struct{}      // closed and replaced when the tree grows
	from   uint64             // the log's end when the notary was started
	// changed is the first event that is not what was signed, as far as the whole
	// log was compared; 0 if all is.
	changed int64
	closed  bool
}

// errNotTheLog is wrapped by what keeps a server from starting on a log that is
// not the one that it signed.
var errNotTheLog = errors.New("the log is not the one that this server signed")

// openNotary compares the log's end with what was signed and read before. It comes
// before anything is appended: events on top of a log that was cut off would hide
// that.
func openNotary(ctx context.Context, dataDir string, js jetstream.JetStream, logger zerolog.Logger) (*logNotary, error) {
	n := &logNotary{dataDir: dataDir, js: js, logger: logger, grown: make(chan struct{})}
	var err error
	dir := NotaryDir(dataDir)
	if n.kept, err = notary.OpenKept(filepath.Join(dir, "checkpoints")); err != nil {
		return nil, err
	}
	if n.hashes, err = notary.OpenHashes(filepath.Join(dir, "hashes")); err != nil {
		return nil, err
	}
	if err = n.compare(ctx); err == nil {
		return n, nil
	}
	return nil, whatToDo(errors.Join(err, n.hashes.Close()), dataDir)
}

// snapshotDir is where the folded state is kept for the next start.
func snapshotDir(dataDir string) string { return filepath.Join(dataDir, "projections") }

// whatToDo says it to who cannot start a server on a damaged log.
func whatToDo(err error, dataDir string) error {
	switch {
	case errors.Is(err, errNotTheLog), errors.Is(err, projections.ErrTruncated):
		return fmt.Errorf("%w\nnothing was changed: keep a copy of %s, then restore the log from its export (docs/operations.md). If you know why it is so, and accept that what is gone is gone, remove %s and %s and start again",
			err, dataDir, NotaryDir(dataDir), snapshotDir(dataDir))
	case errors.Is(err, projections.ErrGap):
		return fmt.Errorf("%w\nnothing was changed: keep a copy of %s, then restore the log from its export (docs/operations.md)", err, dataDir)
	}
	return err
}

// compare makes up the tree from the log, and says if the log does not fit what
// was signed.
func (n *logNotary) compare(ctx context.Context) error {
	stream, err := n.js.Stream(ctx, events.StreamEvents)
	if err != nil {
		return fmt.Errorf("looking at the log's end: %w", err)
	}
	info, err := stream.Info(ctx, jetstream.WithDeletedDetails(true))
	if err != nil {
		return fmt.Errorf("looking at the log's end: %w", err)
	}
	state := info.State
	end := int64(state.LastSeq)
	if first := state.FirstSeq; end > 0 && first > 1 {
		return fmt.Errorf("%w: it begins with event %d", errNotTheLog, first)
	}
	if end > 0 && len(state.Deleted) > 0 {
		return fmt.Errorf("%w: event %d is missing, and %d in all", errNotTheLog, slices.Min(state.Deleted), len(state.Deleted))
	}
	var signed notary.Checkpoint
	if last := n.kept.Last(); last != nil {
		if signed, err = notary.ReadUnchecked([]byte(last.Checkpoint)); err != nil {
			return err
		}
		if end < signed.Size {
			return fmt.Errorf("%w: it ends at event %d, and had %d on %s", errNotTheLog, end, signed.Size, last.Signed.Format(time.RFC3339))
		}
	}
	if seen := n.hashes.Size(); end < seen {
		return fmt.Errorf("%w: it ends at event %d, and the server had read up to %d", errNotTheLog, end, seen)
	}
	// Of the file of hashes only what leads to the checkpoint's root is believed.
	// What is behind that is read again, and without such a root everything is.
	believed := int64(0)
	var tail []tlog.Hash
	if at, err := n.hashes.At(signed.Size); signed.Size == 0 || err == nil && at == signed {
		believed = signed.Size
		for i := believed; i < n.hashes.Size(); i++ {
			leaf, err := n.hashes.Leaf(i)
			if err != nil {
				return err
			}
			tail = append(tail, leaf)
		}
	} else if n.hashes.Size() > 0 {
		n.logger.Warn().Int64("events", end).Msg("the notary's hashes are missing or damaged: making them up from the log")
	}
	if err := n.hashes.Cut(believed); err != nil {
		return err
	}
	err = events.ReadStream(ctx, n.js, events.StreamEvents, events.ReadOptions{From: uint64(believed) + 1}, func(m events.Message) error {
		// A power cut may leave a file longer than what was written to it: the
		// hash of nothing is not one that was seen.
		if i := int64(m.Seq) - 1 - believed; i >= 0 && i < int64(len(tail)) && tail[i] != (tlog.Hash{}) && tail[i] != tlog.RecordHash(m.Data) {
			return fmt.Errorf("%w: event %d is not what the server had read", errNotTheLog, m.Seq)
		}
		return n.append(m)
	})
	if err == nil {
		err = n.hashes.Flush()
	}
	if err != nil || signed.Size == 0 {
		return err
	}
	if at, err := n.hashes.At(signed.Size); err != nil || at == signed {
		return err
	}
	fault, err := n.fault()
	if err != nil {
		return err
	}
	return fmt.Errorf("%w: events %d to %d hold the first that does not fit: %s", errNotTheLog, fault.Seq, fault.UpTo, fault.Reason)
}

// fault compares the tree, made up from the log, with all checkpoints.
func (n *logNotary) fault() (*notary.Fault, error) {
	list, err := n.kept.List(0, int(^uint(0)>>1))
	if err != nil {
		return nil, err
	}
	var all []notary.Checkpoint
	for _, k := range list {
		c, err := notary.ReadUnchecked([]byte(k.Checkpoint))
		if err != nil {
			return nil, err
		}
		all = append(all, c)
	}
	fault, err := n.hashes.Compare(all, nil)
	if err == nil && fault == nil {
		err = errors.New("the notary's checkpoints do not agree with themselves")
	}
	return fault, err
}

func (n *logNotary) append(m events.Message) error {
	if next := n.hashes.Size() + 1; int64(m.Seq) != next {
		return fmt.Errorf("%w: event %d is missing, event %d follows event %d", errNotTheLog, next, m.Seq, next-1)
	}
	return n.hashes.Append(m.Data)
}

// start gives the notary its key, if it is here. Without it the mesh goes on and
// signs no checkpoint: a lost key must not be the end of a mesh that runs without.
func (n *logNotary) start(runner *projections.Runner) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	runner.View(func(m *projections.Mesh) {
		n.from = m.EventSeq
		for _, r := range m.Keys[events.KeyNotary] {
			n.keys = append(n.keys, r.Key)
		}
	})
	if last := n.kept.Last(); last != nil {
		if _, err := notary.OpenCheckpoint([]byte(last.Checkpoint), n.keys...); err != nil {
			return fmt.Errorf("the last checkpoint in %s is not one of this mesh's: %w: restore that directory from a backup, or remove it if you know why", NotaryDir(n.dataDir), err)
		}
	}
	file, want := NotaryKeyFile(n.dataDir), ""
	if len(n.keys) > 0 {
		want = n.keys[len(n.keys)-1]
	}
	key, err := ReadSigningKey(events.KeyNotary, file)
	if err == nil && key.Public != want {
		err = fmt.Errorf("%s holds another one", file)
	}
	if err != nil {
		n.logger.Error().Err(err).Str("key", want).Msg("the notary's key is not here: no checkpoint of the log is signed until it is restored from the backup of the data directory")
		return nil
	}
	n.key = key
	return nil
}

// follow adds what is appended to the log, until ctx ends.
func (n *logNotary) follow(ctx context.Context) error {
	return events.ReadStream(ctx, n.js, events.StreamEvents, events.ReadOptions{From: uint64(n.size()) + 1, Follow: true}, func(m events.Message) error {
		n.mu.Lock()
		defer n.mu.Unlock()
		if err := n.append(m); err != nil {
			return err
		}
		close(n.grown)
		n.grown = make(chan struct{})
		return n.hashes.Flush()
	})
}

func (n *logNotary) size() int64 {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.hashes.Size()
}

// wait waits until the tree has that many events.
func (n *logNotary) wait(ctx context.Context, size uint64) error {
	ctx, cancel := context.WithTimeout(ctx, freshTimeout)
	defer cancel()
	for {
		n.mu.Lock()
		have, grown := n.hashes.Size(), n.grown
		n.mu.Unlock()
		if uint64(have) >= size {
			return nil
		}
		select {
		case <-grown:
		case <-ctx.Done():
			return fmt.Errorf("waiting for the notary to read event %d (at %d): %w", size, have, ctx.Err())
		}
	}
}

// watch signs checkpoints and reads the whole log again from time to time, until
// ctx ends. What it cannot do it says, and tries again.
func (n *logNotary) watch(ctx context.Context) error {
	sign, reread := time.NewTicker(checkpointInterval), time.NewTicker(rereadInterval)
	defer sign.Stop()
	defer reread.Stop()
	// What was appended while the server started is signed with the rest; if that
	// is slow to come, the next one has it.
	if err := n.wait(ctx, n.from); err == nil {
		n.signNow()
	}
	n.rereadNow(ctx)
	for {
		select {
		case <-sign.C:
			n.signNow()
		case <-reread.C:
			n.rereadNow(ctx)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (n *logNotary) signNow() {
	if _, err := n.checkpoint(); err != nil && !errors.Is(err, errNoNotaryKey) {
		n.logger.Error().Err(err).Msg("no checkpoint of the log was signed")
	}
}

var errNoNotaryKey = errors.New("the notary's key is not in the server's data directory: restore notary.key from the backup, and start the server again")

// checkpoint signs the log as far as it was read, and keeps that. A log that did
// not grow is not signed again.
func (n *logNotary) checkpoint() (notary.KeptCheckpoint, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.sign()
}

// sign is [logNotary.checkpoint]; n.mu is locked.
func (n *logNotary) sign() (notary.KeptCheckpoint, error) {
	if n.key == nil {
		return notary.KeptCheckpoint{}, errNoNotaryKey
	}
	c, err := n.hashes.At(n.hashes.Size())
	if err != nil {
		return notary.KeptCheckpoint{}, err
	}
	if last := n.kept.Last(); last != nil {
		if have, err := notary.ReadUnchecked([]byte(last.Checkpoint)); err != nil || have.Size == c.Size {
			return *last, err
		}
	}
	signed, err := c.Sign(n.key)
	if err != nil {
		return notary.KeptCheckpoint{}, err
	}
	if err := n.hashes.Sync(); err != nil {
		return notary.KeptCheckpoint{}, err
	}
	k := notary.KeptCheckpoint{Signed: time.Now().UTC().Truncate(time.Second), Checkpoint: string(signed)}
	return k, n.kept.Append(k)
}

// rereadNow compares every byte of the log with the tree.
func (n *logNotary) rereadNow(ctx context.Context) {
	first, err := n.reread(ctx)
	if ctx.Err() == nil && err == nil {
		n.mu.Lock()
		n.changed = first
		n.mu.Unlock()
	}
	switch {
	case ctx.Err() != nil:
	case err != nil:
		n.logger.Error().Err(err).Msg("the log could not be compared with what was signed")
	case first != 0:
		n.logger.Error().Int64("event", first).
			Msg("the log was changed: this event, and maybe later ones, are not what was signed; nox-mesh log verify shows it, docs/operations.md says how to restore the log")
	}
}

// reread gives the first event that is not what the tree has, 0 if there is none.
func (n *logNotary) reread(ctx context.Context) (first int64, err error) {
	end, next := n.size(), int64(1)
	errFound := errors.New("found")
	err = events.ReadStream(ctx, n.js, events.StreamEvents, events.ReadOptions{}, func(m events.Message) error {
		n.mu.Lock()
		defer n.mu.Unlock()
		if next > end {
			return errFound
		}
		leaf, err := n.hashes.Leaf(next - 1)
		if err != nil {
			return err
		}
		if int64(m.Seq) != next || leaf != tlog.RecordHash(m.Data) {
			first = next
			return errFound
		}
		next++
		return nil
	})
	if errors.Is(err, errFound) {
		err = nil
	}
	if err == nil && first == 0 && next <= end {
		first = next
	}
	return first, err
}

// standing is how the notary stands: what it signed last and when, and the first
// event that it found changed, 0 if there is none.
func (n *logNotary) standing() (events int64, signed time.Time, changed int64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if last := n.kept.Last(); last != nil {
		if c, err := notary.ReadUnchecked([]byte(last.Checkpoint)); err == nil {
			events, signed = c.Size, last.Signed
		}
	}
	return events, signed, n.changed
}

// close signs what was read and closes the tree. Closing twice is fine.
func (n *logNotary) close() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return nil
	}
	n.closed = true
	_, err := n.sign()
	if errors.Is(err, errNoNotaryKey) {
		err = nil
	}
	return errors.Join(err, n.hashes.Close())
}
