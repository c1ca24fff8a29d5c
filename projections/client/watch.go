package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"time"

	"noxmesh/events"
	"noxmesh/projections"
)

// Change is one thing that a watch hands over: a key's newest value, or a mark.
// A mark has no key.
type Change[T any] struct {
	Key string
	// Value is nil if the entity is gone.
	Value *T
	// EventSeq and HeartbeatSeq are what the value reflects: how far the mesh had
	// read EVENTS and HEARTBEATS when it became what it is.
	EventSeq, HeartbeatSeq uint64
	// Token is behind the change: a watch from it hands over what comes next.
	Token Token
	// Reset is a mark: the bucket was made anew, or is another mesh's. Forget
	// everything that you hold; what there is comes next.
	Reset bool
	// CaughtUp is a mark: all that was there has been handed over. It comes once,
	// and once more after each Reset.
	CaughtUp bool
}

// WatchFleet hands over the nodes and each change of one, from a token on, until
// ctx ends or the mesh says that it will not be. The last thing it hands over is
// an error: that of ctx, or what is wrong.
func WatchFleet(ctx context.Context, c *Conn, from Token) iter.Seq2[Change[projections.NodeView], error] {
	return Watch[projections.NodeView](ctx, c, projections.BucketFleet, from)
}

// WatchRollouts hands over the rollouts, as [WatchFleet] does the nodes.
func WatchRollouts(ctx context.Context, c *Conn, from Token) iter.Seq2[Change[projections.RolloutView], error] {
	return Watch[projections.RolloutView](ctx, c, projections.BucketRollouts, from)
}

// WatchReleases hands over the releases, as [WatchFleet] does the nodes.
func WatchReleases(ctx context.Context, c *Conn, from Token) iter.Seq2[Change[projections.ReleaseView], error] {
	return Watch[projections.ReleaseView](ctx, c, projections.BucketReleases, from)
}

// Watch is what the others are made of: T is what the bucket's values are read
// into, [json.RawMessage] takes them as they are.
func Watch[T any](ctx context.Context, c *Conn, bucket string, from Token) iter.Seq2[Change[T], error] {
	return func(yield func(Change[T], error) bool) {
		w := watch[T]{bucket: bucket, token: from}
		pause := firstPause
		for {
			reply, err := w.ask(ctx, c)
			switch {
			case ctx.Err() != nil:
				yield(Change[T]{Token: w.token}, ctx.Err())
				return
			case errors.Is(err, ErrNoAnswer):
				select { // the mesh is away; it is asked until it is back
				case <-time.After(pause):
				case <-ctx.Done():
				}
				pause = min(2*pause, lastPause)
				continue
			case err != nil:
				yield(Change[T]{Token: w.token}, fmt.Errorf("watching %s: %w", bucket, err))
				return
			}
			pause = firstPause
			if !w.hand(reply, yield) {
				return
			}
		}
	}
}

// watch is how far one watch has come.
type watch[T any] struct {
	bucket string
	token  Token
	caught bool
}

func (w *watch[T]) ask(ctx context.Context, c *Conn) (WatchReply, error) {
	q := WatchRequest{Bucket: w.bucket, After: w.token}
	if w.caught {
		q.Wait = events.Duration(MaxWait)
	}
	const slack = 15 * time.Second
	return Ask[WatchReply](ctx, c, MaxWait+slack, CommandWatch, q)
}

// hand hands a page over, and says whether to go on.
func (w *watch[T]) hand(r WatchReply, yield func(Change[T], error) bool) bool {
	if r.Reset {
		w.caught = false
		// From here on it is the new bucket that is read, from its beginning.
		w.token = r.Token.beginning()
		if !yield(Change[T]{Reset: true, Token: w.token}, nil) {
			return false
		}
	}
	for _, we := range r.Entries {
		w.token = we.Token
		ch, err := change[T](we)
		if err != nil {
			yield(ch, fmt.Errorf("watching %s: %w: is this program of another version than the server?", w.bucket, err))
			return false
		}
		if !yield(ch, nil) {
			return false
		}
	}
	w.token = r.Token
	if r.CaughtUp && !w.caught {
		w.caught = true
		return yield(Change[T]{CaughtUp: true, Token: w.token}, nil)
	}
	return true
}

func change[T any](we WatchEntry) (Change[T], error) {
	ch := Change[T]{Token: we.Token}
	var e projections.Entry
	if err := json.Unmarshal(we.Entry, &e); err != nil {
		return ch, fmt.Errorf("an entry does not read: %w", err)
	}
	ch.Key, ch.EventSeq, ch.HeartbeatSeq = e.Key, e.EventSeq, e.HeartbeatSeq
	if e.Value == nil {
		return ch, nil
	}
	ch.Value = new(T)
	if err := json.Unmarshal(e.Value, ch.Value); err != nil {
		return ch, fmt.Errorf("the value of %s does not read: %w", e.Key, err)
	}
	return ch, nil
}
