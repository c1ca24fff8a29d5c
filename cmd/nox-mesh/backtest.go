package main

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"noxmesh/events"
	"noxmesh/projections"
	"noxmesh/rollout"
	"noxmesh/server"
)

func newRolloutBacktest(o *options) *cobra.Command {
	var (
		q                      server.BacktestRequest
		window, soak, presence time.Duration
	)
	cmd := &cobra.Command{
		Use:   "backtest [ID|latest]",
		Short: "Replay a recorded rollout under another policy",
		Long: `Replay a rollout from the log under another policy, and say where it would have
stopped and how many nodes that would have spared. Batches are opened as they
were; what is decided anew is whether and when the rollout would have halted.
What is not given stays as it was. Nothing is written.`,
		Example: "  nox-mesh rollout backtest r7 --max-failed 1% --window 5m",
		Args:    cobra.MaximumNArgs(1),
		RunE: o.with(func(cmd *cobra.Command, args []string, c *server.Client) error {
			q.ID = idOrLatest(args)
			q.Window, q.Soak, q.Presence = events.Duration(window), events.Duration(soak), events.Duration(presence)
			r, err := c.Backtest(cmd.Context(), q)
			if err != nil {
				return err
			}
			if o.json {
				return printJSON(cmd.OutOrStdout(), r)
			}
			printBacktest(cmd.OutOrStdout(), r)
			return nil
		}),
	}
	f := cmd.Flags()
	f.StringVar(&q.MaxFailed, "max-failed", "", "failures tolerated in a later batch: a number, a percentage like 5%, or auto")
	f.DurationVar(&window, "window", 0, "how long a batch may stay unheard")
	f.DurationVar(&soak, "soak", 0, "how long a node must keep beating on the new version")
	f.DurationVar(&presence, "presence", 0, "how lately a node must have been heard to count as there")
	return o.jsonFlag(cmd)
}

func printBacktest(out io.Writer, r *rollout.BacktestResult) {
	fmt.Fprintf(out, "rollout %s of %s over %s, tried with %s\n", r.Rollout, r.Version, plural(r.Cohort, "node"), policyText(r.Policy))
	t := newTable(out, "  ", "STATE", "AFTER", "BATCH", "DECLARED", "DIAGNOSIS")
	for _, line := range []struct {
		name string
		end  rollout.BacktestEnd
	}{{"  recorded", r.Recorded}, {"  tried", r.Tried}} {
		t.row(line.name, line.end.State, time.Duration(line.end.After).Round(time.Second), line.end.Batch, line.end.Declared, dash(string(line.end.Diagnosis)))
	}
	t.end()
	if r.Tried.Reason != "" {
		field(out, "reason", r.Tried.Reason)
	}
	switch {
	case r.Spared > 0:
		field(out, "spared", fmt.Sprintf("%s would not have been told", plural(r.Spared, "node")))
	case r.Spared == 0 && r.Tried.State == projections.Halted:
		field(out, "spared", "none: it would have stopped with as many nodes told")
	case r.Spared == 0:
		field(out, "spared", "none: it would not have stopped earlier")
	}
	for _, note := range r.Notes {
		field(out, "note", strings.ToUpper(note[:1])+note[1:])
	}
}
