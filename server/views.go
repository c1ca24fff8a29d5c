package server

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"noxmesh/events"
	"noxmesh/projections"
)

// views writes the projections into the buckets that tools watch. It has no
// other effect, and nothing of the mesh waits for it.
//
// Any number of servers may write. Each expects the sequence of the entry that
// it has seen last, and writes over an entry only if it has read as far as that
// one reflects; so an older view never takes the place of a newer one.
type views struct {
	js     jetstream.JetStream
	runner *projections.Runner
	logger zerolog.Logger
	// beatEvery is how often a node's entry is written for no other reason than
	// that it was heard again; a minute if zero.
	beatEvery time.Duration

	held map[string]map[string]held // by bucket and key
	// due are the keys to look at, late those that were heard again and will be
	// written once the minute is over.
	due  map[string]map[string]bool
	late map[string]bool
}

const (
	// viewsInterval is the least time between two rounds: what changes often
	// meanwhile is written once.
	viewsInterval = 250 * time.Millisecond
	// viewsChunk bounds for how many keys the state is held at a time.
	viewsChunk   = 500
	lateInterval = 5 * time.Second
	viewsRetry   = 5 * time.Second
	viewsTimeout = 5 * time.Second // of one write
)

// held is what a bucket holds under a key, as far as it is known here.
type held struct {
	seq                    uint64 // in the bucket's stream, 0: nothing yet
	at                     time.Time
	eventSeq, heartbeatSeq uint64
	value, core            [sha256.Size]byte // core: without when it was heard last
}

func holds(seq uint64, at time.Time, bucket string, e projections.Entry) held {
	h := held{seq: seq, at: at, eventSeq: e.EventSeq, heartbeatSeq: e.HeartbeatSeq}
	h.value, h.core = sums(bucket, e)
	return h
}

func sums(bucket string, e projections.Entry) (value, core [sha256.Size]byte) {
	sum := func(raw []byte) [sha256.Size]byte { return sha256.Sum256(fmt.Appendf(nil, "%d %s", e.Version, raw)) }
	value = sum(e.Value)
	var v projections.NodeView
	if bucket != projections.BucketFleet || json.Unmarshal(e.Value, &v) != nil {
		return value, value
	}
	v.LastHeard = nil
	raw, err := json.Marshal(v)
	if err != nil {
		return value, value
	}
	return value, sum(raw)
}

// verdict is what is to be done about a key.
type verdict int

const (
	upToDate verdict = iota
	write
	writeLater // heard again, and nothing else
	readOn     // the bucket reflects more than has been read here
)

// judge compares what a key holds with what it should hold.
func (h held) judge(bucket string, want projections.Entry, now time.Time, beatEvery time.Duration) verdict {
	value, core := sums(bucket, want)
	switch {
	case h.seq == 0 && want.Value == nil, h.seq != 0 && value == h.value:
		return upToDate
	case h.eventSeq > want.EventSeq || h.heartbeatSeq > want.HeartbeatSeq:
		return readOn
	case h.seq != 0 && core == h.core && now.Sub(h.at) < beatEvery:
		return writeLater
	}
	return write
}

// run keeps the buckets up to date until ctx ends. What goes wrong is logged and
// tried again.
func (v *views) run(ctx context.Context) error {
	if v.beatEvery == 0 {
		v.beatEvery = time.Minute
	}
	select {
	case <-v.runner.Settled(): // what another version made of the log is its own
	case <-ctx.Done():
		return ctx.Err()
	}
	for {
		err := v.keep(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		v.logger.Warn().Err(err).Stringer("again_in", viewsRetry).Msg("the views for tools are not up to date")
		select {
		case <-time.After(viewsRetry):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// keep compares everything once and then what was touched.
func (v *views) keep(ctx context.Context) error {
	v.runner.TakeTouched() // everything is looked at
	if err := v.load(ctx); err != nil {
		return err
	}
	v.runner.View(func(m *projections.Mesh) { v.touch(m, projections.Touched{All: true}) })
	rounds, lates := time.NewTicker(viewsInterval), time.NewTicker(min(lateInterval, v.beatEvery))
	defer rounds.Stop()
	defer lates.Stop()
	for {
		if err := v.round(ctx); err != nil {
			return err
		}
		select {
		case <-rounds.C:
		case <-lates.C:
			v.ripe(time.Now())
		case <-ctx.Done():
			return ctx.Err()
		}
		if t := v.runner.TakeTouched(); !t.Empty() {
			v.runner.View(func(m *projections.Mesh) { v.touch(m, t) })
		}
	}
}

func (v *views) touch(m *projections.Mesh, t projections.Touched) {
	for _, bucket := range projections.Buckets {
		for _, key := range m.TouchedKeys(bucket, t) {
			v.due[bucket][key] = true
		}
		if t.All {
			for key := range v.held[bucket] {
				v.due[bucket][key] = true
			}
		}
	}
}

// ripe has the nodes looked at that were heard again a while ago.
func (v *views) ripe(now time.Time) {
	for key := range v.late {
		if now.Sub(v.held[projections.BucketFleet][key].at) >= v.beatEvery {
			v.due[projections.BucketFleet][key] = true
			delete(v.late, key)
		}
	}
}

// load reads what the buckets hold.
func (v *views) load(ctx context.Context) error {
	v.held, v.due, v.late = map[string]map[string]held{}, map[string]map[string]bool{}, map[string]bool{}
	var last [2]uint64
	for i, name := range []string{events.StreamEvents, events.StreamHeartbeats} {
		s, err := v.js.Stream(ctx, name)
		if err != nil {
			return fmt.Errorf("looking at stream %s: %w", name, err)
		}
		last[i] = s.CachedInfo().State.LastSeq
	}
	for _, bucket := range projections.Buckets {
		v.held[bucket], v.due[bucket] = map[string]held{}, map[string]bool{}
		prefix := projections.KeySubject(bucket, "")
		err := events.ReadStream(ctx, v.js, projections.BucketStream(bucket), events.ReadOptions{}, func(msg events.Message) error {
			key := strings.TrimPrefix(msg.Subject, prefix)
			var e projections.Entry
			// What does not read, or reflects what there never was (the heartbeats
			// were lost, say), is older than anything.
			if json.Unmarshal(msg.Data, &e) != nil || e.EventSeq > last[0] || e.HeartbeatSeq > last[1] {
				e.EventSeq, e.HeartbeatSeq = 0, 0
			}
			v.held[bucket][key] = holds(msg.Seq, msg.Stored, bucket, e)
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// round looks at all keys that are due, once.
func (v *views) round(ctx context.Context) error {
	for _, bucket := range projections.Buckets {
		keys := make([]string, 0, len(v.due[bucket]))
		for key := range v.due[bucket] {
			keys = append(keys, key)
		}
		for len(keys) > 0 {
			n := min(len(keys), viewsChunk)
			var want []projections.Entry
			v.runner.View(func(m *projections.Mesh) { want = m.Entries(bucket, keys[:n]) })
			for _, e := range want {
				if err := v.settle(ctx, bucket, e); err != nil {
					return err
				}
			}
			keys = keys[n:]
		}
	}
	return nil
}

// settle does what is to be done about one key. What stays due is looked at in
// the next round.
func (v *views) settle(ctx context.Context, bucket string, want projections.Entry) error {
	now := time.Now()
	switch v.held[bucket][want.Key].judge(bucket, want, now, v.beatEvery) {
	case readOn:
		return nil
	case writeLater:
		v.late[want.Key] = true
	case write:
		seq, err := v.put(ctx, bucket, want)
		if events.IsConflict(err) {
			return v.look(ctx, bucket, want.Key)
		}
		if err != nil {
			return fmt.Errorf("writing %s of bucket %s: %w", want.Key, bucket, err)
		}
		v.held[bucket][want.Key] = holds(seq, now, bucket, want)
	}
	delete(v.due[bucket], want.Key)
	return nil
}

// headerOperation marks a key that is gone, as key-value buckets do.
const (
	headerOperation = "KV-Operation"
	operationDelete = "DEL"
)

func (v *views) put(ctx context.Context, bucket string, e projections.Entry) (uint64, error) {
	raw, err := json.Marshal(e)
	if err != nil {
		return 0, err
	}
	msg := nats.NewMsg(projections.KeySubject(bucket, e.Key))
	msg.Data = raw
	if e.Value == nil {
		msg.Header.Set(headerOperation, operationDelete)
	}
	ctx, cancel := context.WithTimeout(ctx, viewsTimeout)
	defer cancel()
	ack, err := v.js.PublishMsg(ctx, msg, jetstream.WithExpectLastSequencePerSubject(v.held[bucket][e.Key].seq))
	if err != nil {
		return 0, err
	}
	return ack.Sequence, nil
}

// look finds out what another server has written.
func (v *views) look(ctx context.Context, bucket, key string) error {
	ctx, cancel := context.WithTimeout(ctx, viewsTimeout)
	defer cancel()
	s, err := v.js.Stream(ctx, projections.BucketStream(bucket))
	if err != nil {
		return fmt.Errorf("looking at bucket %s: %w", bucket, err)
	}
	msg, err := s.GetLastMsgForSubject(ctx, projections.KeySubject(bucket, key))
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		delete(v.held[bucket], key)
		return nil
	}
	var e projections.Entry
	if err == nil {
		err = json.Unmarshal(msg.Data, &e)
	}
	if err != nil {
		return fmt.Errorf("reading %s of bucket %s: %w", key, bucket, err)
	}
	v.held[bucket][key] = holds(msg.Sequence, msg.Time, bucket, e)
	return nil
}
