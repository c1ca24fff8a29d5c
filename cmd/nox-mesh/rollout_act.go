package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"noxmesh/events"
	"noxmesh/rollout"
	"noxmesh/server"
)

// newRolloutAct fills in what the commands that act on one rollout share: the
// argument, --reason, --json. done words what was done.
func newRolloutAct(o *options, cmd *cobra.Command,
	act func(ctx context.Context, c *server.Client, id, reason string) (*rollout.Status, error),
	done func(s *rollout.Status) string,
) *cobra.Command {
	var reason string
	cmd.Args = cobra.ExactArgs(1)
	cmd.RunE = o.with(func(cmd *cobra.Command, args []string, c *server.Client) error {
		s, err := act(cmd.Context(), c, args[0], reason)
		if err != nil {
			return err
		}
		if o.json {
			return printJSON(cmd.OutOrStdout(), s)
		}
		fmt.Fprintf(cmd.OutOrStdout(), "rollout %s of %s is %s\n", s.ID, s.Version, done(s))
		return nil
	})
	cmd.Flags().StringVar(&reason, "reason", "", "why, for the record")
	return o.jsonFlag(cmd)
}

func newRolloutPause(o *options) *cobra.Command {
	return newRolloutAct(o, &cobra.Command{
		Use:   "pause ID|latest",
		Short: "Open no further batch until it is resumed",
		Long: `Pause a running rollout. No further batch is opened. The open one is watched on:
what its nodes report counts, and too many failures halt the rollout all the same.`,
		Example: "  nox-mesh rollout pause r7 --reason 'freeze over the weekend'",
	}, func(ctx context.Context, c *server.Client, id, reason string) (*rollout.Status, error) {
		return c.PauseRollout(ctx, id, reason)
	}, func(s *rollout.Status) string {
		return "paused: no further batch is opened, the open one is watched on\ngo on with nox-mesh rollout resume " + s.ID
	})
}

func newRolloutResume(o *options) *cobra.Command {
	var retry, leaveOut bool
	cmd := newRolloutAct(o, &cobra.Command{
		Use:   "resume ID|latest [--retry | --leave-out]",
		Short: "Let a paused or halted rollout go on",
		Long: `Let a rollout go on. A paused one just goes on. A halted one needs to be told what
becomes of the nodes that failed: --retry has them try the version again,
--leave-out lets them keep what they run. Either way what failed before is
accepted, and no longer counts against the rollout.`,
		Example: `  nox-mesh rollout resume r7
  nox-mesh rollout resume r7 --leave-out --reason 'two machines with full disks'`,
	}, func(ctx context.Context, c *server.Client, id, reason string) (*rollout.Status, error) {
		var mode events.ResumeMode
		switch {
		case retry && leaveOut:
			return nil, errors.New("--retry and --leave-out say two things about the nodes that failed: give one of them")
		case retry:
			mode = events.ResumeRetry
		case leaveOut:
			mode = events.ResumeLeaveOut
		}
		return c.ResumeRollout(ctx, id, mode, reason)
	}, func(s *rollout.Status) string {
		text := string(s.State)
		switch {
		case retry:
			text += " again: the nodes that failed try it once more"
		case leaveOut:
			text += " again: the nodes that failed keep what they run"
		default:
			text += " again"
		}
		return text + "\nfollow it with nox-mesh rollout watch " + s.ID
	})
	cmd.Flags().BoolVar(&retry, "retry", false, "the nodes that failed try the version again")
	cmd.Flags().BoolVar(&leaveOut, "leave-out", false, "the nodes that failed keep what they run")
	return cmd
}

func newRolloutAbort(o *options) *cobra.Command {
	return newRolloutAct(o, &cobra.Command{
		Use:   "abort ID|latest",
		Short: "End an open rollout; nodes keep what they run",
		Long: `End a running, paused or halted rollout. Nodes keep what they run. Those of an open
batch that have not applied the version yet get their previous declaration back.`,
		Example: "  nox-mesh rollout abort r7 --reason 'wrong version'",
	}, func(ctx context.Context, c *server.Client, id, reason string) (*rollout.Status, error) {
		return c.AbortRollout(ctx, id, reason)
	}, func(s *rollout.Status) string {
		text := "aborted: nothing more is declared, nodes keep what they run"
		if s.Batch > 0 {
			text += "\nnodes of an open batch that had not applied it yet get their previous declaration back: nox-mesh rollout status " + s.ID
		}
		return text
	})
}

func newRolloutRevert(o *options) *cobra.Command {
	return newRolloutAct(o, &cobra.Command{
		Use:   "revert ID|latest",
		Short: "End a rollout and give every node back what it had before",
		Long: `End a running, paused or halted rollout, and declare to every node that was told the
version the one it ran before. The mesh needs the packages of those versions.`,
		Example: "  nox-mesh rollout revert r7 --reason 'loses data, see INC-1234'",
	}, func(ctx context.Context, c *server.Client, id, reason string) (*rollout.Status, error) {
		return c.RevertRollout(ctx, id, reason)
	}, func(s *rollout.Status) string {
		return "reverted: every node that was told to run it gets back what it had before\nsee how far that is with nox-mesh rollout status " + s.ID
	})
}
