package main

import (
	"strings"
	"time"

	"github.com/spf13/cobra"

	"noxmesh/projections"
	"noxmesh/server"
)

func newFleet(o *options) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "fleet [NODE]",
		Short: "Show each node: what it should run, what it runs, when it was heard",
		Long: `Show each node, or one in full detail. With --at, as it was at a moment: the log and
the heartbeats are replayed up to then.`,
		Example: "  nox-mesh fleet\n  nox-mesh fleet ams-01\n  nox-mesh fleet --at 3d\n  nox-mesh fleet ams-01 --at '2026-11-07 14:00'",
		Args:    cobra.MaximumNArgs(1),
	}
	o.withAt(cmd, func(cmd *cobra.Command, args []string, c *server.Client, at *time.Time) error {
		var (
			f   server.Fleet
			err error
		)
		if len(args) == 1 {
			f, err = c.NodeAt(cmd.Context(), args[0], at)
		} else {
			f, err = c.FleetAt(cmd.Context(), at)
		}
		switch out := cmd.OutOrStdout(); {
		case err != nil:
			return err
		case o.json:
			return printJSON(out, f)
		case len(args) == 1:
			printNode(out, f)
		default:
			printFleet(out, f)
		}
		return nil
	})
	return o.jsonFlag(cmd)
}

// note is the one thing most worth knowing about a node.
func note(n projections.NodeView) string {
	var parts []string
	if n.Waiting != "" && n.Waiting != "never heard" {
		parts = append(parts, n.Waiting)
	}
	if rb := n.RolledBack; rb != nil && rb.To == n.Running {
		parts = append(parts, "rolled back from "+rb.From)
	}
	if n.NoWayBack != "" {
		parts = append(parts, "cannot roll back: "+n.NoWayBack)
	}
	parts = append(parts, n.Problems...)
	return cut(strings.Join(parts, "; "), 70)
}
