package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"

	"github.com/spf13/cobra"

	"noxmesh/nodeagent"
)

const hostUnit = "nox-mesh-host.service"

func joinCommand(configDir *string) *cobra.Command {
	var noStart bool
	cmd := &cobra.Command{
		Use:   "join TOKEN",
		Short: "Make this machine a node of a mesh, with a token from \"nox-mesh node invite\"",
		Long: `Make this machine a node of a mesh: make its key, trade the token for its
identity, write that to the configuration directory and start the service. The
key never leaves the machine. The token says which mesh to trust, and is good
once.

"-" reads the token from standard input, where no other user of the machine sees
it. A machine that joins again under another identity loses the one it had.

If the power or the link fails on the way, give the command again with the same
token.`,
		Example: "  nox-mesh-host join - < token",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			token := args[0]
			if token == "-" {
				// The last word: a line of many invites has the name before it.
				line, err := bufio.NewReader(io.LimitReader(cmd.InOrStdin(), 1<<16)).ReadString('\n')
				if err != nil && !errors.Is(err, io.EOF) {
					return fmt.Errorf("reading the token: %w", err)
				}
				words := strings.Fields(line)
				if len(words) == 0 {
					return errors.New("there is no token on standard input")
				}
				token = words[len(words)-1]
			}
			// Before the token is used up.
			if err := mayJoin(*configDir, noStart); err != nil {
				return err
			}
			joined, err := nodeagent.Join(cmd.Context(), nodeagent.JoinConfig{Dir: *configDir, Token: token})
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "joined %s as node %s\n", joined.URL, joined.Node)
			if noStart {
				fmt.Fprintf(cmd.OutOrStdout(), "the service was left alone; to start it: systemctl enable --now %s\n", hostUnit)
				return nil
			}
			if err := startHost(cmd.Context()); err != nil {
				return fmt.Errorf("the machine has joined, but the service does not start: %w: see systemctl status %s; the token is used up and not needed any more", err, hostUnit)
			}
			fmt.Fprintln(cmd.OutOrStdout(), "the service runs; nox-mesh-host status says how it is")
			return nil
		},
	}
	cmd.Flags().BoolVar(&noStart, "no-start", false, "leave the service alone, as when an image is made")
	return cmd
}

func mayJoin(configDir string, noStart bool) error {
	if os.Geteuid() != 0 && (configDir == defaultConfigDir || !noStart) {
		return errors.New("joining writes to " + configDir + " and starts a service: run it as root (or, to try it out, with --config-dir and --no-start)")
	}
	if noStart {
		return nil
	}
	if _, err := os.Stat("/run/systemd/system"); err != nil {
		return errors.New("no systemd runs here, so the service could not be started: join with --no-start where an image is made, or on the machine once it is up")
	}
	if out, err := exec.Command("systemctl", "cat", hostUnit).CombinedOutput(); err != nil {
		return fmt.Errorf("%s is not installed here (%s): install the package nox-mesh-host first", hostUnit, strings.TrimSpace(string(out)))
	}
	return nil
}

// startHost starts the service, also if it runs, with the new identity. Manual
// restarts count as starts, three of which would have a healthy host rolled
// back; so the count begins anew.
func startHost(ctx context.Context) error {
	for _, args := range [][]string{{"enable", hostUnit}, {"reset-failed", hostUnit}, {"restart", hostUnit}} {
		out, err := exec.CommandContext(ctx, "systemctl", args...).CombinedOutput()
		if err != nil && args[0] != "reset-failed" { // which fails for a unit that never ran
			return fmt.Errorf("systemctl %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(string(out)))
		}
	}
	return nil
}
