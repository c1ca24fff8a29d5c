package server

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/nats-io/nats.go/jetstream"

	"noxmesh/events"
)

// Bounds of one page of the log. A page that would be larger ends early and says
// where the next one begins.
const (
	pageEvents = 1000
	pageBytes  = 2 << 20
	// pageLooked bounds how many events are looked at when few of them match.
	pageLooked = 50_000
	logBatch   = 500
)

// readLog gives a page of the log. People have no way to the streams of their
// own: this is how they read.
func (a *api) readLog(ctx context.Context, _ caller, q LogRequest) (LogPage, error) {
	subjects, err := q.subjects()
	if err != nil {
		return LogPage{}, err
	}
	stream, err := a.js.Stream(ctx, events.StreamEvents)
	if err != nil {
		return LogPage{}, fmt.Errorf("looking at the log's end: %w", err)
	}
	page := LogPage{Events: []LogRecord{}, Next: max(q.From, 1), Last: stream.CachedInfo().State.LastSeq}
	if page.Next > page.Last {
		return page, nil
	}
	cons, err := stream.CreateConsumer(ctx, jetstream.ConsumerConfig{
		DeliverPolicy:     jetstream.DeliverByStartSequencePolicy,
		OptStartSeq:       page.Next,
		FilterSubjects:    subjects,
		AckPolicy:         jetstream.AckNonePolicy,
		MemoryStorage:     true,
		InactiveThreshold: commandTimeout, // should it be left behind
	})
	if err != nil {
		return LogPage{}, fmt.Errorf("reading the log: %w", err)
	}
	defer func() {
		// The reader has its page either way.
		_ = stream.DeleteConsumer(context.WithoutCancel(ctx), cons.CachedInfo().Name)
	}()
	if err := fillPage(&page, q, cons); err != nil {
		return LogPage{}, fmt.Errorf("reading the log: %w", err)
	}
	return page, nil
}

// fillPage adds what matches until the page is full or the log was read to the
// page's Last.
func fillPage(page *LogPage, q LogRequest, cons jetstream.Consumer) error {
	pending := cons.CachedInfo().NumPending
	size := 0
	for looked := 0; pending > 0; {
		batch, err := cons.FetchNoWait(logBatch)
		if err != nil {
			return err
		}
		got := 0
		for msg := range batch.Messages() {
			meta, err := msg.Metadata()
			if err != nil {
				return err
			}
			seq := meta.Sequence.Stream
			if seq > page.Last {
				page.Next = page.Last + 1
				return nil
			}
			e, err := events.Decode(msg.Data())
			if err != nil {
				return fmt.Errorf("event %d on %s: %w", seq, msg.Subject(), err)
			}
			if q.matches(e) {
				if len(page.Events) > 0 && size+len(msg.Data()) > pageBytes {
					page.Next = seq
					return nil
				}
				size += len(msg.Data())
				page.Events = append(page.Events, LogRecord{Seq: seq, Event: json.RawMessage(msg.Data())})
			}
			got, looked, pending, page.Next = got+1, looked+1, meta.NumPending, seq+1
			if len(page.Events) == pageEvents || looked == pageLooked {
				return nil
			}
		}
		if err := batch.Error(); err != nil {
			return err
		}
		if got == 0 {
			return nil // the reader asks again from here
		}
	}
	page.Next = page.Last + 1
	return nil
}

// subjects narrow what is looked at; nil means all.
func (q LogRequest) subjects() ([]string, error) {
	if q.Node != "" {
		if err := events.CheckNodeID(q.Node); err != nil {
			return nil, err
		}
	}
	if strings.ContainsAny(q.Rollout, ".*> \t\r\n") {
		return nil, fmt.Errorf("%q is no rollout: nox-mesh rollout ls shows all", q.Rollout)
	}
	switch {
	case q.Node != "" && q.Rollout != "":
		return []string{events.EventSubject(events.AggregateDeclaration, q.Node)}, nil
	case q.Node != "":
		return []string{events.EventSubject(events.AggregateNode, q.Node), events.EventSubject(events.AggregateDeclaration, q.Node)}, nil
	case q.Rollout != "":
		return []string{events.EventSubject(events.AggregateRollout, q.Rollout), events.EventSubject(events.AggregateDeclaration, "*")}, nil
	}
	return nil, nil
}

func (q LogRequest) matches(e events.Event) bool {
	if q.Rollout != "" && e.Subject != q.Rollout {
		fact, err := e.Fact()
		if d, ok := fact.(*events.Declared); err != nil || !ok || d.Because.Rollout != q.Rollout {
			return false
		}
	}
	if q.Type == "" {
		return true
	}
	short := strings.TrimPrefix(e.Type, "mesh.")
	short = short[:max(strings.LastIndex(short, ".v"), 0)]
	_, fact, _ := strings.Cut(short, ".")
	return q.Type == e.Type || q.Type == short || q.Type == fact
}
