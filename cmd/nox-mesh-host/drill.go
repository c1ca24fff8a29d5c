package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"runtime"
	"time"

	"github.com/spf13/cobra"

	"noxmesh/nodeagent"
)

func drillCommand(stateDir *string) *cobra.Command {
	return &cobra.Command{
		Use:   "drill",
		Short: "Rehearse the rollback; exit status 0 only if this machine could roll back",
		Long: "Rehearse the rollback to the last confirmed version, changing nothing: is it armed, is the package of that\n" +
			"version kept here and whole, and would dpkg install it. The host does the same once a day.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := context.WithTimeout(cmd.Context(), 2*time.Minute)
			defer cancel()
			s := nodeagent.LookAtState(*stateDir)
			d, err := nodeagent.Drill(ctx, s, nodeagent.DebianArchitecture(runtime.GOARCH), nodeagent.Dpkg{})
			if err != nil {
				return fmt.Errorf("nothing was found out, try again later: %w", err)
			}
			out := cmd.OutOrStdout()
			for _, line := range d.Checked {
				fmt.Fprintln(out, "ok    ", line)
			}
			// The running host tells the mesh of it with its next heartbeat.
			if err := s.KeepDrill(d); err != nil && !errors.Is(err, fs.ErrNotExist) {
				fmt.Fprintln(out, "      the result cannot be kept, so the mesh does not hear of it:", err)
			}
			for _, line := range s.Trouble() {
				fmt.Fprintln(out, "note  ", line)
			}
			if d.OK {
				fmt.Fprintf(out, "\nThis machine could roll back to %s.\n", d.Version)
				return nil
			}
			fmt.Fprintf(out, "FAILED %s\n\nThis machine could not roll back.\n", d.Error)
			for _, line := range d.Next {
				fmt.Fprintln(out, "  next:", line)
			}
			return errNotWell
		},
	}
}
