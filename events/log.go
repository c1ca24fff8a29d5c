package events

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// ErrConflict means that somebody else appended to the event's subject since
// the writer looked. Fold again, decide again.
var ErrConflict = errors.New("the log moved on since this was decided")

// Log appends to and reads the stream EVENTS.
type Log struct {
	js jetstream.JetStream
	// AttemptTimeout bounds one try to append.
	AttemptTimeout time.Duration
	// Appended, if set, hears of each event as soon as the broker has stored
	// it. Tests stop the program there.
	Appended func(seq uint64, e Event)
	// Seal, if set, gets each event before it is written and may complete its
	// data; the mesh signs declarations there. The function it returns is called
	// once the event is written or was given up.
	Seal func(e *Event) (written func(), err error)
}

// NewLog makes a log on a broker's connection.
func NewLog(js jetstream.JetStream) *Log {
	return &Log{js: js, AttemptTimeout: 5 * time.Second}
}

// IsConflict says whether the broker refused a write since its subject moved on. It knows both codes: 10071, and
// 10164 on replicated streams while a write is in flight.
func IsConflict(err error) bool {
	var api *jetstream.APIError
	return errors.As(err, &api) &&
		(api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence ||
			api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequenceConstant)
}

// Append writes one event, expecting that expected is the sequence of the last
// event on the event's subject (0: none yet). It returns the event's sequence.
// An append that is repeated with the same event and expectation finds the event
// there and counts as done. [ErrConflict] means that the writer must decide again.
func (l *Log) Append(ctx context.Context, e Event, expected uint64) (uint64, error) {
	subject, err := e.StreamSubject()
	if err != nil {
		return 0, err
	}
	if l.Seal != nil {
		written, err := l.Seal(&e)
		if err != nil {
			return 0, fmt.Errorf("appending %s to %s: %w", e.Type, subject, err)
		}
		defer written()
	}
	msg := nats.NewMsg(subject)
	msg.Data = e.Encode()
	const tries = 3
	for try := 1; ; try++ {
		attempt, cancel := context.WithTimeout(ctx, l.AttemptTimeout)
		ack, err := l.js.PublishMsg(attempt, msg,
			jetstream.WithExpectStream(StreamEvents),
			jetstream.WithExpectLastSequencePerSubject(expected))
		cancel()
		if err == nil {
			if l.Appended != nil {
				l.Appended(ack.Sequence, e)
			}
			return ack.Sequence, nil
		}
		if ctx.Err() != nil {
			return 0, fmt.Errorf("appending %s to %s: %w", e.Type, subject, errors.Join(ctx.Err(), err))
		}
		// Whatever went wrong, the write may have happened: look before trying again.
		last, seq, lookErr := l.Last(ctx, subject)
		switch {
		case lookErr == nil && seq != 0 && last.ID == e.ID:
			return seq, nil
		case IsConflict(err), lookErr == nil && seq != expected:
			return 0, fmt.Errorf("appending %s to %s: %w", e.Type, subject, ErrConflict)
		case try == tries:
			return 0, fmt.Errorf("appending %s to %s: %w", e.Type, subject, err)
		}
	}
}

// Last gives the newest event on one subject of EVENTS and its sequence, or
// sequence 0 if there is none. It asks the stream's leader, so it sees every
// acknowledged write.
func (l *Log) Last(ctx context.Context, subject string) (Event, uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, l.AttemptTimeout)
	defer cancel()
	stream, err := l.js.Stream(ctx, StreamEvents)
	if err != nil {
		return Event{}, 0, fmt.Errorf("reading the last event on %s: %w", subject, err)
	}
	msg, err := stream.GetLastMsgForSubject(ctx, subject)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return Event{}, 0, nil
	}
	if err != nil {
		return Event{}, 0, fmt.Errorf("reading the last event on %s: %w", subject, err)
	}
	e, err := Decode(msg.Data)
	if err != nil {
		return Event{}, 0, fmt.Errorf("event %d on %s: %w", msg.Sequence, subject, err)
	}
	return e, msg.Sequence, nil
}
