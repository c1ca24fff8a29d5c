package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"noxmesh/projections"
	"noxmesh/projections/client"
	"noxmesh/rollout"
	"noxmesh/server"
)

// watchInterval is how often a rollout is looked at when nothing about it
// changes: what it waits for changes with time alone.
const watchInterval = 5 * time.Second

// manyNodes is how many make a cohort too large to tell of each node that passes.
const manyNodes = 40

func newRolloutWatch(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "watch [ID|latest]",
		Short: "Follow a rollout until it halts or ends; exit code 1 if it did not complete",
		Long: `Follow a rollout until it halts or ends. A paused one is followed on, since it may
be resumed. The exit code is 0 if it completed, 1 if it did not.`,
		Example: "  nox-mesh rollout watch r7",
		Args:    cobra.MaximumNArgs(1),
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

// watch prints what changes until the rollout halts or ends.
func watch(ctx context.Context, out io.Writer, c *server.Client, id string) (*rollout.Status, error) {
	tick := time.NewTicker(watchInterval)
	defer tick.Stop()
	w := watcher{out: out, seen: map[string]projections.Outcome{}}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	changed := rolloutsChange(ctx, c.Conn())
	for {
		s, err := c.Rollout(ctx, id)
		if err != nil {
			return nil, err
		}
		id = s.ID // "latest" must not change under way
		w.show(s)
		if s.State != projections.Running && s.State != projections.Paused {
			return s, nil
		}
		select {
		case <-changed:
		case <-tick.C:
		case <-ctx.Done():
			return nil, exitCode(130)
		}
	}
}

// rolloutsChange says that some rollout has changed. Should the watch end, it
// says nothing any more.
func rolloutsChange(ctx context.Context, conn *client.Conn) <-chan struct{} {
	changed := make(chan struct{}, 1)
	go func() {
		for _, err := range client.WatchRollouts(ctx, conn, "") {
			if err != nil {
				return
			}
			select {
			case changed <- struct{}{}:
			default: // it was said, and not heard yet
			}
		}
	}()
	return changed
}

// watcher remembers what was said.
type watcher struct {
	out   io.Writer
	seen  map[string]projections.Outcome
	line  string
	pause string
}

func (w *watcher) say(format string, args ...any) {
	fmt.Fprintf(w.out, "%s  %s\n", time.Now().Format(time.TimeOnly), fmt.Sprintf(format, args...))
}

// show says what is new in a status.
func (w *watcher) show(s *rollout.Status) {
	for _, n := range s.Nodes {
		if n.Batch == 0 || n.Outcome == w.seen[n.Node] {
			continue
		}
		w.seen[n.Node] = n.Outcome
		if s.Cohort > manyNodes && (n.Outcome == projections.Waiting || n.Outcome == projections.Passed) {
			continue
		}
		text := n.Node + ": " + outcomeText(n.Outcome)
		if n.Detail != "" {
			text += ", " + n.Detail
		}
		w.say("%s", text)
	}
	pause := ""
	if s.Paused != nil {
		pause = "paused: " + pauseText(s.Paused) // without numbers that change all the time
	}
	if pause != w.pause {
		if pause == "" && s.State == projections.Running {
			w.say("goes on")
		} else if pause != "" {
			w.say("%s", pause)
		}
		w.pause = pause
	}
	now := fmt.Sprintf("%s, %s", batchText(s), countText(s.Counts, nil))
	if len(s.Waiting) > 0 && s.Counts[projections.Waiting] == 0 && s.Paused == nil {
		now += "; waiting: " + s.Waiting[0]
	}
	if now != w.line {
		w.say("%s", now)
		w.line = now
	}
}
