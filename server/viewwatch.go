package server

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"noxmesh/events"
	"noxmesh/projections"
	"noxmesh/projections/client"
)

const cmdViewWatch = client.CommandWatch

const (
	// A page has so many entries, or bytes of them.
	watchPage  = 500
	watchBytes = 1 << 20
)

// watchView gives the keys of a bucket whose newest value came after a token,
// and waits for one if there is none.
func (a *api) watchView(ctx context.Context, by caller, q client.WatchRequest) (client.WatchReply, error) {
	if !slices.Contains(projections.Buckets, q.Bucket) {
		return client.WatchReply{}, fmt.Errorf("there is no view %q to watch: there are %v", events.Printable(q.Bucket, 40), projections.Buckets)
	}
	if q.Wait < 0 || time.Duration(q.Wait) > client.MaxWait {
		return client.WatchReply{}, fmt.Errorf("a watch waits for 0s to %s, not %s", client.MaxWait, q.Wait)
	}
	stream, err := a.js.Stream(ctx, projections.BucketStream(q.Bucket))
	if err != nil {
		return client.WatchReply{}, fmt.Errorf("looking at bucket %s: %w: %w", q.Bucket, err, errAgain)
	}
	info := stream.CachedInfo()
	after, same, err := q.After.Parse(q.Bucket, info.Created)
	if err != nil {
		return client.WatchReply{}, err
	}
	reply := client.WatchReply{Entries: []client.WatchEntry{}}
	if !same || after > info.State.LastSeq {
		after, reply.Reset = 0, true
	}
	token := func(seq uint64) client.Token { return client.MakeToken(q.Bucket, info.Created, seq) }
	reply.Token = token(after)
	cons, err := stream.CreateConsumer(ctx, jetstream.ConsumerConfig{
		DeliverPolicy:     jetstream.DeliverByStartSequencePolicy,
		OptStartSeq:       after + 1,
		AckPolicy:         jetstream.AckNonePolicy,
		MemoryStorage:     true,
		InactiveThreshold: 2 * client.MaxWait, // should it be left behind
	})
	if err != nil {
		return client.WatchReply{}, fmt.Errorf("reading bucket %s: %w: %w", q.Bucket, err, errAgain)
	}
	defer func() {
		// The watcher has its page either way.
		_ = stream.DeleteConsumer(context.WithoutCancel(ctx), cons.CachedInfo().Name)
	}()
	reply.CaughtUp = cons.CachedInfo().NumPending == 0
	size := 0
	take := func(batch jetstream.MessageBatch, err error) error {
		if err != nil {
			return err
		}
		for msg := range batch.Messages() {
			meta, err := msg.Metadata()
			if err != nil {
				return err
			}
			if size > 0 && size+len(msg.Data()) > watchBytes {
				reply.CaughtUp = false
				return nil // what comes is for the next page
			}
			size += len(msg.Data())
			reply.Token = token(meta.Sequence.Stream)
			reply.Entries = append(reply.Entries, client.WatchEntry{Token: reply.Token, Entry: msg.Data()})
			reply.CaughtUp = meta.NumPending == 0
		}
		return batch.Error()
	}
	if reply.CaughtUp && q.Wait > 0 && !reply.Reset {
		wait, end := context.WithTimeout(ctx, time.Duration(q.Wait))
		defer end()
		go func() {
			select {
			case <-a.stopped:
				end()
			case <-wait.Done():
			}
		}()
		if no := by.slot.aside(func() { err = take(cons.Fetch(1, jetstream.FetchContext(wait))) }); no != nil {
			return client.WatchReply{}, no
		}
		if errors.Is(err, nats.ErrTimeout) || errors.Is(err, context.DeadlineExceeded) {
			err = nil // nothing has changed
		}
	}
	if err == nil && !reply.CaughtUp {
		err = take(cons.FetchNoWait(watchPage - len(reply.Entries)))
	}
	if err != nil {
		return client.WatchReply{}, fmt.Errorf("reading bucket %s: %w: %w", q.Bucket, err, errAgain)
	}
	return reply, nil
}
