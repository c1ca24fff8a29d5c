package events

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Message is one stored message of a stream.
type Message struct {
	Seq     uint64
	Subject string
	Stored  time.Time // the broker's clock, UTC
	Data    []byte
}

// ReadOptions says what to read.
type ReadOptions struct {
	// From is the first sequence wanted; 0 and 1 mean all.
	From uint64
	// Subjects filters; empty means every subject.
	Subjects []string
	// Follow goes on with new messages until the context ends.
	Follow bool
	// CaughtUp, if set, is called once when all that was there at the start
	// has been handed over.
	CaughtUp func()
}

// tick is how often a reader looks whether messages that the broker said are
// there have come, so that it does not wait with a batch for them.
const tick = 100 * time.Millisecond

// Bounds of what the client library keeps for a reader, in messages and bytes.
// The largest message there may be must fit.
const (
	pullMessages = 4096
	pullBytes    = 16 << 20
)

// idle is how long a reader waits for a message before it looks whether it has
// stalled: a pull consumer may, on a leader change, without any error.
const idle = 5 * time.Second

// Bounds of what is handed over at a time, in messages and bytes.
const (
	maxBatch      = 256
	maxBatchBytes = 1 << 20
)

// ReadStream hands over a stream's messages in order, each once, until the end
// (or, with Follow, until ctx ends, which is then the error). It goes on over
// reconnects and stalled consumers. An error from fn ends it.
func ReadStream(ctx context.Context, js jetstream.JetStream, stream string, opts ReadOptions, fn func(Message) error) error {
	return ReadBatches(ctx, js, stream, opts, func(batch []Message) error {
		for _, m := range batch {
			if err := fn(m); err != nil {
				return err
			}
		}
		return nil
	})
}

// ReadBatches is [ReadStream] with the messages in batches: as many as are there
// already, at least one, at most 256 and few large ones. A new message is not kept waiting for
// others. fn may keep the batch.
func ReadBatches(ctx context.Context, js jetstream.JetStream, stream string, opts ReadOptions, fn func([]Message) error) error {
	r := &reader{js: js, stream: stream, opts: opts, fn: fn, next: max(opts.From, 1)}
	for {
		err := r.read(ctx)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err == nil:
			return nil
		case errors.Is(err, errStalled):
			continue
		default:
			return err
		}
	}
}

var errStalled = errors.New("consumer stalled")

type reader struct {
	js     jetstream.JetStream
	stream string
	opts   ReadOptions
	fn     func([]Message) error
	caught bool

	mu    sync.Mutex
	next  uint64 // sequence of the first message not read yet
	batch []Message
	size  int // of the batch, in bytes
	turn  int // counts consumers; nothing is taken of one that had its turn
}

// flush hands over what was read; mu is held, so batches stay in order.
func (r *reader) flush() error {
	if len(r.batch) == 0 {
		return nil
	}
	batch := r.batch
	r.batch, r.size = nil, 0
	return r.fn(batch)
}

func (r *reader) caughtUp() {
	if !r.caught {
		r.caught = true
		if r.opts.CaughtUp != nil {
			r.opts.CaughtUp()
		}
	}
}

// take takes one message of a turn's consumer. end says that nothing more is to be
// read.
func (r *reader) take(turn int, msg jetstream.Msg) (end bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if turn != r.turn {
		return false, nil
	}
	meta, err := msg.Metadata()
	if err != nil {
		return true, fmt.Errorf("reading %s: %w", r.stream, err)
	}
	if r.batch == nil {
		r.batch = make([]Message, 0, min(meta.NumPending+1, maxBatch))
	}
	r.batch = append(r.batch, Message{
		Seq: meta.Sequence.Stream, Subject: msg.Subject(), Stored: meta.Timestamp.UTC(), Data: msg.Data(),
	})
	r.next = meta.Sequence.Stream + 1
	r.size += len(msg.Data())
	if meta.NumPending == 0 || len(r.batch) == maxBatch || r.size >= maxBatchBytes {
		if err := r.flush(); err != nil {
			return true, err
		}
	}
	if meta.NumPending == 0 {
		r.caughtUp()
	}
	return meta.NumPending == 0 && !r.opts.Follow, nil
}

// atEnd hands over what an earlier consumer has left: there is no more.
func (r *reader) atEnd() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.flush(); err != nil {
		return err
	}
	r.caughtUp()
	return nil
}

// nextTurn gives a new consumer its turn, and ends that of the one before: once it
// returns nothing of that is at work any more.
func (r *reader) nextTurn() (turn int, next uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.turn++
	return r.turn, r.next
}

// read makes one ordered consumer and drains it.
func (r *reader) read(ctx context.Context) error {
	setup, cancel := context.WithTimeout(ctx, idle)
	defer cancel()
	turn, next := r.nextTurn()
	cons, err := r.js.OrderedConsumer(setup, r.stream, jetstream.OrderedConsumerConfig{
		DeliverPolicy:  jetstream.DeliverByStartSequencePolicy,
		OptStartSeq:    next,
		FilterSubjects: r.opts.Subjects,
	})
	if err != nil {
		return r.trouble(ctx, "opening a consumer", err)
	}
	if cons.CachedInfo().NumPending == 0 {
		if err := r.atEnd(); err != nil || !r.opts.Follow {
			return err
		}
	}
	done := make(chan error, 1)
	consume, err := cons.Consume(func(msg jetstream.Msg) {
		if end, err := r.take(turn, msg); end || err != nil {
			r.nextTurn() // nobody's turn
			done <- err
		}
	}, jetstream.PullMaxMessagesWithBytesLimit(pullMessages, pullBytes))
	if err != nil {
		return r.trouble(ctx, "reading", err)
	}
	defer consume.Stop()
	defer r.nextTurn()
	return r.wait(ctx, done, consume.Closed())
}

// wait waits until the consumer is done, has failed or has stalled.
func (r *reader) wait(ctx context.Context, done <-chan error, closed <-chan struct{}) error {
	ticks := time.NewTicker(tick)
	defer ticks.Stop()
	at, since := uint64(0), time.Now()
	for {
		select {
		case err := <-done:
			return err
		case <-ctx.Done():
			return ctx.Err()
		case <-closed:
			return r.trouble(ctx, "reading", nats.ErrConnectionClosed)
		case <-ticks.C:
		}
		next, err := r.look(at)
		switch {
		case err != nil:
			return err
		case next != at:
			at, since = next, time.Now()
		case time.Since(since) > idle:
			stalled, err := r.stalled(ctx, next)
			if err != nil || stalled {
				return errors.Join(err, errStalled)
			}
			since = time.Now()
		}
	}
}

// look says how far the reader is. If it has not moved since it was at a
// sequence, what it has is handed over.
func (r *reader) look(at uint64) (uint64, error) {
	if !r.mu.TryLock() {
		return at + 1, nil // at work
	}
	defer r.mu.Unlock()
	if r.next != at {
		return r.next, nil
	}
	return r.next, r.flush()
}

// stalled says whether the stream has messages that the consumer should have
// handed over. With a filter it may cry wolf; a new consumer costs little.
func (r *reader) stalled(ctx context.Context, next uint64) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, idle)
	defer cancel()
	s, err := r.js.Stream(ctx, r.stream)
	if err != nil {
		return true, nil // not reachable: start again when it is
	}
	return s.CachedInfo().State.LastSeq >= next, nil
}

// trouble turns an error of the connection into another try when following,
// after a pause, and into the reader's error otherwise.
func (r *reader) trouble(ctx context.Context, doing string, err error) error {
	if !r.opts.Follow || errors.Is(err, jetstream.ErrStreamNotFound) {
		return fmt.Errorf("%s %s: %w", doing, r.stream, err)
	}
	select {
	case <-ctx.Done():
	case <-time.After(250 * time.Millisecond):
	}
	return errStalled
}
