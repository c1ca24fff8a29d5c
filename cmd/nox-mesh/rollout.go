package main

import (
	"context"
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

func newRollout(o *options) *cobra.Command {
	cmd := &cobra.Command{Use: "rollout", Short: "Start, watch and end rollouts"}
	cmd.AddCommand(newRolloutStart(o), newRolloutStatus(o), newRolloutList(o), newRolloutWatch(o), newRolloutAbort(o))
	return cmd
}

func newRolloutStart(o *options) *cobra.Command {
	var (
		batches                string
		window, soak, presence time.Duration
		q                      server.StartRequest
	)
	d := rollout.DefaultPolicy()
	cmd := &cobra.Command{
		Use:   "start VERSION",
		Short: "Take nodes to a release, batch by batch",
		Long: `Start a rollout. The first batch are the canaries. Each entry of --batches is how
many nodes are declared in all once that batch is open; the last must be 100%.
A batch passes when every node of it was heard on the new version and its
process kept beating for the soak; on a failure the rollout halts and reports.`,
		Example: "  nox-mesh rollout start 1.2.3 --batches 2,25%,100% --window 10m --select site=ams",
		Args:    cobra.ExactArgs(1),
		RunE: o.with(func(cmd *cobra.Command, args []string, c *server.Client) error {
			q.Version = args[0]
			q.Policy = events.Policy{
				Batches: strings.Split(batches, ","),
				Window:  events.Duration(window), Soak: events.Duration(soak), Presence: events.Duration(presence),
			}
			if window <= 0 {
				return fmt.Errorf("window %s is not positive: give one like --window 10m", window)
			}
			s, err := c.StartRollout(cmd.Context(), q)
			if err != nil {
				return err
			}
			if o.json {
				return printJSON(cmd.OutOrStdout(), s)
			}
			fmt.Fprintf(cmd.OutOrStdout(), "rollout %s of %s over %s started\nfollow it with nox-mesh rollout watch %s\n",
				s.ID, s.Version, plural(s.Cohort, "node"), s.ID)
			return nil
		}),
	}
	f := cmd.Flags()
	f.StringVar(&batches, "batches", strings.Join(d.Batches, ","), "nodes declared in all with each batch, numbers or percentages")
	f.DurationVar(&window, "window", time.Duration(d.Window), "how long a batch may stay unheard; only time in which the mesh listens counts")
	f.DurationVar(&soak, "soak", 0, "how long a node must keep beating on the new version (default 1m, at most half the window)")
	f.DurationVar(&presence, "presence", time.Duration(d.Presence), "how lately a node must have been heard to be chosen")
	f.StringVar(&q.Selector, "select", "", "only nodes with these labels, key=value[,key=value]")
	f.Uint64Var(&q.Seed, "seed", 0, "seed of the choice of nodes (default random)")
	f.BoolVar(&q.Retry, "retry", false, "also where the version was rolled back before: nodes try it again")
	return o.jsonFlag(cmd)
}

func newRolloutStatus(o *options) *cobra.Command {
	return o.jsonFlag(&cobra.Command{
		Use:   "status [ID|latest]",
		Short: "Show how a rollout stands and why",
		Args:  cobra.MaximumNArgs(1),
		RunE: o.with(func(cmd *cobra.Command, args []string, c *server.Client) error {
			s, err := c.Rollout(cmd.Context(), idOrLatest(args))
			if err != nil {
				return err
			}
			if o.json {
				return printJSON(cmd.OutOrStdout(), s)
			}
			printStatus(cmd.OutOrStdout(), s)
			return nil
		}),
	})
}

func idOrLatest(args []string) string {
	if len(args) == 1 {
		return args[0]
	}
	return "latest"
}

func newRolloutList(o *options) *cobra.Command {
	return o.jsonFlag(&cobra.Command{
		Use:   "ls",
		Short: "List all rollouts",
		Args:  cobra.NoArgs,
		RunE: o.with(func(cmd *cobra.Command, _ []string, c *server.Client) error {
			list, err := c.Rollouts(cmd.Context())
			if err != nil {
				return err
			}
			if o.json {
				return printJSON(cmd.OutOrStdout(), list)
			}
			if len(list.Rollouts) == 0 {
				fmt.Fprintln(cmd.OutOrStdout(), "no rollout yet: start one with nox-mesh rollout start VERSION")
				return nil
			}
			t := newTable(cmd.OutOrStdout(), "ID", "VERSION", "STATE", "STARTED", "BY", "NODES", "NOTE")
			for _, s := range list.Rollouts {
				t.row(s.ID, s.Version, s.State, ago(&s.Started), s.Actor, fmt.Sprintf("%d of %d", s.Counts[rollout.Passed], s.Cohort), dash(cut(s.Reason, 60)))
			}
			t.end()
			fmt.Fprintf(cmd.OutOrStdout(), "as of event %d; NODES are those that passed\n", list.EventSeq)
			return nil
		}),
	})
}

func newRolloutAbort(o *options) *cobra.Command {
	var reason string
	cmd := &cobra.Command{
		Use:   "abort ID",
		Short: "End a running or halted rollout; nodes keep what they run, and what was not applied yet is taken back",
		Args:  cobra.ExactArgs(1),
		RunE: o.with(func(cmd *cobra.Command, args []string, c *server.Client) error {
			s, err := c.AbortRollout(cmd.Context(), args[0], reason)
			if err != nil {
				return err
			}
			if o.json {
				return printJSON(cmd.OutOrStdout(), s)
			}
			fmt.Fprintf(cmd.OutOrStdout(), "rollout %s of %s is aborted: nothing more is declared, nodes keep what they run\n", s.ID, s.Version)
			if s.Batch > 0 {
				fmt.Fprintf(cmd.OutOrStdout(), "nodes of an open batch that had not applied it yet get their previous declaration back: nox-mesh rollout status %s\n", s.ID)
			}
			return nil
		}),
	}
	cmd.Flags().StringVar(&reason, "reason", "", "why, for the record")
	return o.jsonFlag(cmd)
}

// outcomes in the order in which people want to read them.
var outcomes = []rollout.Outcome{
	rollout.Passed, rollout.Waiting, rollout.Outcome(events.RolledBack), rollout.Outcome(events.Unstable),
	rollout.Outcome(events.NotApplied), rollout.Outcome(events.Silent), rollout.Recalled, rollout.Undeclared,
}

func countText(s *rollout.Status) string {
	var parts []string
	for _, o := range outcomes {
		if n := s.Counts[o]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, strings.ReplaceAll(string(o), "-", " ")))
		}
	}
	return strings.Join(parts, ", ")
}

// printStatus is the report of a rollout: what, how far, why, what to do next.
func printStatus(out io.Writer, s *rollout.Status) {
	fmt.Fprintf(out, "rollout %s of %s: %s\n", s.ID, s.Version, strings.ToUpper(string(s.State)))
	fmt.Fprintf(out, "  started   %s by %s, batches %s, window %s, soak %s\n", ago(&s.Started), s.Actor,
		strings.Join(s.Policy.Batches, ","), s.Policy.Window, s.Policy.Soak)
	fmt.Fprintf(out, "  progress  batch %d of %d, %d of %s declared: %s\n", s.Batch, s.Batches, s.Declared, plural(s.Cohort, "node"), countText(s))
	if s.Reason != "" {
		fmt.Fprintf(out, "  reason    %s\n", s.Reason)
	}
	if s.Diagnosis != "" {
		fmt.Fprintf(out, "  diagnosis %s\n", s.Diagnosis)
	}
	for i, w := range s.Waiting {
		if i == 5 {
			fmt.Fprintf(out, "            and %d more\n", len(s.Waiting)-i)
			break
		}
		fmt.Fprintf(out, "  waiting   %s\n", w)
	}
	if s.Batch > 0 {
		t := newTable(out, "  NODE", "BATCH", "OUTCOME", "DETAIL")
		for _, n := range s.Nodes {
			if n.Batch > 0 && (n.Outcome != rollout.Passed || s.Cohort <= 40) {
				t.row("  "+n.Node, n.Batch, n.Outcome, dash(cut(n.Detail, 90)))
			}
		}
		t.end()
	}
	switch s.State {
	case projections.Halted:
		fmt.Fprintf(out, "  next      look at what happened: nox-mesh log --rollout %s; nothing more is declared.\n", s.ID)
		fmt.Fprintf(out, "            Then end it with nox-mesh rollout abort %s, and start a fixed version;\n", s.ID)
		fmt.Fprintf(out, "            the same one again, where it was rolled back, with nox-mesh rollout start %s --retry.\n", s.Version)
	case projections.Completed:
		if n := s.Counts[rollout.Undeclared]; n > 0 {
			fmt.Fprintf(out, "  next      %s were not heard in time and still run what they ran; start %s again when they are back.\n", plural(n, "node"), s.Version)
		}
	}
	fmt.Fprintf(out, "  as of event %d and heartbeat %d\n", s.EventSeq, s.HeartbeatSeq)
}

const watchInterval = 500 * time.Millisecond

func newRolloutWatch(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "watch [ID|latest]",
		Short: "Follow a rollout until it ends; exit code 1 if it did not complete",
		Args:  cobra.MaximumNArgs(1),
		RunE: o.with(func(cmd *cobra.Command, args []string, c *server.Client) error {
			s, err := watch(cmd.Context(), cmd.OutOrStdout(), c, idOrLatest(args))
			if err != nil {
				return err
			}
			printStatus(cmd.OutOrStdout(), s)
			if s.State != projections.Completed {
				return exitCode(1)
			}
			return nil
		}),
	}
}

// watch prints what changes until the rollout ends.
func watch(ctx context.Context, out io.Writer, c *server.Client, id string) (*rollout.Status, error) {
	tick := time.NewTicker(watchInterval)
	defer tick.Stop()
	last := map[string]rollout.Outcome{}
	var line string
	for {
		s, err := c.Rollout(ctx, id)
		if err != nil {
			return nil, err
		}
		id = s.ID // "latest" must not change under way
		for _, n := range s.Nodes {
			if n.Outcome != last[n.Node] && n.Batch > 0 {
				fmt.Fprintf(out, "%s  %s: %s %s\n", time.Now().Format(time.TimeOnly), n.Node, n.Outcome, n.Detail)
				last[n.Node] = n.Outcome
			}
		}
		now := fmt.Sprintf("batch %d of %d, %s", s.Batch, s.Batches, countText(s))
		if len(s.Waiting) > 0 && s.Counts[rollout.Waiting] == 0 {
			now += "; waiting: " + s.Waiting[0]
		}
		if now != line {
			fmt.Fprintf(out, "%s  %s\n", time.Now().Format(time.TimeOnly), now)
			line = now
		}
		if s.State != projections.Running {
			return s, nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil, exitCode(130)
		}
	}
}
