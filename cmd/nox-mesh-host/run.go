package main

import (
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/rs/zerolog"
	"github.com/spf13/cobra"

	"noxmesh/events"
	"noxmesh/nodeagent"
)

func runCommand(stateDir, configDir *string) *cobra.Command {
	var url string
	var heartbeat time.Duration
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Run the host; the service manager does this",
		Long: "Run the host: apply the newest declaration, confirm this version, then link to the mesh and follow it.\n" +
			"It ends with status 0 after it has installed another version of itself, for the service manager to start.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			log := zerolog.New(cmd.ErrOrStderr()).With().Timestamp().Logger()
			watchdogEvery, err := daemon.SdWatchdogEnabled(false)
			if err != nil {
				return fmt.Errorf("WATCHDOG_USEC of the service manager: %w", err)
			}
			notify := func(state string) {
				if _, err := daemon.SdNotify(false, state); err != nil {
					log.Warn().Err(err).Msg("telling the service manager")
				}
			}
			// A join that a power cut ended half way is ended now. What it had
			// written counts more than what the service manager has read.
			if joined, err := nodeagent.SettleJoin(*configDir); err != nil {
				log.Error().Err(err).Msg("ending a join that was cut off; the former identity is used")
			} else if joined != "" && !cmd.Flags().Changed("url") {
				url = joined
			}
			// dpkg's log is opened by the service manager, elsewhere.
			dir, err := filepath.Abs(*stateDir)
			if err != nil {
				return fmt.Errorf("state directory: %w", err)
			}
			// The kit's scripts look into the usual place, so a host that works
			// elsewhere, as when one is tried out, keeps its hands off the units.
			kit := ""
			if dir == defaultStateDir {
				kit = kitDir
			}
			agent, err := nodeagent.New(nodeagent.Config{
				KitDir: kit, UnitDir: unitDir,
				StateDir: dir, URL: url, Version: version, PinFile: pinFile,
				CredsFile: nodeagent.NodeCredsFile(*configDir), DoorFile: nodeagent.DoorCredsFile(*configDir),
				CAFile: nodeagent.CAFile(*configDir), PinsFile: nodeagent.PinsFile(*configDir),
				Timings:       nodeagent.Timings{Heartbeat: heartbeat},
				Packages:      nodeagent.Dpkg{Log: filepath.Join(dir, "install.log")},
				Supervisor:    nodeagent.Systemd{},
				Logger:        log,
				Ready:         func() { notify(daemon.SdNotifyReady) },
				Status:        func(line string) { notify("STATUS=" + events.Printable(line, 300)) },
				Watchdog:      func() { notify(daemon.SdNotifyWatchdog) },
				WatchdogEvery: watchdogEvery / 3,
			})
			if err != nil {
				return err
			}
			exit, err := agent.Run(cmd.Context())
			if err != nil {
				return err
			}
			notify(daemon.SdNotifyStopping)
			if exit == nodeagent.ExitUpgraded {
				log.Info().Msg("another version is installed: ending so that it is started")
			} else {
				log.Info().Msg("stopped")
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&url, "url", os.Getenv("NOX_MESH_URL"), "address of the mesh, like tls://mesh.example:4222 (NOX_MESH_URL)")
	cmd.Flags().DurationVar(&heartbeat, "heartbeat", 15*time.Second, "time between heartbeats")
	return cmd
}
