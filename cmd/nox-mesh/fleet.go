package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"noxmesh/projections"
	"noxmesh/server"
)

func newFleet(o *options) *cobra.Command {
	return o.jsonFlag(&cobra.Command{
		Use:   "fleet",
		Short: "Show each node: what it should run, what it runs, when it was heard",
		Args:  cobra.NoArgs,
		RunE: o.with(func(cmd *cobra.Command, _ []string, c *server.Client) error {
			f, err := c.Fleet(cmd.Context())
			if err != nil {
				return err
			}
			if o.json {
				return printJSON(cmd.OutOrStdout(), f)
			}
			if len(f.Nodes) == 0 {
				fmt.Fprintln(cmd.OutOrStdout(), "no node yet: invite one with nox-mesh node invite NAME")
				return nil
			}
			t := newTable(cmd.OutOrStdout(), "NODE", "LABELS", "DECLARED", "RUNNING", "KNOWN GOOD", "LAST HEARD", "NOTE")
			for _, n := range f.Nodes {
				t.row(n.Node, labelText(n.Labels), dash(n.Declared), dash(n.Running), dash(n.KnownGood), ago(n.LastHeard), note(n))
			}
			t.end()
			fmt.Fprintf(cmd.OutOrStdout(), "%s, as of event %d and heartbeat %d\n", plural(len(f.Nodes), "node"), f.EventSeq, f.HeartbeatSeq)
			return nil
		}),
	})
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
