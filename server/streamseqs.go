package server

import (
	"context"
	"fmt"
	"slices"

	"github.com/nats-io/nats.go/jetstream"

	"noxmesh/events"
)

// readSeqs gives the messages of a stream that have some sequences. What is gone
// is left out. Next is the first one that did not fit on the page, or over Last.
func readSeqs(ctx context.Context, stream jetstream.Stream, seqs []uint64, page StreamPage) (StreamPage, error) {
	if len(seqs) > maxAsked {
		return StreamPage{}, fmt.Errorf("at most %d sequences are asked for at once", maxAsked)
	}
	seqs = slices.Compact(slices.Sorted(slices.Values(seqs)))
	page.Next = page.Last + 1
	size := 0
	err := fetch(ctx, stream, seqs, func(m events.Message) (bool, error) {
		if size > 0 && size+len(m.Data) > pageBytes {
			page.Next = m.Seq
			return false, nil
		}
		size += len(m.Data)
		page.Messages = append(page.Messages, StoredMessage(m))
		return true, nil
	})
	if err != nil {
		return StreamPage{}, fmt.Errorf("reading %d messages: %w", len(seqs), err)
	}
	return page, nil
}

// Messages gives the messages of a stream that have some sequences, by sequence.
// What is gone is not among them: heartbeats are kept for a while only.
func (c *Client) Messages(ctx context.Context, stream string, seqs []uint64) (map[uint64]events.Message, error) {
	out := map[uint64]events.Message{}
	seqs = slices.Compact(slices.Sorted(slices.Values(seqs)))
	for len(seqs) > 0 {
		some := seqs[:min(len(seqs), maxAsked)]
		page, err := ask[StreamPage](ctx, c, requestTimeout, cmdStreamRead, StreamRequest{Stream: stream, Seqs: some})
		if err != nil {
			return nil, err
		}
		for _, m := range page.Messages {
			out[m.Seq] = events.Message(m)
		}
		if page.Next <= page.Last {
			i, _ := slices.BinarySearch(seqs, page.Next)
			seqs = seqs[i:]
		} else {
			seqs = seqs[len(some):]
		}
	}
	return out, nil
}
