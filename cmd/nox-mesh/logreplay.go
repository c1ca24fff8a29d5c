package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"noxmesh/events"
	"noxmesh/server"
)

func newLogReplay(o *options) *cobra.Command {
	var from, to, speed, until, id string
	cmd := &cobra.Command{
		Use:   "replay",
		Short: "Play the log again, event by event, and show how things stood",
		Long: `Play the log again: each event with what it changed in the fleet and in rollouts,
and at the end the fleet and the rollouts as they were then. It is folded here, by
the same code as in the server, from the first event on; --from says from where on
it is shown.

--speed 60x keeps the recorded pauses, divided by 60; none is longer than 5 s.`,
		Example: `  nox-mesh log replay --rollout r7 --speed 60x
  nox-mesh log replay --from 2h
  nox-mesh log replay --to "2026-11-29 14:00" --from now
  nox-mesh log replay --until-event 1234`,
		Args: cobra.NoArgs,
		RunE: o.with(func(cmd *cobra.Command, _ []string, c *server.Client) error {
			r := newReplay(cmd.OutOrStdout(), pauseFor)
			r.rollout = id
			if err := r.set(cmd.Context(), c, time.Now(), from, to, until, speed); err != nil {
				return err
			}
			return r.run(cmd, c)
		}),
	}
	f := cmd.Flags()
	f.StringVar(&from, "from", "", "show it from a sequence number or a moment on: "+momentHelp)
	f.StringVar(&to, "to", "", "end at this moment")
	f.StringVar(&until, "until-event", "", "end with this event: its sequence number or id")
	f.StringVar(&id, "rollout", "", "show only what is about this rollout and its nodes")
	f.StringVar(&speed, "speed", "", "keep the recorded pauses, so many times as fast, like 60x (default as fast as it can)")
	return cmd
}

// set reads what the flags say.
func (r *replay) set(ctx context.Context, c *server.Client, now time.Time, from, to, until, speed string) (err error) {
	if from != "" {
		if r.fromSeq, err = strconv.ParseUint(from, 10, 63); err != nil {
			if r.fromTime, err = parseWhen(from, now); err != nil {
				return err
			}
		}
	}
	if to != "" {
		if r.to, err = parseWhen(to, now); err != nil {
			return err
		}
	}
	if speed != "" {
		r.speed, err = strconv.ParseFloat(strings.TrimSuffix(speed, "x"), 64)
		if err != nil || !(r.speed > 0) {
			return fmt.Errorf("speed %q is no number above 0, like 60x", speed)
		}
	}
	if until != "" {
		e, err := findEvent(ctx, c, until)
		if err != nil {
			return err
		}
		r.lastSeq = e.Seq
	}
	if r.rollout == "" {
		return nil
	}
	page, err := c.LogPage(ctx, server.LogRequest{Rollout: r.rollout, Limit: 1})
	if err == nil && len(page.Events) == 0 {
		err = fmt.Errorf("there is nothing to replay: %s", strings.Join(page.Unknown, "; "))
	}
	return err
}

// run reads the log and replays it.
func (r *replay) run(cmd *cobra.Command, c *server.Client) error {
	var progress func(next, last uint64)
	if aside := cmd.ErrOrStderr(); isTerminal(aside) {
		progress = func(next, last uint64) {
			if r.told == 0 && next <= last {
				fmt.Fprintf(aside, "\rreading the log: %d %%\r", 100*(next-1)/last)
			}
		}
	}
	ctx := cmd.Context()
	err := c.ReadStream(ctx, events.StreamEvents, 1, progress, func(m events.Message) error {
		rec, err := server.LogRecord{Seq: m.Seq, Data: m.Data}.Decode()
		if err != nil {
			return err
		}
		return r.event(ctx, rec)
	})
	switch {
	case errors.Is(err, errReplayed):
	case ctx.Err() != nil:
		fmt.Fprintln(r.out, "\nstopped") // by Ctrl-C: how things stood there is still shown
	case err != nil:
		return err
	case r.told == 0:
		fmt.Fprintln(r.out, "there is no event to show in that span")
	}
	r.end()
	return nil
}

// pauseFor waits, or ends with the context.
func pauseFor(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
