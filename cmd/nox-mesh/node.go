package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"noxmesh/events"
	"noxmesh/server"
)

func newNode(o *options) *cobra.Command {
	cmd := &cobra.Command{Use: "node", Short: "Enrol nodes, declare what they should be, take them out"}
	cmd.AddCommand(newNodeEnroll(o), newNodeDeclare(o), newNodeDecommission(o))
	return cmd
}

func newNodeEnroll(o *options) *cobra.Command {
	var (
		labels []string
		out    string
		again  bool
	)
	cmd := &cobra.Command{
		Use:   "enroll NAME --out FILE",
		Short: "Issue a node's credential and write it to a file",
		Long: `Issue a node's credential. Bring the file to the machine as
/etc/nox-mesh-host/node.creds, owned by root with mode 0600; it is a secret.
With it the node can speak only for itself.`,
		Example: "  nox-mesh node enroll ams-01 --label site=ams --out ams-01.creds",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if out == "" {
				return errors.New("say where to write the credential: --out FILE")
			}
			q := server.EnrollRequest{Node: args[0], Labels: map[string]string{}, Again: again}
			if err := events.CheckNodeID(q.Node); err != nil {
				return err
			}
			for _, l := range labels {
				k, v, ok := strings.Cut(l, "=")
				if !ok {
					return fmt.Errorf("label %q is no key=value", l)
				}
				q.Labels[k] = v
			}
			// The file comes first: a credential that cannot be kept is not asked for.
			f, err := os.OpenFile(out, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
			if errors.Is(err, os.ErrExist) {
				return fmt.Errorf("%s is there already: choose another --out, or remove it", out)
			} else if err != nil {
				return err
			}
			err = o.with(func(cmd *cobra.Command, _ []string, c *server.Client) error {
				r, err := c.Enroll(cmd.Context(), q)
				if err != nil {
					return err
				}
				_, err = f.WriteString(r.Creds)
				return errors.Join(err, f.Sync())
			})(cmd, args)
			if err = errors.Join(err, f.Close()); err != nil {
				return errors.Join(err, os.Remove(out))
			}
			fmt.Fprintf(cmd.OutOrStdout(), "enrolled %s; its credential is in %s\nbring it to the machine as /etc/nox-mesh-host/node.creds (root, mode 0600)\n", q.Node, out)
			return nil
		},
	}
	cmd.Flags().StringArrayVar(&labels, "label", nil, "key=value, may be repeated; rollouts select by labels")
	cmd.Flags().StringVar(&out, "out", "", "file to write the credential to")
	cmd.Flags().BoolVar(&again, "again", false, "issue a further credential for a node that is enrolled already")
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
reports are dropped, and nox-mesh fleet shows it no more. Its history stays in the
log. The machine itself is told nothing, and its credential still works: stop the
host there and remove the credential.

The same name can be enrolled again with nox-mesh node enroll.`,
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
			fmt.Fprintf(out, "its credential still works, the mesh cannot revoke one yet: stop the host on the machine and\nremove /etc/nox-mesh-host/node.creds there\n")
			return nil
		}),
	}
	cmd.Flags().StringVar(&reason, "reason", "", "why, for the record")
	return o.jsonFlag(cmd)
}
