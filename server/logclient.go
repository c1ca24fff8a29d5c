package server

import (
	"context"
	"errors"
	"time"

	"noxmesh/events"
	"noxmesh/projections/client"
)

// LogPage gives one page of the log.
func (c *Client) LogPage(ctx context.Context, q LogRequest) (LogPage, error) {
	return ask[LogPage](ctx, c, requestTimeout+min(time.Duration(q.Wait), MaxLogWait), cmdLogRead, q)
}

// followPause is how long a reader that follows the log waits before it asks
// again, when the mesh did not wait for it.
const followPause = 500 * time.Millisecond

// ReadLog hands over the events that match, in order, each once, until the end
// of the log. With follow it goes on with new ones until ctx ends, which is then
// the error, also while the server is away. An error from fn ends it.
func (c *Client) ReadLog(ctx context.Context, q LogRequest, follow bool, fn func(events.Record) error) error {
	return c.ReadLogPages(ctx, q, follow, func(p LogPage) error {
		for _, raw := range p.Events {
			rec, err := raw.Decode()
			if err != nil {
				return err
			}
			if err := fn(rec); err != nil {
				return err
			}
		}
		return nil
	})
}

// ReadLogPages is [Client.ReadLog] page by page, as the events are stored. The end
// of the log is the one that it has at the start. A limit is one for all pages.
func (c *Client) ReadLogPages(ctx context.Context, q LogRequest, follow bool, fn func(LogPage) error) error {
	limited := q.Limit > 0
	for {
		asked := time.Now()
		page, err := c.LogPage(ctx, q)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err == nil:
			if err := fn(page); err != nil {
				return err
			}
			if q.Limit -= len(page.Events); limited && q.Limit <= 0 {
				return nil
			}
			q.Limit = max(q.Limit, 0)
			q.From, q.Last = page.Next, 0
			switch {
			case page.Next <= page.Last:
				if !follow {
					q.To = page.Last
				}
				continue
			case !follow:
				return nil
			}
			q.Wait = events.Duration(MaxLogWait)
			if len(page.Events) > 0 || time.Since(asked) > followPause {
				continue
			}
		case !follow || !errors.Is(err, client.ErrNoAnswer):
			return err
		}
		select {
		case <-time.After(followPause):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
