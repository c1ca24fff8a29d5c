package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"

	"noxmesh/events"
)

// HeaderCommand carries the id of a command, made by whoever gives it. It is the
// cause of the events that follow. What has none is no command: an answer that
// somebody had sent to where commands are heard, say.
const HeaderCommand = "Nox-Mesh-Command"

// MaxRequest bounds a request, in bytes; up to a KiB of headers comes on top. A
// part of a package fits, as do the resources of a node.
const MaxRequest = 1<<20 - 1<<10

// Reply is what a command is answered with: a result, or an error in plain words.
type Reply struct {
	Error string `json:"error,omitempty"`
	// Busy: the command was not begun, and may be given again in a moment.
	Busy   bool            `json:"busy,omitempty"`
	Result json.RawMessage `json:"result,omitempty"`
}

// ErrNoAnswer: nobody answered, which may be otherwise in a moment.
var ErrNoAnswer = errors.New("no answer")

// Ask gives one command and decodes its result. It waits up to timeout, and
// gives the command again, under the same id, when the connection broke or the
// server was away or busy meanwhile: a command is carried out once all the same.
// The error is in words; [ErrNoAnswer] is the one worth another try.
func Ask[R any](ctx context.Context, c *Conn, timeout time.Duration, command string, request any) (R, error) {
	var out R
	raw, err := json.Marshal(request)
	if err != nil {
		return out, err
	}
	if len(raw) > MaxRequest {
		return out, fmt.Errorf("%s: a request of %d bytes is over the limit of %d", command, len(raw), MaxRequest)
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	id, err := uuid.NewV7()
	if err != nil {
		return out, err
	}
	msg := nats.NewMsg(events.APISubject(c.user, command))
	msg.Data = raw
	msg.Header.Set(HeaderCommand, id.String())
	defer c.await(msg.Subject, stop)()
	r, err := c.request(ctx, msg)
	cause := context.Cause(ctx)
	switch {
	case errors.Is(err, nats.ErrNoResponders):
		return out, fmt.Errorf("%w: the broker does, but no nox-mesh server: it may be starting or stopping; try again, and look at its log", ErrNoAnswer)
	case err != nil && c.nc.IsClosed():
		return out, fmt.Errorf("the mesh does not let %q in any more: the credential was revoked or replaced", c.user)
	case err != nil && errors.Is(cause, nats.ErrPermissionViolation):
		return out, fmt.Errorf("the role of %q does not allow %s (or the server is of another version, and knows no such command): %w", c.user, command, cause)
	case err != nil && cause != nil && !errors.Is(cause, context.DeadlineExceeded):
		return out, cause
	case err != nil:
		return out, fmt.Errorf("%s: %w within %s (%w): it may have been carried out all the same; look before you try again", command, ErrNoAnswer, timeout, err)
	}
	if r.Error != "" {
		return out, errors.New(r.Error)
	}
	if err := json.Unmarshal(r.Result, &out); err != nil {
		return out, fmt.Errorf("%s: the answer does not read: %w", command, err)
	}
	return out, nil
}

// A command is given again after a pause, which grows from the first to the last.
const (
	firstPause = 100 * time.Millisecond
	lastPause  = time.Second
)

// request sends a command until it is answered or ctx ends.
func (c *Conn) request(ctx context.Context, msg *nats.Msg) (Reply, error) {
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		r, err := c.try(ctx, msg)
		if err == nil && !r.Busy || ctx.Err() != nil || c.nc.IsClosed() {
			return r, err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return r, err
		}
	}
}

// try sends a command once and gives up when the connection breaks.
func (c *Conn) try(ctx context.Context, msg *nats.Msg) (Reply, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	broken := c.nc.StatusChanged(nats.RECONNECTING, nats.CLOSED)
	defer c.nc.RemoveStatusListener(broken)
	go func() {
		select {
		case <-broken:
			cancel()
		case <-ctx.Done():
		}
	}()
	var r Reply
	answer, err := c.nc.RequestMsgWithContext(ctx, msg)
	if err != nil {
		return r, err
	}
	if err := json.Unmarshal(answer.Data, &r); err != nil {
		return Reply{Error: fmt.Sprintf("%s: the answer does not read: %v", msg.Subject, err)}, nil
	}
	return r, nil
}
