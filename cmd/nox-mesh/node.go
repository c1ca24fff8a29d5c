package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"noxmesh/events"
	"noxmesh/server"
)

func newNode(o *options) *cobra.Command {
	cmd := &cobra.Command{Use: "node", Short: "Invite nodes, declare what they should be, shut them out"}
	cmd.AddCommand(newNodeInvite(o), newNodeDeclare(o), newNodeRevoke(o), newNodeDecommission(o))
	return cmd
}

func newNodeDeclare(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "declare NAME FILE",
		Short: "Declare what a node should have besides its host version",
		Long: `Declare a node's resources from a JSON file ("-" reads standard input): a list
like

  [{"type": "file", "name": "/etc/motd", "spec": {"mode": "0644", "owner": "root:root", "content": "hello\n"}}]

They replace the node's former ones; an empty list takes them out of the
declaration and leaves on the machine what is there. The host's own version is
a rollout's business and stays as it is.`,
		Args: cobra.ExactArgs(2),
		RunE: o.with(func(cmd *cobra.Command, args []string, c *server.Client) error {
			in := io.Reader(os.Stdin)
			if args[1] != "-" {
				f, err := os.Open(args[1])
				if err != nil {
					return err
				}
				defer f.Close()
				in = f
			}
			q := server.DeclareRequest{Node: args[0], Resources: []events.Resource{}}
			dec := json.NewDecoder(in)
			dec.DisallowUnknownFields()
			if err := dec.Decode(&q.Resources); err != nil {
				return fmt.Errorf("%s does not read as a list of resources: %w", args[1], err)
			}
			r, err := c.Declare(cmd.Context(), q)
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "declared revision %d of %s\n", r.Revision, q.Node)
			return nil
		}),
	}
}

func newNodeDecommission(o *options) *cobra.Command {
	var reason string
	cmd := &cobra.Command{
		Use:   "decommission NAME",
		Short: "Take a machine out of the fleet",
		Long: `Take a machine out of the fleet: it leaves the cohort of every open rollout, its
reports are dropped, and nox-mesh fleet shows it no more. Its key is revoked: it is
disconnected at once and let in no more. Its history stays in the log. What is
installed on the machine stays there and runs on.

A machine can join under the same name again, with a new token from nox-mesh node
invite.`,
		Example: "  nox-mesh node decommission ams-01 --reason 'disk died, replaced by ams-07'",
		Args:    cobra.ExactArgs(1),
		RunE: o.with(func(cmd *cobra.Command, args []string, c *server.Client) error {
			r, err := c.Decommission(cmd.Context(), server.DecommissionRequest{Node: args[0], Reason: reason})
			if err != nil {
				return err
			}
			out := cmd.OutOrStdout()
			if o.json {
				return printJSON(out, r)
			}
			if r.Already {
				fmt.Fprintf(out, "%s was decommissioned already\n", r.Node)
				return nil
			}
			fmt.Fprintf(out, "%s is decommissioned\n", r.Node)
			for _, id := range r.Rollouts {
				fmt.Fprintf(out, "it left the cohort of rollout %s\n", id)
			}
			fmt.Fprintf(out, "its key is revoked: it is disconnected, and joins again with a new token only\n")
			return nil
		}),
	}
	cmd.Flags().StringVar(&reason, "reason", "", "why, for the record")
	return o.jsonFlag(cmd)
}
