package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"noxmesh/server"
)

func newRelease(o *options) *cobra.Command {
	var replace bool
	cmd := &cobra.Command{Use: "release", Short: "Add and list versions of the host package"}
	add := &cobra.Command{
		Use:   "add FILE.deb",
		Short: "Bring a package to the mesh",
		Long: `Bring a package of nox-mesh-host to the mesh. Name, version and architecture are
read from the package itself; size and checksum are recorded as an event.`,
		Args: cobra.ExactArgs(1),
		RunE: o.with(func(cmd *cobra.Command, args []string, c *server.Client) error {
			r, err := c.AddRelease(cmd.Context(), args[0], replace)
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
			fmt.Fprintf(cmd.OutOrStdout(), "%s %s for %s, %s, sha256 %s\nroll it out with nox-mesh rollout start %s\n",
				verb, r.Release.Version, r.Release.Architecture, byteSize(r.Release.Size), r.Release.SHA256, r.Release.Version)
			return nil
		}),
	}
	ls := &cobra.Command{
		Use:   "ls",
		Short: "List the releases and where they are",
		Args:  cobra.NoArgs,
		RunE: o.with(func(cmd *cobra.Command, _ []string, c *server.Client) error {
			list, err := c.Releases(cmd.Context())
			if err != nil {
				return err
			}
			if o.json {
				return printJSON(cmd.OutOrStdout(), list)
			}
			if len(list.Releases) == 0 {
				fmt.Fprintln(cmd.OutOrStdout(), "no release yet: add one with nox-mesh release add FILE.deb")
				return nil
			}
			t := newTable(cmd.OutOrStdout(), "VERSION", "ARCH", "SIZE", "ADDED", "DECLARED", "CONFIRMED", "ROLLED BACK", "SILENT", "SHA256")
			for _, r := range list.Releases {
				t.row(r.Version, r.Architecture, byteSize(r.Size), ago(&r.Added), r.Declared, r.Confirmed, r.RolledBack, r.Silent, r.SHA256[:12])
			}
			t.end()
			fmt.Fprintf(cmd.OutOrStdout(), "as of event %d; counts are nodes\n", list.EventSeq)
			return nil
		}),
	}
	add.Flags().BoolVar(&replace, "replace", false, "take a rebuilt package in the place of one of the same version")
	cmd.AddCommand(o.jsonFlag(add), o.jsonFlag(ls))
	return cmd
}
