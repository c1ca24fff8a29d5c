package server

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"
	"golang.org/x/mod/sumdb/tlog"

	"noxmesh/events"
	"noxmesh/projections/notary"
)

// Import brings an exported log into a data directory that has none, so that the
// same events are there under the same sequences.
type Import struct {
	File string
	// Checkpoint is the signed note over the file, and Key the public key that is
	// trusted.
	Checkpoint, Key string
	DataDir         string
	Logger          zerolog.Logger
	// Progress hears from time to time how many events are in.
	Progress func(done, all int64)
	// hand hears of each event before it is sent. Tests stop there.
	hand func(seq int64)
}

// ImportReport tells what was imported.
type ImportReport struct {
	Events  int64 `json:"events"`
	Resumed int64 `json:"resumed"` // of them were there already
	// HeartbeatsFrom and ReportsFrom are the first sequences of these streams, behind
	// all that events refer to.
	HeartbeatsFrom uint64 `json:"heartbeats_from"`
	ReportsFrom    uint64 `json:"reports_from"`
}

// importWindow is how many events are on their way to the broker at a time.
const importWindow = 1024

// Run imports. The file is verified before anything is touched. It may be run
// again after it was cut off; what is there already must be the file's beginning.
func (im Import) Run(ctx context.Context) (out ImportReport, err error) {
	checkpoint, refers, err := im.verify()
	if err != nil {
		return out, err
	}
	out.Events = checkpoint.Size
	out.HeartbeatsFrom, out.ReportsFrom = refers.heartbeat+1, refers.report+1
	if err := im.restored(checkpoint); err != nil {
		return out, err
	}
	identity, err := LoadOrCreateIdentity(im.DataDir)
	if err != nil {
		return out, err
	}
	// Nobody but this program connects: everything is done inside the process.
	broker, err := StartBroker(BrokerConfig{DataDir: im.DataDir, Listen: "127.0.0.1:0", Identity: identity, Unsynced: true, Logger: im.Logger})
	if err != nil {
		return out, err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
		defer cancel()
		err = errors.Join(err, broker.Shutdown(ctx))
		if err == nil {
			err = im.settle(checkpoint)
		}
	}()
	nc, err := broker.Connect(ctx)
	if err != nil {
		return out, err
	}
	defer nc.Close()
	failed := make(chan error, 1)
	js, err := jetstream.New(nc, jetstream.WithPublishAsyncMaxPending(importWindow),
		jetstream.WithPublishAsyncErrHandler(func(_ jetstream.JetStream, m *nats.Msg, err error) {
			select {
			case failed <- fmt.Errorf("appending to %s: %w", m.Subject, err):
			default:
			}
		}))
	if err != nil {
		return out, fmt.Errorf("opening JetStream: %w", err)
	}
	if err := EnsureStreams(ctx, js, StreamOptions{HeartbeatsFrom: out.HeartbeatsFrom, ReportsFrom: out.ReportsFrom}); err != nil {
		return out, err
	}
	if err := im.streamsFit(ctx, js, refers); err != nil {
		return out, err
	}
	if out.Resumed, err = im.there(ctx, js, checkpoint.Size); err != nil {
		return out, err
	}
	if err := im.append(ctx, js, out.Resumed, checkpoint.Size, failed); err != nil {
		return out, fmt.Errorf("%w: give the import again, it goes on from there", err)
	}
	if n, err := im.there(ctx, js, checkpoint.Size); err != nil || n != checkpoint.Size {
		return out, errors.Join(err, fmt.Errorf("%d of %d events are in: give the import again, it goes on from there", n, checkpoint.Size))
	}
	return out, nil
}

// verify checks the whole file against its checkpoint.
func (im Import) verify() (notary.Checkpoint, references, error) {
	var refers references
	report, err := notary.Verify(notary.Verification{
		Key: im.Key, Checkpoints: []string{im.Checkpoint},
		Read: func(from uint64, fn func(events.Message) error) error {
			_, err := notary.ReadLines(im.File, func(m events.Message) error {
				if m.Seq < from {
					return nil
				}
				if e, err := events.Decode(m.Data); err == nil {
					refers.of(e)
				}
				return fn(m)
			})
			return err
		},
	})
	if err != nil {
		return notary.Checkpoint{}, refers, err
	}
	switch {
	case !report.OK && report.Fault.Seq == report.Fault.UpTo:
		err = fmt.Errorf("%s does not fit its checkpoint: event %d: %s: nothing was imported", im.File, report.Fault.Seq, report.Fault.Reason)
	case !report.OK:
		err = fmt.Errorf("%s does not fit its checkpoint: %s: nothing was imported", im.File, report.Fault.Reason)
	case report.Events > report.Proven:
		err = fmt.Errorf("%s has %d events and its checkpoint vouches for %d: give the export again to have all of them signed, or cut the file with head -n %d", im.File, report.Events, report.Proven, report.Proven)
	}
	if err != nil {
		return notary.Checkpoint{}, refers, err
	}
	c, err := notary.ReadUnchecked([]byte(im.Checkpoint))
	return c, refers, err
}

// restored refuses a directory in which the mesh could not go on.
func (im Import) restored(c notary.Checkpoint) error {
	var missing []string
	for _, file := range []string{filepath.Join(im.DataDir, "identity"), filepath.Join(im.DataDir, "tls"), DeliveryKeyFile(im.DataDir)} {
		if _, err := os.Stat(file); errors.Is(err, fs.ErrNotExist) {
			missing = append(missing, file)
		} else if err != nil {
			return err
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("the mesh's own files are not here: %q: restore them from the backup first (docs/operations.md), or nodes would not know this mesh again", missing)
	}
	kept, err := notary.OpenKept(filepath.Join(NotaryDir(im.DataDir), "checkpoints"))
	if err != nil || kept.Last() == nil {
		return err
	}
	have, err := notary.ReadUnchecked([]byte(kept.Last().Checkpoint))
	if err == nil && have.Size > c.Size {
		err = fmt.Errorf("%s has %d events, and the mesh signed %d (%s): take a newer export, or, if you accept that the rest is gone, remove %s",
			im.File, c.Size, have.Size, NotaryDir(im.DataDir), NotaryDir(im.DataDir))
	}
	return err
}

// streamsFit refuses streams whose sequences would come up again.
func (im Import) streamsFit(ctx context.Context, js jetstream.JetStream, refers references) error {
	for name, from := range map[string]uint64{events.StreamHeartbeats: refers.heartbeat, events.StreamReports: refers.report} {
		s, err := js.Stream(ctx, name)
		if err != nil {
			return fmt.Errorf("looking at stream %s: %w", name, err)
		}
		if state := s.CachedInfo().State; state.LastSeq < from {
			return fmt.Errorf("stream %s is there and ends at %d, and events refer to %d: remove %s and give the import again", name, state.LastSeq, from, filepath.Join(im.DataDir, "jetstream"))
		}
	}
	return nil
}

// there says how many events are in the log, which must be the file's beginning.
func (im Import) there(ctx context.Context, js jetstream.JetStream, all int64) (n int64, err error) {
	dir, err := os.MkdirTemp("", "nox-mesh-import-*")
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	have, err := notary.OpenHashes(filepath.Join(dir, "have"))
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, have.Close()) }()
	err = events.ReadStream(ctx, js, events.StreamEvents, events.ReadOptions{}, func(m events.Message) error { return have.Append(m.Data) })
	if err != nil || have.Size() == 0 {
		return 0, err
	}
	errOther := fmt.Errorf("the log in %s is not empty, and not the beginning of %s: import into another data directory", im.DataDir, im.File)
	if have.Size() > all {
		return 0, errOther
	}
	n = 0
	errDone := errors.New("done")
	_, err = notary.ReadLines(im.File, func(m events.Message) error {
		if n == have.Size() {
			return errDone
		}
		leaf, err := have.Leaf(n)
		if err == nil && leaf != tlog.RecordHash(m.Data) {
			err = errOther
		}
		n++
		return err
	})
	if errors.Is(err, errDone) {
		err = nil
	}
	return n, err
}

// append brings in what is not there yet. Each event says which one it follows, so
// that sequences are the file's lines or nothing is written.
func (im Import) append(ctx context.Context, js jetstream.JetStream, done, all int64, failed <-chan error) error {
	_, err := notary.ReadLines(im.File, func(m events.Message) error {
		if int64(m.Seq) <= done {
			return nil
		}
		select {
		case err := <-failed:
			return err
		case <-ctx.Done():
			return ctx.Err()
		default:
		}
		e, err := events.Decode(m.Data)
		if err != nil {
			return err
		}
		subject, err := notary.Subject(e)
		if err != nil {
			return fmt.Errorf("event %d: %w: import with the newest nox-mesh", m.Seq, err)
		}
		if im.hand != nil {
			im.hand(int64(m.Seq))
		}
		if im.Progress != nil && m.Seq%importWindow == 0 {
			im.Progress(int64(m.Seq), all)
		}
		_, err = js.PublishMsgAsync(&nats.Msg{Subject: subject, Data: m.Data},
			jetstream.WithExpectStream(events.StreamEvents), jetstream.WithExpectLastSequence(m.Seq-1))
		return err
	})
	if err != nil {
		return err
	}
	select {
	case <-js.PublishAsyncComplete():
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case err := <-failed:
		return err
	default:
		return nil
	}
}

// settle has everything on the disk, and leaves the checkpoint for the server's
// start to compare with.
func (im Import) settle(c notary.Checkpoint) error {
	err := filepath.WalkDir(filepath.Join(im.DataDir, "jetstream"), func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return syncDir(path)
	})
	if err != nil {
		return fmt.Errorf("writing to the disk: %w", err)
	}
	kept, err := notary.OpenKept(filepath.Join(NotaryDir(im.DataDir), "checkpoints"))
	if err != nil {
		return err
	}
	if last := kept.Last(); last != nil {
		have, err := notary.ReadUnchecked([]byte(last.Checkpoint))
		if err != nil || have.Size >= c.Size {
			return err
		}
	}
	return kept.Append(notary.KeptCheckpoint{Signed: time.Now().UTC().Truncate(time.Second), Checkpoint: im.Checkpoint})
}
