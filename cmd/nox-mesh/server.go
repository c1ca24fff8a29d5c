package main

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/rs/zerolog"
	"github.com/spf13/cobra"

	"noxmesh/server"
)

func newServer(o *options) *cobra.Command {
	var (
		listen string
		pulse  time.Duration
	)
	cmd := &cobra.Command{
		Use:   "server",
		Short: "Run the mesh: broker, streams, stager and API in one process",
		Long: `Run the mesh. It keeps everything in one data directory and starts onto it
again with nothing lost. On the first start it makes the identity of the mesh
and leaves an operator's credential in the data directory.

SIGTERM or Ctrl-C stops it cleanly within 5 seconds.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			logger := zerolog.New(zerolog.ConsoleWriter{Out: os.Stderr, NoColor: true, TimeFormat: time.RFC3339}).
				With().Timestamp().Logger().Level(zerolog.InfoLevel)
			s, err := server.Start(cmd.Context(), server.Config{
				DataDir: o.dataDir, Listen: listen, Logger: logger, PulseInterval: pulse,
			})
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "nox-mesh %s listens on %s\ndata %s, operator's credential %s\n",
				version, s.URL(), o.dataDir, server.OperatorCredsFile(o.dataDir))
			select {
			case <-cmd.Context().Done():
			case <-s.Failed():
			}
			logger.Info().Msg("stopping")
			err = errors.Join(s.Err(), s.Stop())
			if err == nil {
				logger.Info().Msg("stopped")
			}
			return err
		},
	}
	cmd.Flags().StringVar(&listen, "listen", "127.0.0.1:4222", "HOST:PORT for nodes and operators; nodes on other machines need an address of this one")
	cmd.Flags().DurationVar(&pulse, "pulse", 5*time.Second, "how often the mesh notes that it listens; windows are counted in steps of it")
	return cmd
}
