package projections

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"noxmesh/events"
)

// ErrTruncated means that the log lacks events that were folded before.
var ErrTruncated = errors.New("the log lacks events that were there")

// snapshotEvery is how often a snapshot is written, if something changed; less
// often if writing takes longer than a snapshotShare of the time.
const (
	snapshotEvery = time.Minute
	snapshotShare = 50
)

// restore reads the snapshot. It gives nil, without an error, if the streams are
// to be folded from their beginning; otherwise the folds, and the version of the
// program that made them.
func (r *Runner) restore(ctx context.Context) (*folds, int, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	log, err := r.js.Stream(ctx, events.StreamEvents)
	if err != nil {
		return nil, 0, fmt.Errorf("looking at the log: %w", err)
	}
	beats, err := r.js.Stream(ctx, events.StreamHeartbeats)
	if err != nil {
		return nil, 0, fmt.Errorf("looking at the heartbeats: %w", err)
	}
	r.created.events, r.created.heartbeats = log.CachedInfo().Created, beats.CachedInfo().Created
	if r.Dir == "" {
		return nil, 0, nil
	}
	anew := func(why error) (*folds, int, error) {
		r.Logger.Info().Err(why).Msg("the log is folded from its beginning")
		return nil, 0, nil
	}
	sweepSnapshots(r.Dir)
	head, sections, err := readSnapshot(r.Dir)
	switch {
	case errors.Is(err, errNoSnapshot):
		return nil, 0, nil
	case err != nil:
		return anew(err)
	case !head.Events.Created.Equal(r.created.events):
		return anew(errors.New("the snapshot is of another log"))
	}
	if err := r.holds(ctx, log, head); err != nil {
		return nil, 0, err
	}
	if last := beats.CachedInfo().State.LastSeq; !head.Heartbeats.Created.Equal(r.created.heartbeats) || last < head.Heartbeats.Seq {
		return anew(errors.New("heartbeats in the snapshot are not in their stream, as after a power cut"))
	}
	if len(sections) != 2 {
		return anew(errors.New("the snapshot has other sections than this version's"))
	}
	f := &folds{index: NewIndex(), eventID: head.EventID}
	if f.mesh, err = DecodeMesh(bytes.NewReader(sections[0])); err != nil {
		return anew(err)
	}
	if err := f.index.UnmarshalBinary(sections[1]); err != nil {
		return anew(err)
	}
	if f.mesh.EventSeq != head.Events.Seq || f.mesh.HeartbeatSeq != head.Heartbeats.Seq || f.index.Seq() != head.Events.Seq {
		return anew(errors.New("the snapshot is not of what it says"))
	}
	return f, head.Version, nil
}

// holds makes sure that the log still has what a snapshot is of.
func (r *Runner) holds(ctx context.Context, log jetstream.Stream, head snapshotHead) error {
	if head.Events.Seq == 0 {
		return nil
	}
	when := head.Written.Format(time.RFC3339)
	if last := log.CachedInfo().State.LastSeq; last < head.Events.Seq {
		return fmt.Errorf("%w: it ends with event %d, and had %d on %s", ErrTruncated, last, head.Events.Seq, when)
	}
	msg, err := log.GetMsg(ctx, head.Events.Seq)
	if err != nil {
		return fmt.Errorf("%w: event %d does not read: %w", ErrTruncated, head.Events.Seq, err)
	}
	if e, err := events.Decode(msg.Data); err != nil || e.ID != head.EventID {
		return fmt.Errorf("%w: event %d is not the one that it was on %s", ErrTruncated, head.Events.Seq, when)
	}
	return nil
}

// keepSnapshots writes one from time to time until ctx ends.
func (r *Runner) keepSnapshots(ctx context.Context) {
	wait := snapshotEvery
	for {
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return
		}
		if !closed(r.ready) || !closed(r.settled) {
			continue
		}
		begin := time.Now()
		if err := r.snapshot(); err != nil {
			r.Logger.Warn().Err(err).Msg("trying again")
		}
		wait = max(snapshotEvery, snapshotShare*time.Since(begin))
	}
}

// snapshot writes the state of now.
func (r *Runner) snapshot() error {
	var (
		mesh  bytes.Buffer
		index []byte
		head  = snapshotHead{Version: Version, Written: time.Now().UTC()}
		err   error
	)
	r.mu.RLock()
	f := r.live
	head.EventID = f.eventID
	head.Events = streamAt{r.created.events, f.mesh.EventSeq}
	head.Heartbeats = streamAt{r.created.heartbeats, f.mesh.HeartbeatSeq}
	if err = f.mesh.Encode(&mesh); err == nil {
		index, err = f.index.MarshalBinary()
	}
	r.mu.RUnlock()
	if err != nil {
		return err
	}
	return writeSnapshot(r.Dir, head, mesh.Bytes(), index)
}
