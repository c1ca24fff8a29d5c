// Command nox-mesh-host is the root service on a node: it makes the machine
// what the mesh declares, and keeps the way back open.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

// version is set when the package is built, with -ldflags "-X main.version=1.2.3".
var version = "0.0.0-dev"

const (
	defaultConfigDir = "/etc/nox-mesh-host"
	defaultStateDir  = "/var/lib/mesh-host"
	pinFile          = "/etc/apt/preferences.d/nox-mesh-host-rolled-back"
	kitDir           = "/usr/lib/nox-mesh-host/kit"
	unitDir          = "/etc/systemd/system"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	err := command().ExecuteContext(ctx)
	if err != nil && !errors.Is(err, errNotWell) {
		fmt.Fprintln(os.Stderr, "nox-mesh-host:", err)
	}
	if err != nil {
		os.Exit(1)
	}
}

func command() *cobra.Command {
	root := &cobra.Command{
		Use:           "nox-mesh-host",
		Short:         "The mesh's service on this machine",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	var stateDir, configDir string
	root.PersistentFlags().StringVar(&stateDir, "state-dir", defaultStateDir, "where the host keeps what it knows")
	root.PersistentFlags().StringVar(&configDir, "config-dir", defaultConfigDir, "where joining leaves this node's identity")
	root.AddCommand(joinCommand(&configDir), runCommand(&stateDir, &configDir), statusCommand(&stateDir, &configDir), drillCommand(&stateDir), &cobra.Command{
		Use:   "version",
		Short: "Print the version of this program",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), version)
			return err
		},
	})
	return root
}
