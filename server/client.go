package server

import (
	"context"
	"time"

	"github.com/nats-io/nats.go"

	"noxmesh/events"
	"noxmesh/projections/client"
	"noxmesh/rollout"
)

// Client asks a mesh on behalf of an operator or a tool. Its connection is that
// of package client, which tools use by itself.
type Client struct {
	conn *client.Conn
	nc   *nats.Conn // of conn
}

// requestTimeout bounds a command without data to move.
const requestTimeout = 15 * time.Second

// Dial connects with the credential in a file, to a server whose certificate is
// by the CA in another. The error says what to do.
func Dial(url, credsFile, caFile string) (*Client, error) {
	conn, err := client.Dial(url, credsFile, caFile)
	if err != nil {
		return nil, err
	}
	return &Client{conn: conn, nc: conn.NATS()}, nil
}

// Conn is the connection, with which views are watched.
func (c *Client) Conn() *client.Conn { return c.conn }

// Close ends the connection.
func (c *Client) Close() { c.conn.Close() }

// ask sends one command and decodes its result.
func ask[R any](ctx context.Context, c *Client, timeout time.Duration, name string, q any) (R, error) {
	return client.Ask[R](ctx, c.conn, timeout, name, q)
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
