package client_test

import (
	"context"
	"fmt"

	"noxmesh/projections"
	"noxmesh/projections/client"
)

// A tool that tells of each rollout that halts, and forgets nothing when it is
// started again.
func ExampleWatchRollouts() {
	tool := func(ctx context.Context, conn *client.Conn, from client.Token, keep func(client.Token) error) error {
		for ch, err := range client.WatchRollouts(ctx, conn, from) {
			if err != nil {
				return err
			}
			if r := ch.Value; r != nil && r.State == projections.Halted {
				fmt.Printf("rollout %s of %s halted: %s (%s)\n", r.ID, r.Version, r.Reason, r.Diagnosis)
			}
			if err := keep(ch.Token); err != nil {
				return err
			}
		}
		return nil
	}
	_ = tool
	// Output:
}

// What is there now, and nothing after it.
func ExampleWatchFleet() {
	running := func(ctx context.Context, conn *client.Conn) (map[string]int, error) {
		nodes := map[string]int{}
		for ch, err := range client.WatchFleet(ctx, conn, "") {
			switch {
			case err != nil:
				return nil, err
			case ch.CaughtUp:
				return nodes, nil
			case ch.Value != nil:
				nodes[ch.Value.Running]++
			}
		}
		return nodes, nil
	}
	_ = running
	// Output:
}
