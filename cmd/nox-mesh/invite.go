package main

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"noxmesh/events"
	"noxmesh/server"
)

// invitePage is how many tokens are asked for at a time.
const invitePage = 200

func newNodeInvite(o *options) *cobra.Command {
	var (
		labels []string
		ttl    time.Duration
		count  int
		prefix string
		url    string
	)
	cmd := &cobra.Command{
		Use:   "invite NAME",
		Short: "Print a token with which one machine may join, once",
		Long: `Print a token. On the machine, give it to nox-mesh-host join: the machine makes
its key there and becomes the node. Whoever has the token can do that, once and
until it expires; it is good for nothing else. Bring it there on a way that you
would bring a password.

A machine that was installed anew joins under its old name with a new token: it
is one node, and the key from before is let in no more. A new token makes
unused ones for the same name void.

With --count tokens are printed for PREFIX1, PREFIX2 and so on, one "name token" a
line, with as many zeros as the last number needs.`,
		Example: "  nox-mesh node invite ams-01 --label site=ams\n  nox-mesh node invite --count 20 --prefix web- --ttl 24h > tokens",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			names, err := inviteNames(args, count, prefix)
			if err != nil {
				return err
			}
			set := map[string]string{}
			for _, l := range labels {
				k, v, ok := strings.Cut(l, "=")
				if !ok {
					return fmt.Errorf("label %q is no key=value", l)
				}
				set[k] = v
			}
			return o.with(func(cmd *cobra.Command, _ []string, c *server.Client) error {
				all := server.InviteReply{Invites: []server.Invite{}}
				for len(names) > 0 {
					n := min(len(names), invitePage)
					r, err := c.Invite(cmd.Context(), server.InviteRequest{Nodes: names[:n], Labels: set, TTL: events.Duration(ttl), URL: url})
					if err != nil {
						return err
					}
					all.Invites, names = append(all.Invites, r.Invites...), names[n:]
					if !o.json {
						printInvites(cmd, r.Invites, count > 0)
					}
				}
				if o.json {
					return printJSON(cmd.OutOrStdout(), all)
				}
				return nil
			})(cmd, args)
		},
	}
	f := cmd.Flags()
	f.StringArrayVar(&labels, "label", nil, "key=value, may be repeated; rollouts select by labels (default: those that the name has)")
	f.DurationVar(&ttl, "ttl", time.Hour, "how long the token is good, 1m to 2160h")
	f.IntVar(&count, "count", 0, "print tokens for this many names")
	f.StringVar(&prefix, "prefix", "", "what names begin with that --count makes")
	f.StringVar(&url, "at", "", "where the machine reaches the mesh, like tls://mesh.example:4222 (default: what the server was told with --host, or finds out)")
	return o.jsonFlag(cmd)
}

func inviteNames(args []string, count int, prefix string) ([]string, error) {
	switch {
	case count == 0 && prefix == "" && len(args) == 1:
		return args, events.CheckNodeID(args[0])
	case len(args) > 0 || count <= 0 || prefix == "":
		return nil, errors.New("give one NAME, or both --count and --prefix")
	case count > 10_000:
		return nil, fmt.Errorf("%d tokens at once: ask for 10000 at most", count)
	}
	names := make([]string, count)
	for i := range names {
		names[i] = fmt.Sprintf("%s%0*d", prefix, len(fmt.Sprint(count)), i+1)
	}
	return names, events.CheckNodeID(names[0])
}

// printInvites prints tokens for people or, if there are many, for scripts;
// what else there is to say goes elsewhere.
func printInvites(cmd *cobra.Command, invites []server.Invite, many bool) {
	for _, inv := range invites {
		if many {
			fmt.Fprintf(cmd.OutOrStdout(), "%s %s\n", inv.Node, inv.Token)
		} else {
			fmt.Fprintln(cmd.OutOrStdout(), inv.Token)
		}
		if inv.Rejoin {
			fmt.Fprintf(cmd.ErrOrStderr(), "%s is enrolled: the machine that is, is let in no more once another joins with this token\n", inv.Node)
		}
	}
	first := invites[0]
	t, err := events.ParseToken(first.Token)
	if err != nil {
		return
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "good once, until %s, at %s; on the machine, as root: nox-mesh-host join TOKEN\n",
		first.Expires.UTC().Format("2006-01-02 15:04:05Z"), t.URL)
	if server.Local(t.URL) {
		fmt.Fprintln(cmd.ErrOrStderr(), "that address is this machine's own: for others, start the server with --listen 0.0.0.0:4222 (and --host NAME)")
	}
}

func newNodeRevoke(o *options) *cobra.Command {
	var reason string
	cmd := &cobra.Command{
		Use:   "revoke NAME",
		Short: "Shut a machine out: stolen, broken into, or not trusted any more",
		Long: `Shut a machine out. It is disconnected at once, and its key is let in no more;
unused tokens for its name are void. It stays in the fleet and in its
rollouts, where nobody hears of it: to take it out of those as well, give
nox-mesh node decommission.

What is installed on the machine stays there and runs on. A machine can join under
the name again, with a new token from nox-mesh node invite.`,
		Example: "  nox-mesh node revoke laptop-7 --reason stolen",
		Args:    cobra.ExactArgs(1),
		RunE: o.with(func(cmd *cobra.Command, args []string, c *server.Client) error {
			r, err := c.RevokeNode(cmd.Context(), server.RevokeRequest{Node: args[0], Reason: reason})
			switch {
			case err != nil:
				return err
			case o.json:
				return printJSON(cmd.OutOrStdout(), r)
			case r.Already:
				fmt.Fprintf(cmd.OutOrStdout(), "%s was revoked already\n", r.Node)
			default:
				fmt.Fprintf(cmd.OutOrStdout(), "%s is revoked: it is disconnected, and joins again with a new token only\n", r.Node)
			}
			return nil
		}),
	}
	cmd.Flags().StringVar(&reason, "reason", "", "why, for the record")
	return o.jsonFlag(cmd)
}
