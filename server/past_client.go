package server

import (
	"context"
	"time"
)

// What was at a moment. Replaying the log takes a while, the first time.

// FleetAt gives all nodes as they were at a moment, or are now if at is nil.
func (c *Client) FleetAt(ctx context.Context, at *time.Time) (Fleet, error) {
	var all Fleet
	for after := ""; ; {
		page, err := ask[Fleet](ctx, c, timeoutAt(at), cmdFleet, FleetRequest{After: after, At: at})
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

// NodeAt gives one node in full detail, at a moment or now.
func (c *Client) NodeAt(ctx context.Context, node string, at *time.Time) (Fleet, error) {
	return ask[Fleet](ctx, c, timeoutAt(at), cmdFleet, FleetRequest{Node: node, At: at})
}

// RolloutAt gives the status of a rollout, or of the "latest", at a moment or now.
func (c *Client) RolloutAt(ctx context.Context, id string, at *time.Time) (RolloutStatus, error) {
	return ask[RolloutStatus](ctx, c, timeoutAt(at), cmdRolloutStatus, RolloutRequest{ID: id, At: at})
}

// RolloutsAt lists all rollouts that there were at a moment, or are now.
func (c *Client) RolloutsAt(ctx context.Context, at *time.Time) (RolloutList, error) {
	return ask[RolloutList](ctx, c, timeoutAt(at), cmdRolloutList, AtRequest{At: at})
}

// ReleasesAt lists all releases that there were at a moment, or are now.
func (c *Client) ReleasesAt(ctx context.Context, at *time.Time) (ReleaseList, error) {
	return ask[ReleaseList](ctx, c, timeoutAt(at), cmdReleaseList, AtRequest{At: at})
}

func timeoutAt(at *time.Time) time.Duration {
	if at == nil {
		return requestTimeout
	}
	return commandTimeout
}
