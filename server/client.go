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

	"noxmesh/events"
	"noxmesh/events/anchor"
	"noxmesh/rollout"
)

// Client asks a mesh on behalf of an operator or a tool.
type Client struct {
	nc   *nats.Conn
	user string
	// Denied is the last thing that the broker refused; it arrives beside the
	// call that then times out.
	denied chan error
}

// requestTimeout bounds a command without data to move.
const requestTimeout = 15 * time.Second

// Dial connects with the credential in a file, to a server whose certificate is
// by the CA in another. The error says what to do.
func Dial(url, credsFile, caFile string) (*Client, error) {
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
	secure, err := anchor.File(caFile)
	if err != nil {
		return nil, fmt.Errorf("%w: copy tls/ca.pem from the server's data directory, and name it with --ca or NOX_MESH_CA", err)
	}
	c := &Client{user: claims.Name, denied: make(chan error, 1)}
	c.nc, err = nats.Connect(url,
		nats.Secure(secure),
		nats.Name("nox-mesh "+claims.Name),
		nats.UserCredentials(credsFile),
		nats.CustomInboxPrefix(events.InboxPrefix("user", claims.Name)),
		nats.MaxReconnects(-1),
		// A command must not wait in a buffer and be carried out later, when
		// the person who gave it has long been told that it failed.
		nats.ReconnectBufSize(-1),
		nats.ErrorHandler(func(nc *nats.Conn, _ *nats.Subscription, err error) {
			switch {
			case errors.Is(err, nats.ErrPermissionViolation):
				select {
				case c.denied <- err:
				default:
				}
			case errors.Is(err, nats.ErrAuthRevoked), errors.Is(err, nats.ErrAuthorization):
				nc.Close() // it will not be otherwise the next time
			}
		}))
	if errors.Is(err, nats.ErrAuthorization) || errors.Is(err, nats.ErrAuthRevoked) {
		return nil, fmt.Errorf("the mesh at %s does not let %q in (%w): the credential %s was revoked or replaced, or is another mesh's", url, claims.Name, err, credsFile)
	}
	if why := anchor.Explain(err); errors.Is(why, anchor.ErrNotThisMesh) {
		return nil, fmt.Errorf("%s: %w (%s): name another CA with --ca or NOX_MESH_CA, or another place with --url", url, why, caFile)
	} else if why != err {
		return nil, fmt.Errorf("%s: %w", url, why)
	}
	if err != nil {
		return nil, fmt.Errorf("no mesh answers at %s: %w: is nox-mesh server running there? Name another place with --url or NOX_MESH_URL", url, err)
	}
	return c, nil
}

// Close ends the connection.
func (c *Client) Close() { c.nc.Close() }

// ask sends one command and decodes its result.
func ask[R any](ctx context.Context, c *Client, timeout time.Duration, name string, q any) (R, error) {
	var out R
	raw, err := json.Marshal(q)
	if err != nil {
		return out, err
	}
	if len(raw) > maxRequest {
		return out, fmt.Errorf("%s: a request of %d bytes is over the limit of %d", name, len(raw), maxRequest)
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	go func() {
		select {
		case err := <-c.denied:
			stop(fmt.Errorf("the role of %q does not allow %s (or the server is of another version, and knows no such command): %w", c.user, name, err))
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
	r, err := c.request(ctx, request)
	switch {
	case errors.Is(err, nats.ErrNoResponders):
		return out, fmt.Errorf("%w: the broker does, but no nox-mesh server: it may be starting or stopping; try again, and look at its log", errNoAnswer)
	case err != nil && c.nc.IsClosed():
		return out, fmt.Errorf("the mesh does not let %q in any more: the credential was revoked or replaced", c.user)
	case err != nil && context.Cause(ctx) != nil && !errors.Is(context.Cause(ctx), context.DeadlineExceeded):
		return out, context.Cause(ctx)
	case err != nil:
		return out, fmt.Errorf("%s: %w within %s (%w): it may have been carried out all the same; look before you try again", name, errNoAnswer, timeout, err)
	}
	if r.Error != "" {
		return out, errors.New(r.Error)
	}
	if err := json.Unmarshal(r.Result, &out); err != nil {
		return out, fmt.Errorf("%s: the answer does not read: %w", name, err)
	}
	return out, nil
}

// errNoAnswer: nobody answered, which may be otherwise in a moment.
var errNoAnswer = errors.New("no answer")

// request sends a command, again when the connection broke or the server was
// away or busy meanwhile: the command has an id, so it is carried out once all
// the same.
func (c *Client) request(ctx context.Context, request *nats.Msg) (reply, error) {
	const pause = 100 * time.Millisecond
	for {
		r, err := c.try(ctx, request)
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
func (c *Client) try(ctx context.Context, request *nats.Msg) (reply, error) {
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
	var r reply
	msg, err := c.nc.RequestMsgWithContext(ctx, request)
	if err != nil {
		return r, err
	}
	if err := json.Unmarshal(msg.Data, &r); err != nil {
		return reply{Error: fmt.Sprintf("%s: the answer does not read: %v", request.Subject, err)}, nil
	}
	return r, nil
}

// followInterval is how often a reader that follows the log asks for more.
const followInterval = 500 * time.Millisecond

// ReadLog hands over the events that match, in order, each once, until the end
// of the log. With follow it goes on with new ones until ctx ends, which is then
// the error, also while the server is away. An error from fn ends it.
func (c *Client) ReadLog(ctx context.Context, q LogRequest, follow bool, fn func(events.Record) error) error {
	for {
		page, err := ask[LogPage](ctx, c, requestTimeout, cmdLogRead, q)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err == nil:
			if err := page.hand(fn); err != nil {
				return err
			}
			q.From = page.Next
			if page.Next <= page.Last {
				continue
			}
			if !follow {
				return nil
			}
		case !follow || !errors.Is(err, errNoAnswer):
			return err
		}
		select {
		case <-time.After(followInterval):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (p LogPage) hand(fn func(events.Record) error) error {
	for _, rec := range p.Events {
		e, err := events.Decode(rec.Event)
		if err != nil {
			return fmt.Errorf("event %d: %w", rec.Seq, err)
		}
		if err := fn(events.Record{Seq: rec.Seq, Event: e}); err != nil {
			return err
		}
	}
	return nil
}

// Invite issues tokens with which machines may join.
func (c *Client) Invite(ctx context.Context, q InviteRequest) (InviteReply, error) {
	return ask[InviteReply](ctx, c, commandTimeout, cmdNodeInvite, q)
}

// RevokeNode shuts a node out until it joins again with a new token.
func (c *Client) RevokeNode(ctx context.Context, q RevokeRequest) (RevokeReply, error) {
	return ask[RevokeReply](ctx, c, requestTimeout, cmdNodeRevoke, q)
}

// Declare sets a node's resources.
func (c *Client) Declare(ctx context.Context, q DeclareRequest) (DeclareReply, error) {
	return ask[DeclareReply](ctx, c, requestTimeout, cmdNodeDeclare, q)
}

// Decommission takes a node out of the fleet.
func (c *Client) Decommission(ctx context.Context, q DecommissionRequest) (DecommissionReply, error) {
	return ask[DecommissionReply](ctx, c, requestTimeout, cmdNodeDecommission, q)
}

// AddRelease signs a package with the release key, uploads it and records it; a
// mesh takes none that is not signed. With replace it may take the place of another package of the same version.
func (c *Client) AddRelease(ctx context.Context, path string, key *events.SigningKey, replace bool) (ReleaseAddReply, error) {
	release, err := ReadDeb(path)
	if err != nil {
		return ReleaseAddReply{}, err
	}
	if key != nil {
		if release.Signature, err = key.Sign(events.ReleaseText(release)); err != nil {
			return ReleaseAddReply{}, err
		}
	}
	if err := c.upload(ctx, path, release); err != nil {
		return ReleaseAddReply{}, err
	}
	return ask[ReleaseAddReply](ctx, c, commandTimeout, cmdReleaseAdd, ReleaseAddRequest{Release: release, Replace: replace})
}

// upload brings the file of a release, in parts.
func (c *Client) upload(ctx context.Context, path string, r events.Release) error {
	return releaseParts(path, r, func(name string, part []byte) error {
		_, err := ask[PartReply](ctx, c, commandTimeout, cmdReleasePart, PartRequest{Name: name, Data: part})
		return err
	})
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

// AddUser issues a credential for a person or a tool.
func (c *Client) AddUser(ctx context.Context, q UserAddRequest) (UserAddReply, error) {
	return ask[UserAddReply](ctx, c, requestTimeout, cmdUserAdd, q)
}

// RevokeUser shuts a person or a tool out.
func (c *Client) RevokeUser(ctx context.Context, user, reason string) (UserRevokeReply, error) {
	return ask[UserRevokeReply](ctx, c, requestTimeout, cmdUserRevoke, UserRevokeRequest{User: user, Reason: reason})
}

// Users lists everybody who was ever given a credential.
func (c *Client) Users(ctx context.Context) (UserList, error) {
	return ask[UserList](ctx, c, requestTimeout, cmdUserList, struct{}{})
}

// Fleet gives all nodes. Each page states its own sequence; the result states
// that of the first.
func (c *Client) Fleet(ctx context.Context) (Fleet, error) { return c.FleetAt(ctx, nil) }

// Backtest says what another policy would have made of a rollout.
func (c *Client) Backtest(ctx context.Context, q BacktestRequest) (*rollout.BacktestResult, error) {
	return ask[*rollout.BacktestResult](ctx, c, commandTimeout, cmdRolloutBacktest, q)
}
