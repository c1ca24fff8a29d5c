package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"noxmesh/events"
	"noxmesh/rollout"
)

// Client asks a mesh on behalf of an operator or a tool.
type Client struct {
	nc   *nats.Conn
	js   jetstream.JetStream
	user string
	// Denied is the last thing that the broker refused; it arrives beside the
	// call that then times out.
	denied chan error
}

// requestTimeout bounds a command without data to move.
const requestTimeout = 15 * time.Second

// Dial connects with the credential in a file. The error says what to do.
func Dial(url, credsFile string) (*Client, error) {
	raw, err := os.ReadFile(credsFile)
	if err != nil {
		return nil, fmt.Errorf("reading the operator's credential: %w: start nox-mesh server (it writes one into its data directory), or name one with --creds or NOX_MESH_CREDS", err)
	}
	token, err := jwt.ParseDecoratedJWT(raw)
	if err != nil {
		return nil, fmt.Errorf("%s is no credential: %w", credsFile, err)
	}
	claims, err := jwt.DecodeUserClaims(token)
	if err != nil {
		return nil, fmt.Errorf("%s is no user's credential: %w", credsFile, err)
	}
	c := &Client{user: claims.Name, denied: make(chan error, 1)}
	c.nc, err = nats.Connect(url,
		nats.Name("nox-mesh "+claims.Name),
		nats.UserCredentials(credsFile),
		nats.CustomInboxPrefix(events.InboxPrefix("user", claims.Name)),
		nats.MaxReconnects(-1),
		// A command must not wait in a buffer and be carried out later, when
		// the person who gave it has long been told that it failed.
		nats.ReconnectBufSize(-1),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
			if errors.Is(err, nats.ErrPermissionViolation) {
				select {
				case c.denied <- err:
				default:
				}
			}
		}))
	if err != nil {
		return nil, fmt.Errorf("no mesh answers at %s: %w: is nox-mesh server running there? Name another place with --url or NOX_MESH_URL", url, err)
	}
	if c.js, err = jetstream.New(c.nc); err != nil {
		c.nc.Close()
		return nil, err
	}
	return c, nil
}

// Close ends the connection.
func (c *Client) Close() { c.nc.Close() }

// Log reads the log. Only the mesh appends.
func (c *Client) Log() *events.Log { return events.NewLog(c.js) }

// ask sends one command and decodes its result.
func ask[R any](ctx context.Context, c *Client, timeout time.Duration, name string, q any) (R, error) {
	var out R
	raw, err := json.Marshal(q)
	if err != nil {
		return out, err
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	go func() {
		select {
		case err := <-c.denied:
			stop(fmt.Errorf("the credential of %q does not allow this: %w", c.user, err))
		case <-ctx.Done():
		}
	}()
	id, err := uuid.NewV7()
	if err != nil {
		return out, err
	}
	request := nats.NewMsg(events.APISubject(c.user, name))
	request.Data = raw
	request.Header.Set(headerCommand, id.String())
	msg, err := c.request(ctx, request)
	switch {
	case errors.Is(err, nats.ErrNoResponders):
		return out, errors.New("the broker answers, but no nox-mesh server does: it may be starting or stopping; try again, and look at its log")
	case err != nil && context.Cause(ctx) != nil && !errors.Is(context.Cause(ctx), context.DeadlineExceeded):
		return out, context.Cause(ctx)
	case err != nil:
		return out, fmt.Errorf("%s: no answer within %s (%w): it may have been carried out all the same; look before you try again", name, timeout, err)
	}
	var r reply
	if err := json.Unmarshal(msg.Data, &r); err != nil {
		return out, fmt.Errorf("%s: the answer does not read: %w", name, err)
	}
	if r.Error != "" {
		return out, errors.New(r.Error)
	}
	if err := json.Unmarshal(r.Result, &out); err != nil {
		return out, fmt.Errorf("%s: the answer does not read: %w", name, err)
	}
	return out, nil
}

// request sends a command, again when the connection broke or the server was
// away meanwhile: the command has an id, so it is carried out once all the same.
func (c *Client) request(ctx context.Context, request *nats.Msg) (*nats.Msg, error) {
	const pause = 100 * time.Millisecond
	for {
		attempt, cancel := context.WithCancel(ctx)
		broken := c.nc.StatusChanged(nats.RECONNECTING, nats.CLOSED)
		go func() {
			select {
			case <-broken:
				cancel()
			case <-attempt.Done():
			}
		}()
		msg, err := c.nc.RequestMsgWithContext(attempt, request)
		cancel()
		c.nc.RemoveStatusListener(broken)
		if err == nil || ctx.Err() != nil || c.nc.IsClosed() {
			return msg, err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil, err
		}
	}
}

// Enroll issues a credential for a node.
func (c *Client) Enroll(ctx context.Context, q EnrollRequest) (EnrollReply, error) {
	return ask[EnrollReply](ctx, c, requestTimeout, cmdNodeEnroll, q)
}

// Declare sets a node's resources.
func (c *Client) Declare(ctx context.Context, q DeclareRequest) (DeclareReply, error) {
	return ask[DeclareReply](ctx, c, requestTimeout, cmdNodeDeclare, q)
}

// Decommission takes a node out of the fleet.
func (c *Client) Decommission(ctx context.Context, q DecommissionRequest) (DecommissionReply, error) {
	return ask[DecommissionReply](ctx, c, requestTimeout, cmdNodeDecommission, q)
}

// AddRelease uploads a package and records it. With replace it may take the
// place of another package of the same version.
func (c *Client) AddRelease(ctx context.Context, path string, replace bool) (ReleaseAddReply, error) {
	release, err := ReadDeb(path)
	if err != nil {
		return ReleaseAddReply{}, err
	}
	if err := PutPackage(ctx, c.js, path, release); err != nil {
		return ReleaseAddReply{}, err
	}
	return ask[ReleaseAddReply](ctx, c, commandTimeout, cmdReleaseAdd, ReleaseAddRequest{Release: release, Replace: replace})
}

// Releases lists all releases.
func (c *Client) Releases(ctx context.Context) (ReleaseList, error) {
	return ask[ReleaseList](ctx, c, requestTimeout, cmdReleaseList, struct{}{})
}

// Hold keeps a version from being declared to anybody until the hold is lifted.
func (c *Client) Hold(ctx context.Context, version, reason string) (HoldReply, error) {
	return ask[HoldReply](ctx, c, requestTimeout, cmdReleaseHold, HoldRequest{Version: version, Reason: reason})
}

// Lift lifts the hold on a version.
func (c *Client) Lift(ctx context.Context, version, reason string) (HoldReply, error) {
	return ask[HoldReply](ctx, c, requestTimeout, cmdReleaseLift, HoldRequest{Version: version, Reason: reason})
}

// PlanRollout says what a rollout would do if it started now, and writes nothing.
func (c *Client) PlanRollout(ctx context.Context, q StartRequest) (PlanReply, error) {
	return ask[PlanReply](ctx, c, requestTimeout, cmdRolloutPlan, q)
}

// StartRollout starts a rollout, or says why not.
func (c *Client) StartRollout(ctx context.Context, q StartRequest) (*rollout.Status, error) {
	return ask[*rollout.Status](ctx, c, requestTimeout, cmdRolloutStart, q)
}

// Rollout gives the status of a rollout by id, or of the "latest".
func (c *Client) Rollout(ctx context.Context, id string) (*rollout.Status, error) {
	return ask[*rollout.Status](ctx, c, requestTimeout, cmdRolloutStatus, RolloutRequest{ID: id})
}

// Rollouts lists all rollouts.
func (c *Client) Rollouts(ctx context.Context) (RolloutList, error) {
	return ask[RolloutList](ctx, c, requestTimeout, cmdRolloutList, struct{}{})
}

// PauseRollout stops a running rollout from opening batches.
func (c *Client) PauseRollout(ctx context.Context, id, reason string) (*rollout.Status, error) {
	return ask[*rollout.Status](ctx, c, requestTimeout, cmdRolloutPause, RolloutRequest{ID: id, Reason: reason})
}

// ResumeRollout lets a paused rollout go on, or a halted one in a given mode.
func (c *Client) ResumeRollout(ctx context.Context, id string, mode events.ResumeMode, reason string) (*rollout.Status, error) {
	return ask[*rollout.Status](ctx, c, requestTimeout, cmdRolloutResume, RolloutRequest{ID: id, Mode: mode, Reason: reason})
}

// RevertRollout ends a rollout and gives every node what it had before.
func (c *Client) RevertRollout(ctx context.Context, id, reason string) (*rollout.Status, error) {
	return ask[*rollout.Status](ctx, c, requestTimeout, cmdRolloutRevert, RolloutRequest{ID: id, Reason: reason})
}

// AbortRollout ends an open rollout.
func (c *Client) AbortRollout(ctx context.Context, id, reason string) (*rollout.Status, error) {
	return ask[*rollout.Status](ctx, c, requestTimeout, cmdRolloutAbort, RolloutRequest{ID: id, Reason: reason})
}

// Fleet gives all nodes. Each page states its own sequence; the result states
// that of the first.
func (c *Client) Fleet(ctx context.Context) (Fleet, error) {
	var all Fleet
	for after := ""; ; {
		page, err := ask[Fleet](ctx, c, requestTimeout, cmdFleet, FleetRequest{After: after})
		if err != nil {
			return Fleet{}, err
		}
		if all.Nodes == nil {
			all = page
		} else {
			all.Nodes = append(all.Nodes, page.Nodes...)
		}
		if !page.More {
			all.More = false
			return all, nil
		}
		after = page.Nodes[len(page.Nodes)-1].Node
	}
}

// Backtest says what another policy would have made of a rollout.
func (c *Client) Backtest(ctx context.Context, q BacktestRequest) (*rollout.BacktestResult, error) {
	return ask[*rollout.BacktestResult](ctx, c, commandTimeout, cmdRolloutBacktest, q)
}
