package main

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"noxmesh/projections"
	"noxmesh/server"
)

func newRelease(o *options) *cobra.Command {
	cmd := &cobra.Command{Use: "release", Short: "Add, list, hold and lift versions of the host package"}
	cmd.AddCommand(newReleaseAdd(o), newReleaseList(o), newReleaseHold(o), newReleaseLift(o))
	return cmd
}

func newReleaseAdd(o *options) *cobra.Command {
	var replace bool
	var keyFile string
	cmd := &cobra.Command{
		Use:   "add FILE.deb",
		Short: "Sign a package and bring it to the mesh",
		Long: `Sign a package of nox-mesh-host with the release key and bring it to the mesh. Name,
version and architecture are read from the package itself; size, checksum and
signature are recorded as an event. Nodes install nothing that the release key
has not signed.

The same package may be added again, to have it signed by a new release key.`,
		Example: "  nox-mesh release add nox-mesh-host_1.2.3_amd64.deb --sign-key ~/keys/release.key",
		Args:    cobra.ExactArgs(1),
		RunE: o.with(func(cmd *cobra.Command, args []string, c *server.Client) error {
			key, err := o.releaseKey(keyFile)
			if err != nil {
				return err
			}
			r, err := c.AddRelease(cmd.Context(), args[0], key, replace)
			if err != nil {
				return err
			}
			if o.json {
				return printJSON(cmd.OutOrStdout(), r)
			}
			verb := "added"
			if r.Already {
				verb = "there already:"
			}
			if r.Signed {
				verb = "there already, signed anew:"
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s %s for %s, %s, sha256 %s\n",
				verb, r.Release.Version, r.Release.Architecture, byteSize(r.Release.Size), r.Release.SHA256)
			if r.Held != "" {
				fmt.Fprintf(cmd.OutOrStdout(), "it is held (%s): lift the hold with nox-mesh release lift %s\n", r.Held, r.Release.Version)
			} else {
				fmt.Fprintf(cmd.OutOrStdout(), "roll it out with nox-mesh rollout start %s\n", r.Release.Version)
			}
			return nil
		}),
	}
	cmd.Flags().StringVar(&keyFile, "sign-key", "", "the release key (default DATA-DIR/release.key)")
	cmd.Flags().BoolVar(&replace, "replace", false, "take a rebuilt package in the place of one of the same version")
	return o.jsonFlag(cmd)
}

func newReleaseList(o *options) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "List the releases and where they are, or were at a moment",
		Args:  cobra.NoArgs,
	}
	o.withAt(cmd, func(cmd *cobra.Command, _ []string, c *server.Client, at *time.Time) error {
		list, err := c.ReleasesAt(cmd.Context(), at)
		if err != nil {
			return err
		}
		out := cmd.OutOrStdout()
		switch {
		case o.json:
			return printJSON(out, list)
		case len(list.Releases) == 0 && at != nil:
			fmt.Fprintln(out, "there was no release")
			printPast(out, list.Past)
			return nil
		case len(list.Releases) == 0:
			fmt.Fprintln(out, "no release yet: add one with nox-mesh release add FILE.deb")
			return nil
		}
		printReleases(out, list)
		return nil
	})
	return o.jsonFlag(cmd)
}

func printReleases(out io.Writer, list server.ReleaseList) {
	now := momentOf(list.Past)
	t := newTable(out, "VERSION", "ARCH", "STATE", "SIZE", "ADDED", "DECLARED", "CONFIRMED", "ROLLED BACK", "SILENT", "SHA256")
	for _, r := range list.Releases {
		state := "-"
		switch {
		case r.Held != "":
			state = "HELD"
		case r.Unsigned != "":
			state = "UNSIGNED"
		}
		t.row(r.Version, r.Architecture, state, byteSize(r.Size), agoFrom(&r.Added, now), r.Declared, r.Confirmed, r.RolledBack, r.Silent, r.SHA256[:8])
	}
	t.end()
	printHeld(out, list.Releases)
	for _, r := range list.Releases {
		if r.Unsigned != "" {
			fmt.Fprintf(out, "nodes would refuse %s for %s by the release key in force: %s; add its package again with --sign-key FILE\n", r.Version, r.Architecture, r.Unsigned)
		}
	}
	fmt.Fprintf(out, "as of event %d; counts are nodes\n", list.EventSeq)
	printPast(out, list.Past)
}

// printHeld says why versions are held, once for each version and reason.
func printHeld(out io.Writer, list []projections.ReleaseView) {
	said := map[[2]string]bool{}
	for _, r := range list {
		if key := [2]string{r.Version, r.Held}; r.Held != "" && !said[key] {
			said[key] = true
			fmt.Fprintf(out, "%s is held: %s\n", r.Version, r.Held)
		}
	}
}

func newReleaseHold(o *options) *cobra.Command {
	var reason string
	cmd := &cobra.Command{
		Use:   "hold VERSION --reason TEXT",
		Short: "Let nobody be declared a version any more",
		Long: `Hold a version, for all its architectures: no rollout of it starts, and one that
runs halts. Nodes that run it already keep it: take them back with nox-mesh rollout
revert while its rollout is open, or roll the former version out. The mesh holds a
version by itself when too many nodes roll it back after its rollout completed.`,
		Example: "  nox-mesh release hold 1.2.3 --reason 'leaks memory, see INC-1234'",
		Args:    cobra.ExactArgs(1),
		RunE: o.with(func(cmd *cobra.Command, args []string, c *server.Client) error {
			r, err := c.Hold(cmd.Context(), args[0], reason)
			if err != nil {
				return err
			}
			out := cmd.OutOrStdout()
			if o.json {
				return printJSON(out, r)
			}
			if len(r.Changed) > 0 {
				fmt.Fprintf(out, "%s is held for %s: nobody is declared it until nox-mesh release lift %s\n", r.Version, strings.Join(r.Changed, ", "), r.Version)
			}
			if len(r.Already) > 0 {
				fmt.Fprintf(out, "%s was held already for %s\n", r.Version, strings.Join(r.Already, ", "))
			}
			for _, id := range r.Rollouts {
				fmt.Fprintf(out, "rollout %s of it is open and cannot go on meanwhile: nox-mesh rollout status %s\n", id, id)
			}
			return nil
		}),
	}
	cmd.Flags().StringVar(&reason, "reason", "", "why, for those who find it held")
	return o.jsonFlag(cmd)
}

func newReleaseLift(o *options) *cobra.Command {
	var reason string
	cmd := &cobra.Command{
		Use:   "lift VERSION",
		Short: "Lift the hold on a version",
		Long: `Lift the hold on a version, for all its architectures. It may be declared again: to
nodes of a completed rollout that were not heard in time, as they come back, and
by further rollouts. A rollout that halted goes on only when it is resumed.`,
		Example: "  nox-mesh release lift 1.2.3 --reason 'was the proxy, not the host'",
		Args:    cobra.ExactArgs(1),
		RunE: o.with(func(cmd *cobra.Command, args []string, c *server.Client) error {
			r, err := c.Lift(cmd.Context(), args[0], reason)
			if err != nil {
				return err
			}
			out := cmd.OutOrStdout()
			if o.json {
				return printJSON(out, r)
			}
			if len(r.Changed) == 0 {
				fmt.Fprintf(out, "%s was not held\n", r.Version)
				return nil
			}
			fmt.Fprintf(out, "the hold on %s is lifted for %s: it may be declared again\n", r.Version, strings.Join(r.Changed, ", "))
			for _, id := range r.Rollouts {
				fmt.Fprintf(out, "rollout %s of it is open: nox-mesh rollout status %s shows how to go on\n", id, id)
			}
			return nil
		}),
	}
	cmd.Flags().StringVar(&reason, "reason", "", "why, for the record")
	return o.jsonFlag(cmd)
}
