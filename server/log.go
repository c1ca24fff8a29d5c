package server

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"noxmesh/events"
	"noxmesh/projections"
)

// Bounds of one page of the log. A page that would be larger ends early and says
// where the next one begins.
const (
	pageEvents = 1000
	pageBytes  = 2 << 20
)

// readLog gives a page of the log. People have no way to the streams of their
// own: this is how they read. What matches is told by the index; only that is
// read.
func (a *api) readLog(ctx context.Context, by caller, q LogRequest) (LogPage, error) {
	query, err := q.query()
	if err != nil {
		return LogPage{}, err
	}
	found := a.find(q, query)
	if len(found.seqs) == 0 && q.Wait > 0 {
		if err := by.slot.aside(func() { a.waitFor(ctx, query, min(time.Duration(q.Wait), MaxLogWait)) }); err != nil {
			return LogPage{}, err
		}
		found = a.find(q, query)
	}
	page := LogPage{Events: []LogRecord{}, Next: max(q.From, found.last+1), Last: found.last, Earlier: found.earlier, Unknown: found.unknown}
	if q.To != 0 {
		page.Last = min(page.Last, q.To)
	}
	if len(found.seqs) == 0 {
		return page, nil
	}
	stream, err := a.js.Stream(ctx, events.StreamEvents)
	if err != nil {
		return LogPage{}, fmt.Errorf("looking at the log: %w", err)
	}
	most := pageEvents
	if q.Limit > 0 {
		most = min(most, q.Limit)
	}
	size := 0
	err = fetch(ctx, stream, found.seqs, func(m events.Message) (more bool, err error) {
		if len(page.Events) == most || len(page.Events) > 0 && size+len(m.Data) > pageBytes {
			page.Next = m.Seq
			return false, nil
		}
		if len(q.IDs)+len(q.Causes) > 0 {
			e, err := events.Decode(m.Data)
			if err != nil {
				return false, fmt.Errorf("event %d on %s: %w", m.Seq, m.Subject, err)
			}
			if !q.means(e) {
				return true, nil
			}
		}
		size += len(m.Data)
		page.Events = append(page.Events, LogRecord{Seq: m.Seq, Data: m.Data})
		return true, nil
	})
	if err != nil {
		return LogPage{}, fmt.Errorf("reading the log: %w", err)
	}
	return page, nil
}

// found is what the index says to a question.
type found struct {
	seqs    []uint64 // one more than a page has, if there are
	earlier int      // that match, before seqs
	last    uint64   // the log's end
	unknown []string
}

func (a *api) find(q LogRequest, query projections.Query) (f found) {
	a.runner.Index(func(x *projections.Index) {
		f.last = x.Seq()
		query.Limit, query.Last = pageEvents+1, false
		if q.Last > 0 {
			query.Limit, query.Last = q.Last, true
		}
		f.seqs = x.Find(query)
		switch {
		case len(f.seqs) == 0:
			f.unknown = q.unknown(x)
		case q.Last > 0 && len(f.seqs) == q.Last:
			f.earlier = x.Count(query) - q.Last
		}
	})
	f.seqs = f.seqs[:min(len(f.seqs), pageEvents+1)]
	return f
}

// waitFor returns when an event that matches is in the index, or when the time is
// over.
func (a *api) waitFor(ctx context.Context, query projections.Query, most time.Duration) {
	timer := time.NewTimer(most)
	defer timer.Stop()
	query.Limit, query.Last = 1, false
	for {
		changed, there := a.runner.Changed(), false
		a.runner.Index(func(x *projections.Index) {
			if x.Seq() < query.From {
				return // it was a heartbeat that came, as most are
			}
			there = len(x.Find(query)) > 0
			query.From = x.Seq() + 1 // what was looked at once is not again
		})
		if there {
			return
		}
		select {
		case <-changed:
		case <-timer.C:
			return
		case <-a.stopped:
			return
		case <-ctx.Done():
			return
		}
	}
}

// How messages are read by their sequences. One by one costs some 0.1 ms each, of
// which two or three are worth being under way at once; a consumer costs 0.5 ms,
// and 0.01 ms for each message that it passes (measured with a million events).
const (
	denseGap   = 10 // a reader may pass so many that nobody wants
	denseLeast = 16 // to save so many single ones
	getAhead   = 32 // single ones that are read in one go
	getAtOnce  = 4
)

// fetch hands over messages of a stream by their sequences, which rise. What is no
// longer there is left out. An error from fn ends it, and so does its wish for no
// more.
func fetch(ctx context.Context, s jetstream.Stream, seqs []uint64, fn func(events.Message) (more bool, err error)) error {
	for len(seqs) > 0 {
		n := dense(seqs)
		read := fetchRun
		if n < denseLeast {
			for n = 1; n < min(len(seqs), getAhead) && dense(seqs[n:]) < denseLeast; n++ {
			}
			read = fetchSingly
		}
		more, err := read(ctx, s, seqs[:n], fn)
		if err != nil || !more {
			return err
		}
		seqs = seqs[n:]
	}
	return nil
}

// dense is how many of the first sequences are close to one another, as far as
// that matters.
func dense(seqs []uint64) int {
	n := 1
	for n < len(seqs) && seqs[n]-seqs[n-1] <= denseGap {
		n++
	}
	return n
}

func fetchSingly(ctx context.Context, s jetstream.Stream, seqs []uint64, fn func(events.Message) (bool, error)) (bool, error) {
	type got struct {
		msg *jetstream.RawStreamMsg
		err error
	}
	results := make([]chan got, len(seqs))
	for i := range results {
		results[i] = make(chan got, 1)
	}
	for w := range getAtOnce {
		go func() {
			for i := w; i < len(seqs); i += getAtOnce {
				msg, err := s.GetMsg(ctx, seqs[i])
				results[i] <- got{msg, err}
			}
		}()
	}
	for i := range results {
		r := <-results[i]
		switch {
		case errors.Is(r.err, jetstream.ErrMsgNotFound):
			continue
		case r.err != nil:
			return false, r.err
		}
		if more, err := fn(events.Message{Seq: r.msg.Sequence, Subject: r.msg.Subject, Stored: r.msg.Time.UTC(), Data: r.msg.Data}); err != nil || !more {
			return false, err
		}
	}
	return true, nil
}

func fetchRun(ctx context.Context, s jetstream.Stream, seqs []uint64, fn func(events.Message) (bool, error)) (bool, error) {
	cons, err := s.CreateConsumer(ctx, jetstream.ConsumerConfig{
		DeliverPolicy:     jetstream.DeliverByStartSequencePolicy,
		OptStartSeq:       seqs[0],
		AckPolicy:         jetstream.AckNonePolicy,
		MemoryStorage:     true,
		InactiveThreshold: commandTimeout, // should it be left behind
	})
	if err != nil {
		return false, err
	}
	defer func() {
		// The reader has what it asked for either way.
		_ = s.DeleteConsumer(context.WithoutCancel(ctx), cons.CachedInfo().Name)
	}()
	for len(seqs) > 0 {
		want := seqs[len(seqs)-1] - seqs[0] + 1
		batch, err := cons.FetchNoWait(int(min(want, logBatch)))
		if err != nil {
			return false, err
		}
		got := 0
		for msg := range batch.Messages() {
			meta, err := msg.Metadata()
			if err != nil {
				return false, err
			}
			got++
			seq := meta.Sequence.Stream
			for len(seqs) > 0 && seqs[0] < seq {
				seqs = seqs[1:] // gone
			}
			if len(seqs) == 0 || seqs[0] != seq {
				continue
			}
			seqs = seqs[1:]
			if more, err := fn(events.Message{Seq: seq, Subject: msg.Subject(), Stored: meta.Timestamp.UTC(), Data: msg.Data()}); err != nil || !more {
				return false, err
			}
		}
		if err := batch.Error(); err != nil {
			return false, err
		}
		if got == 0 {
			return fetchSingly(ctx, s, seqs, fn) // the consumer has nothing more to say
		}
	}
	return true, nil
}

// logBatch is how many messages are asked for at once.
const logBatch = 500
