package events

import (
	"context"
	"errors"
	"fmt"
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

// idle is how long a reader waits for a message before it looks whether it has
// stalled: a pull consumer may, on a leader change, without any error.
const idle = 5 * time.Second

// ReadStream hands over a stream's messages in order, each once, until the end
// (or, with Follow, until ctx ends, which is then the error). It goes on over
// reconnects and stalled consumers. An error from fn ends it.
func ReadStream(ctx context.Context, js jetstream.JetStream, stream string, opts ReadOptions, fn func(Message) error) error {
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
	fn     func(Message) error
	next   uint64 // sequence of the first message not handed over yet
	caught bool
}

func (r *reader) caughtUp() {
	if !r.caught {
		r.caught = true
		if r.opts.CaughtUp != nil {
			r.opts.CaughtUp()
		}
	}
}

// read makes one ordered consumer and drains it.
func (r *reader) read(ctx context.Context) error {
	setup, cancel := context.WithTimeout(ctx, idle)
	defer cancel()
	cons, err := r.js.OrderedConsumer(setup, r.stream, jetstream.OrderedConsumerConfig{
		DeliverPolicy:  jetstream.DeliverByStartSequencePolicy,
		OptStartSeq:    r.next,
		FilterSubjects: r.opts.Subjects,
	})
	if err != nil {
		return r.trouble(ctx, "opening a consumer", err)
	}
	info := cons.CachedInfo()
	if info.NumPending == 0 {
		r.caughtUp()
		if !r.opts.Follow {
			return nil
		}
	}
	iter, err := cons.Messages()
	if err != nil {
		return r.trouble(ctx, "reading", err)
	}
	stop := context.AfterFunc(ctx, iter.Stop)
	defer func() { stop(); iter.Stop() }()
	for {
		msg, err := iter.Next(jetstream.NextMaxWait(idle))
		if errors.Is(err, nats.ErrTimeout) {
			if stalled, err := r.stalled(ctx); err != nil || stalled {
				return errors.Join(err, errStalled)
			}
			continue
		}
		if err != nil {
			return r.trouble(ctx, "reading", err)
		}
		meta, err := msg.Metadata()
		if err != nil {
			return fmt.Errorf("reading %s: %w", r.stream, err)
		}
		if err := r.fn(Message{
			Seq: meta.Sequence.Stream, Subject: msg.Subject(), Stored: meta.Timestamp.UTC(), Data: msg.Data(),
		}); err != nil {
			return err
		}
		r.next = meta.Sequence.Stream + 1
		if meta.NumPending == 0 {
			r.caughtUp()
			if !r.opts.Follow {
				return nil
			}
		}
	}
}

// stalled says whether the stream has messages that the consumer should have
// handed over. With a filter it may cry wolf; a new consumer costs little.
func (r *reader) stalled(ctx context.Context) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, idle)
	defer cancel()
	s, err := r.js.Stream(ctx, r.stream)
	if err != nil {
		return true, nil // not reachable: start again when it is
	}
	return s.CachedInfo().State.LastSeq >= r.next, nil
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
