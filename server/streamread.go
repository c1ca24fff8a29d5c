package server

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"noxmesh/events"
)

// StreamRequest asks for a page of a stream as it is stored: [events.StreamEvents]
// or [events.StreamHeartbeats].
type StreamRequest struct {
	Stream string `json:"stream"`
	// From is the first sequence wanted; 0 and 1 mean all.
	From uint64 `json:"from,omitempty"`
	// Seqs wants these sequences and nothing else, if there are any.
	Seqs []uint64 `json:"seqs,omitempty"`
}

// StreamPage is a page of a stream, in order.
type StreamPage struct {
	Messages []StoredMessage `json:"messages"`
	// Next is where the next page begins. All was read if it is over Last.
	Next uint64 `json:"next"`
	// First and Last are the sequences of the stream's ends.
	First uint64 `json:"first"`
	Last  uint64 `json:"last"`
}

// StoredMessage is a message byte for byte.
type StoredMessage struct {
	Seq     uint64    `json:"seq"`
	Subject string    `json:"subject"`
	Stored  time.Time `json:"stored"` // the broker's clock
	Data    []byte    `json:"data"`
}

// readStream gives a page of a stream, byte for byte: what proofs, audits and
// exports rest on.
func (a *api) readStream(ctx context.Context, _ caller, q StreamRequest) (StreamPage, error) {
	if q.Stream != events.StreamEvents && q.Stream != events.StreamHeartbeats {
		return StreamPage{}, fmt.Errorf("stream %q is not there to read: there are %s and %s", events.Printable(q.Stream, 40), events.StreamEvents, events.StreamHeartbeats)
	}
	stream, err := a.js.Stream(ctx, q.Stream)
	if err != nil {
		return StreamPage{}, fmt.Errorf("looking at stream %s: %w", q.Stream, err)
	}
	state := stream.CachedInfo().State
	page := StreamPage{Messages: []StoredMessage{}, Next: max(q.From, 1), First: state.FirstSeq, Last: state.LastSeq}
	if len(q.Seqs) > 0 {
		return readSeqs(ctx, stream, q.Seqs, page)
	}
	if page.Next > page.Last {
		return page, nil
	}
	cons, err := stream.CreateConsumer(ctx, jetstream.ConsumerConfig{
		DeliverPolicy:     jetstream.DeliverByStartSequencePolicy,
		OptStartSeq:       page.Next,
		AckPolicy:         jetstream.AckNonePolicy,
		MemoryStorage:     true,
		InactiveThreshold: commandTimeout, // should it be left behind
	})
	if err != nil {
		return StreamPage{}, fmt.Errorf("reading stream %s: %w", q.Stream, err)
	}
	defer func() {
		// The reader has its page either way.
		_ = stream.DeleteConsumer(context.WithoutCancel(ctx), cons.CachedInfo().Name)
	}()
	size := 0
	for pending := cons.CachedInfo().NumPending; pending > 0; {
		batch, err := cons.FetchNoWait(logBatch)
		if err != nil {
			return StreamPage{}, fmt.Errorf("reading stream %s: %w", q.Stream, err)
		}
		got := 0
		for msg := range batch.Messages() {
			meta, err := msg.Metadata()
			if err != nil {
				return StreamPage{}, fmt.Errorf("reading stream %s: %w", q.Stream, err)
			}
			if size > 0 && size+len(msg.Data()) > pageBytes {
				return page, nil
			}
			size += len(msg.Data())
			page.Messages = append(page.Messages, StoredMessage{meta.Sequence.Stream, msg.Subject(), meta.Timestamp.UTC(), msg.Data()})
			got, pending, page.Next = got+1, meta.NumPending, meta.Sequence.Stream+1
		}
		if err := batch.Error(); err != nil {
			return StreamPage{}, fmt.Errorf("reading stream %s: %w", q.Stream, err)
		}
		if got == 0 {
			return page, nil // the reader asks again from here
		}
	}
	page.Next = max(page.Next, page.Last+1)
	return page, nil
}

// ReadStream hands over a stream's messages byte for byte, in order, from a
// sequence on, up to the end that the stream had at the start. Progress, if set,
// hears how far it is after each page. An error from fn ends it.
func (c *Client) ReadStream(ctx context.Context, stream string, from uint64, progress func(next, last uint64), fn func(events.Message) error) error {
	last := uint64(0)
	for {
		page, err := ask[StreamPage](ctx, c, requestTimeout, cmdStreamRead, StreamRequest{Stream: stream, From: from})
		if err != nil {
			return err
		}
		if last == 0 {
			last = page.Last
		}
		for _, m := range page.Messages {
			if m.Seq > last {
				break
			}
			if err := fn(events.Message(m)); err != nil {
				return err
			}
		}
		from = page.Next
		if progress != nil {
			progress(min(from, last+1), last)
		}
		if from > last {
			return nil
		}
	}
}
