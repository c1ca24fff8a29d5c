package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"noxmesh/events"
	"noxmesh/rollout"
	"noxmesh/server"
)

func newLogExplain(o *options) *cobra.Command {
	return o.jsonFlag(&cobra.Command{
		Use:   "explain [ROLLOUT|latest]",
		Short: "Tell a rollout as a story: who, what, when, and what each decision rests on",
		Long: `Tell a rollout as a story, from the log alone: who started what over which nodes,
who was chosen and what showed them present, what was declared, what each failed
node said and when, why it halted, who was recalled and who was spared, and what
came after. Numbers in brackets are events: nox-mesh log show NUMBER.`,
		Example: "  nox-mesh log explain r7",
		Args:    cobra.MaximumNArgs(1),
		RunE: o.with(func(cmd *cobra.Command, args []string, c *server.Client) error {
			story, err := tellStory(cmd.Context(), c, idOrLatest(args))
			if err != nil {
				return err
			}
			if o.json {
				return printJSON(cmd.OutOrStdout(), story)
			}
			printStory(cmd.OutOrStdout(), story)
			return nil
		}),
	})
}

// tellStory reads what belongs to a rollout, and tells it.
func tellStory(ctx context.Context, c *server.Client, id string) (*rollout.Story, error) {
	q := server.LogRequest{Type: "rollout.started", Last: 1}
	if id != "latest" {
		q.Rollout = id
	}
	page, err := c.LogPage(ctx, q)
	switch {
	case err != nil:
		return nil, err
	case len(page.Events) == 0 && len(page.Unknown) > 0 && id != "latest":
		return nil, fmt.Errorf("there is nothing to tell: %s", strings.Join(page.Unknown, "; "))
	case len(page.Events) == 0:
		return nil, fmt.Errorf("there is no rollout yet: start one with nox-mesh rollout start VERSION")
	}
	started, err := page.Events[0].Decode()
	if err != nil {
		return nil, err
	}
	fact, err := started.Event.Fact()
	if err != nil {
		return nil, err
	}
	plan, ok := fact.(*events.RolloutStarted)
	if !ok {
		return nil, fmt.Errorf("event %d is no start of a rollout", started.Seq)
	}
	records, err := belonging(ctx, c, started, plan)
	if err != nil {
		return nil, err
	}
	return rollout.Tell(records, started.Event.Subject), nil
}

// belonging reads the records that make the story of a rollout.
func belonging(ctx context.Context, c *server.Client, started events.Record, plan *events.RolloutStarted) ([]events.Record, error) {
	var out []events.Record
	have := map[uint64]bool{}
	var cited []uint64
	for _, q := range rollout.Belongs(started.Event.Subject, started, plan) {
		err := c.ReadLog(ctx, server.LogRequest{From: q.From, Rollout: q.Rollout, Release: q.Version, Type: q.Type}, false, func(rec events.Record) error {
			if !have[rec.Seq] {
				have[rec.Seq] = true
				out = append(out, rec)
			}
			fact, err := rec.Event.Fact()
			if err != nil {
				return nil // of a newer program; the story goes on without
			}
			for _, cite := range rollout.Cited(fact) {
				cited = append(cited, cite.Events...)
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	cited = slices.DeleteFunc(cited, func(seq uint64) bool { return have[seq] })
	messages, err := c.Messages(ctx, events.StreamEvents, cited)
	if err != nil {
		return nil, err
	}
	for seq, m := range messages {
		rec, err := server.LogRecord{Seq: seq, Data: m.Data}.Decode()
		if err != nil {
			return nil, err
		}
		out = append(out, rec)
	}
	slices.SortFunc(out, func(a, b events.Record) int { return int(a.Seq) - int(b.Seq) })
	return out, nil
}

func printStory(out io.Writer, s *rollout.Story) {
	fmt.Fprintf(out, "rollout %s of %s over %s: %s\n", s.Rollout, s.Version, plural(s.Cohort, "node"), strings.ToUpper(string(s.State)))
	day := ""
	for _, step := range s.Steps {
		at := step.At.Local()
		if d := at.Format(time.DateOnly); d != day {
			day = d
			fmt.Fprintf(out, "\n%s\n", d)
		}
		label := at.Format(time.TimeOnly)
		for _, line := range wrapWords(step.Text+" "+brackets(step.Events), screen-labelWidth) {
			fmt.Fprintf(out, "%-*s%s\n", labelWidth-2, label, line)
			label = ""
		}
		for _, d := range step.Details {
			mark := "- "
			for _, line := range wrapWords(d, screen-labelWidth-2) {
				fmt.Fprintf(out, "%-*s%s%s\n", labelWidth-2, "", mark, line)
				mark = "  "
			}
		}
	}
	fmt.Fprintf(out, "\nas it stands: %s\n", countText(s.Counts, nil))
}

// brackets are the numbers of events, shortened where there are many.
func brackets(seqs []uint64) string {
	const most = 6
	var words []string
	for i, seq := range seqs {
		if i == most-1 && len(seqs) > most {
			words = append(words, fmt.Sprintf("... %d", seqs[len(seqs)-1]))
			break
		}
		words = append(words, fmt.Sprint(seq))
	}
	return "[" + strings.Join(words, ", ") + "]"
}
