package main

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/rs/zerolog"
	"github.com/spf13/cobra"

	"noxmesh/server"
)

func newServer(o *options) *cobra.Command {
	var (
		listen      string
		hosts       []string
		certs       server.Certificates
		pulse       time.Duration
		newOperator bool
		metrics     string
	)
	cmd := &cobra.Command{
		Use:   "server",
		Short: "Run the mesh: broker, streams, stager and API in one process",
		Long: `Run the mesh. It keeps everything in one data directory and starts onto it
again with nothing lost. On the first start it makes the identity of the mesh
and leaves an operator's credential in the data directory.

All connections are TLS 1.3. The mesh makes a CA and a certificate for the names
and addresses of this machine; --host adds those that it does not know of, like
the name in DNS. Nodes learn the CA when they join and trust no other, so certificates
of your own are best given from the first start on.

SIGTERM or Ctrl-C stops it cleanly within 5 seconds.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			logger := zerolog.New(zerolog.ConsoleWriter{Out: os.Stderr, NoColor: true, TimeFormat: time.RFC3339}).
				With().Timestamp().Logger().Level(zerolog.InfoLevel)
			s, err := server.Start(cmd.Context(), server.Config{
				DataDir: o.dataDir, Listen: listen, Hosts: hosts, Certificates: certs, Logger: logger, PulseInterval: pulse,
				NewOperator: newOperator, Metrics: metrics,
			})
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "nox-mesh %s listens on %s; tokens for nodes name %s\ndata %s, operator's credential %s, CA %s\n",
				version, s.URL(), s.OutsideURL(), o.dataDir, server.OperatorCredsFile(o.dataDir), server.CAFile(o.dataDir))
			notify := func(state string) {
				if _, err := daemon.SdNotify(false, state); err != nil {
					logger.Warn().Err(err).Msg("telling the service manager")
				}
			}
			notify(daemon.SdNotifyReady)
			select {
			case <-cmd.Context().Done():
			case <-s.Failed():
			}
			logger.Info().Msg("stopping")
			notify(daemon.SdNotifyStopping)
			err = errors.Join(s.Err(), s.Stop())
			if err == nil {
				logger.Info().Msg("stopped")
			}
			return err
		},
	}
	cmd.Flags().StringArrayVar(&hosts, "host", nil, "name or address under which nodes find this server, may be repeated; tokens name the first")
	cmd.Flags().StringVar(&certs.Cert, "tls-cert", "", "own certificate of the server, PEM, with what lies between it and the CA; read again when it changes")
	cmd.Flags().StringVar(&certs.Key, "tls-key", "", "key of --tls-cert")
	cmd.Flags().StringVar(&certs.CA, "tls-ca", "", "CA of --tls-cert, which nodes and operators then trust")
	cmd.Flags().BoolVar(&newOperator, "new-operator", false, "make DATA-DIR/operator.creds anew and shut the former one out, when it was lost or stolen")
	cmd.Flags().StringVar(&listen, "listen", "127.0.0.1:4222", "HOST:PORT for nodes and operators; nodes on other machines need an address of this one")
	cmd.Flags().StringVar(&metrics, "metrics", "", "HOST:PORT at which Prometheus may ask for /metrics; anybody who reaches it may")
	cmd.Flags().DurationVar(&pulse, "pulse", 5*time.Second, "how often the mesh notes that it listens; windows are counted in steps of it")
	return cmd
}
