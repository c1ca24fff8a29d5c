package main

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"noxmesh/server"
)

func newUser(o *options) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "user",
		Short: "Let people and tools in, and shut them out",
		Long: `Let people and tools in, each with a credential and a role of their own. The broker
lets through what the role allows, and the log names who it was.

  operator  every command
  auditor   reads the log, and sees what a viewer sees; writes nothing
  viewer    sees the fleet, rollouts and releases`,
	}
	cmd.AddCommand(newUserAdd(o), newUserList(o), newUserRevoke(o))
	return cmd
}

func newUserAdd(o *options) *cobra.Command {
	var role, out string
	cmd := &cobra.Command{
		Use:   "add NAME --role ROLE --out FILE",
		Short: "Issue a credential for a person or a tool and write it to a file",
		Long: `Issue a credential for a person or a tool and write it to a file. It is a secret:
who has it is that user. With the server's CA certificate (DATA-DIR/tls/ca.pem) it is
all that a user needs on another machine:

  nox-mesh --url tls://mesh.example.com:4222 --ca ca.pem --creds ann.creds fleet

A user who has a credential already gets a new one in its place, and the former one
is not let in any more.`,
		Example: "  nox-mesh user add ann --role operator --out ann.creds\n  nox-mesh user add dashboard --role viewer --out dashboard.creds",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if role == "" {
				return errors.New("say what the user may do: --role operator, auditor or viewer")
			}
			if out == "" {
				return errors.New("say where to write the credential: --out FILE")
			}
			// The file comes first: a credential that cannot be kept is not asked for.
			f, err := os.OpenFile(out, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
			if errors.Is(err, os.ErrExist) {
				return fmt.Errorf("%s is there already: choose another --out, or remove it", out)
			} else if err != nil {
				return err
			}
			var r server.UserAddReply
			err = o.with(func(cmd *cobra.Command, _ []string, c *server.Client) error {
				if r, err = c.AddUser(cmd.Context(), server.UserAddRequest{User: args[0], Role: role}); err != nil {
					return err
				}
				_, err = f.WriteString(r.Creds)
				return errors.Join(err, f.Sync())
			})(cmd, args)
			if err = errors.Join(err, f.Close()); err != nil {
				return errors.Join(err, os.Remove(out))
			}
			fmt.Fprintf(cmd.OutOrStdout(), "added %s as %s; the credential is in %s\n", args[0], role, out)
			if r.Replaced {
				fmt.Fprintf(cmd.OutOrStdout(), "the former credential of %s is not let in any more\n", args[0])
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&role, "role", "", "what the user may do: operator, auditor or viewer")
	cmd.Flags().StringVar(&out, "out", "", "file to write the credential to")
	return cmd
}

func newUserList(o *options) *cobra.Command {
	return o.jsonFlag(&cobra.Command{
		Use:   "ls",
		Short: "List people and tools, and their roles",
		Args:  cobra.NoArgs,
		RunE: o.with(func(cmd *cobra.Command, _ []string, c *server.Client) error {
			list, err := c.Users(cmd.Context())
			if err != nil {
				return err
			}
			if o.json {
				return printJSON(cmd.OutOrStdout(), list)
			}
			t := newTable(cmd.OutOrStdout(), "NAME", "ROLE", "STATE", "SINCE")
			for _, u := range list.Users {
				state := "-"
				if u.Revoked {
					state = "REVOKED"
				}
				t.row(u.User, u.Role, state, u.Since.Local().Format(time.DateTime))
			}
			t.end()
			fmt.Fprintf(cmd.OutOrStdout(), "as of event %d\n", list.EventSeq)
			return nil
		}),
	})
}

func newUserRevoke(o *options) *cobra.Command {
	var reason string
	cmd := &cobra.Command{
		Use:   "revoke NAME",
		Short: "Shut a person or a tool out, at once",
		Long: `Shut a person or a tool out: whoever is connected with a credential of that user is
disconnected, and no such credential is let in any more. The user can be added again
with nox-mesh user add. The last operator cannot be revoked.`,
		Example: "  nox-mesh user revoke ann --reason 'left the company'",
		Args:    cobra.ExactArgs(1),
		RunE: o.with(func(cmd *cobra.Command, args []string, c *server.Client) error {
			r, err := c.RevokeUser(cmd.Context(), args[0], reason)
			if err != nil {
				return err
			}
			if o.json {
				return printJSON(cmd.OutOrStdout(), r)
			}
			if r.Already {
				fmt.Fprintf(cmd.OutOrStdout(), "%s was revoked before\n", r.User)
				return nil
			}
			fmt.Fprintf(cmd.OutOrStdout(), "revoked %s: none of its credentials is let in any more\n", r.User)
			return nil
		}),
	}
	cmd.Flags().StringVar(&reason, "reason", "", "why, for the record")
	return o.jsonFlag(cmd)
}
