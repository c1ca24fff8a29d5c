package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"noxmesh/events"
	"noxmesh/projections"
	"noxmesh/rollout"
	"noxmesh/server"
)

func newRollout(o *options) *cobra.Command {
	cmd := &cobra.Command{Use: "rollout", Short: "Start, watch, pause and end rollouts"}
	cmd.AddCommand(newRolloutStart(o), newRolloutStatus(o), newRolloutList(o), newRolloutWatch(o),
		newRolloutPause(o), newRolloutResume(o), newRolloutAbort(o), newRolloutRevert(o), newRolloutBacktest(o))
	return cmd
}

const startHelp = `Start a rollout. The first batch are the canaries: any failure among them halts
it. Each entry of --batches is how many nodes are declared in all once that batch
is open, as a number or a percentage; the last must be 100%. A batch passes when
its nodes were heard on the new version and their processes kept beating for the
soak; with more failures than --max-failed the rollout halts and reports.

--select takes labels and what nodes say of themselves: node, arch, os, kernel,
version (the one that runs). All the parts must hold:

  site=ams,os!=windows      equal, not equal
  site in (ams,fra)         one of; also notin
  rack,!laptop              has the label, has it not

--max-failed is for the batches after the canaries: a number of nodes, a percentage
of the batch, or auto, which halts when more fail than machines do by themselves,
measured on the nodes that were told nothing.

--dry-run prints the batches that would be opened now and starts nothing. Their
nodes are chosen at random among those heard lately; --seed repeats a choice.`

func newRolloutStart(o *options) *cobra.Command {
	var (
		batches                string
		window, soak, presence time.Duration
		q                      server.StartRequest
		dryRun                 bool
	)
	d := rollout.DefaultPolicy()
	cmd := &cobra.Command{
		Use:   "start VERSION",
		Short: "Take nodes to a release, batch by batch",
		Long:  startHelp,
		Example: `  nox-mesh rollout start 1.2.3 --batches 2,25%,100% --window 10m --select site=ams
  nox-mesh rollout start 1.2.3 --select 'site in (ams,fra),os!=windows' --dry-run
  nox-mesh rollout start 1.2.3 --max-failed 5%`,
		Args: cobra.ExactArgs(1),
		RunE: o.with(func(cmd *cobra.Command, args []string, c *server.Client) error {
			q.Version = args[0]
			q.Policy = events.Policy{
				Batches: strings.Split(batches, ","),
				Window:  events.Duration(window), Soak: events.Duration(soak), Presence: events.Duration(presence),
			}
			if window <= 0 {
				return fmt.Errorf("window %s is not positive: give one like --window 10m", window)
			}
			if dryRun {
				plan, err := c.PlanRollout(cmd.Context(), q)
				if err != nil {
					return err
				}
				if o.json {
					return printJSON(cmd.OutOrStdout(), plan)
				}
				printPlan(cmd.OutOrStdout(), plan, startAgain(cmd, args[0], plan.Seed))
				return nil
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
	f.StringVar(&q.MaxFailed, "max-failed", events.TolerateAuto, "failures that a batch after the canaries may have: a number, a percentage like 5%, or auto")
	f.StringVar(&q.Selector, "select", "", "only nodes that an expression over labels and attributes matches")
	f.Uint64Var(&q.Seed, "seed", 0, "seed of the choice of nodes (default random)")
	f.BoolVar(&q.Retry, "retry", false, "also where the version was rolled back before: nodes try it again")
	f.BoolVar(&dryRun, "dry-run", false, "print the batches that would be opened now, and start nothing")
	return o.jsonFlag(cmd)
}

// startAgain is the command that starts exactly what a dry run has shown.
func startAgain(cmd *cobra.Command, version string, seed uint64) string {
	parts := []string{"nox-mesh rollout start", shellWord(version)}
	cmd.Flags().Visit(func(f *pflag.Flag) {
		switch f.Name {
		case "dry-run", "json", "seed":
		case "retry":
			parts = append(parts, "--retry="+f.Value.String())
		default:
			parts = append(parts, "--"+f.Name, shellWord(f.Value.String()))
		}
	})
	return strings.Join(append(parts, "--seed", fmt.Sprint(seed)), " ")
}

// shellWord quotes what a shell would take apart.
func shellWord(s string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_=.,:%+/@", r)
	}
	if s != "" && strings.IndexFunc(s, func(r rune) bool { return !plain(r) }) < 0 {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

func newRolloutStatus(o *options) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "status [ID|latest]",
		Short:   "Show how a rollout stands and why, or stood at a moment",
		Example: "  nox-mesh rollout status r7\n  nox-mesh rollout status r7 --at '2026-11-07 14:00'",
		Args:    cobra.MaximumNArgs(1),
	}
	o.withAt(cmd, func(cmd *cobra.Command, args []string, c *server.Client, at *time.Time) error {
		s, err := c.RolloutAt(cmd.Context(), idOrLatest(args), at)
		if err != nil {
			return err
		}
		if o.json {
			return printJSON(cmd.OutOrStdout(), s)
		}
		printStatusFrom(cmd.OutOrStdout(), s.Status, momentOf(s.Past))
		printPast(cmd.OutOrStdout(), s.Past)
		return nil
	})
	return o.jsonFlag(cmd)
}

func idOrLatest(args []string) string {
	if len(args) == 1 {
		return args[0]
	}
	return "latest"
}

func newRolloutList(o *options) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "List all rollouts, now or at a moment",
		Args:  cobra.NoArgs,
	}
	o.withAt(cmd, func(cmd *cobra.Command, _ []string, c *server.Client, at *time.Time) error {
		list, err := c.RolloutsAt(cmd.Context(), at)
		if err != nil {
			return err
		}
		out := cmd.OutOrStdout()
		switch {
		case o.json:
			return printJSON(out, list)
		case len(list.Rollouts) == 0 && at != nil:
			fmt.Fprintln(out, "there was no rollout")
			printPast(out, list.Past)
			return nil
		case len(list.Rollouts) == 0:
			fmt.Fprintln(out, "no rollout yet: start one with nox-mesh rollout start VERSION")
			return nil
		}
		now := momentOf(list.Past)
		t := newTable(out, "ID", "VERSION", "STATE", "STARTED", "BY", "NODES", "NOTE")
		for _, s := range list.Rollouts {
			note := s.Reason
			if s.Paused != nil {
				note = pauseText(s.Paused)
			}
			t.row(s.ID, s.Version, s.State, agoFrom(&s.Started, now), s.Actor, fmt.Sprintf("%d of %d", s.Counts[projections.Passed], s.Cohort), dash(cut(note, 50)))
		}
		t.end()
		fmt.Fprintf(out, "as of event %d; NODES are those that passed\n", list.EventSeq)
		printPast(out, list.Past)
		return nil
	})
	return o.jsonFlag(cmd)
}
