package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"noxmesh/events"
	"noxmesh/rollout"
	"noxmesh/server"
)

func newLogAudit(o *options) *cobra.Command {
	var id, file string
	cmd := &cobra.Command{
		Use:   "audit",
		Short: "Decide every recorded decision again, and name those that the policy does not bear out",
		Long: `Decide every recorded decision of every rollout again, from the evidence that it
names, and say which ones the policy does not bear out. Log and heartbeats are read
byte for byte and folded here: what the server makes of them is not asked.

  recomputed   what the log and the heartbeats of then lead to is what was decided
  checked      heartbeats of then are no longer there; what was decided agrees with
               all that the log says, and what could not be looked at is named

The exit code is 1 if a decision is not borne out. Policies are those of this
version of nox-mesh.`,
		Example: "  nox-mesh log audit\n  nox-mesh log audit --rollout r7\n  nox-mesh log audit --file export.jsonl",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			a := rollout.NewAudit(id)
			var err error
			if file != "" {
				err = auditFile(a, file, cmd.InOrStdin())
			} else {
				err = o.with(func(cmd *cobra.Command, _ []string, c *server.Client) error {
					return auditMesh(cmd.Context(), c, a, cmd.ErrOrStderr())
				})(cmd, nil)
			}
			if err != nil {
				return err
			}
			res, err := a.Result()
			if err != nil {
				return err
			}
			if o.json {
				err = printJSON(cmd.OutOrStdout(), res)
			} else {
				printAudit(cmd.OutOrStdout(), res, id != "")
			}
			if err == nil && len(res.Findings) > 0 {
				return exitCode(1)
			}
			return err
		},
	}
	f := cmd.Flags()
	f.StringVar(&id, "rollout", "", "only this rollout, and one line for each of its decisions")
	f.StringVar(&file, "file", "", `audit an export of the log instead: one event a line, all from the first on ("-" reads standard input)`)
	return o.jsonFlag(cmd)
}

// auditMesh reads both streams from the mesh.
func auditMesh(ctx context.Context, c *server.Client, a *rollout.Audit, look io.Writer) error {
	progress := func(what string) func(next, last uint64) {
		show := progressOf(look, what)
		if show == nil {
			return nil
		}
		return func(next, last uint64) {
			if last > 0 {
				show(int(next-1), int(last))
			}
		}
	}
	err := c.ReadStream(ctx, events.StreamEvents, 1, progress("events"), func(m events.Message) error {
		e, err := events.Decode(m.Data)
		if err != nil {
			return fmt.Errorf("event %d: %w", m.Seq, err)
		}
		return a.Event(events.Record{Seq: m.Seq, Event: e})
	})
	if err != nil {
		return err
	}
	return c.ReadStream(ctx, events.StreamHeartbeats, 1, progress("heartbeats"), a.Heartbeat)
}

// auditFile reads an export: line n is event n.
func auditFile(a *rollout.Audit, name string, in io.Reader) error {
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return err
		}
		defer f.Close()
		in = f
	}
	lines := bufio.NewReaderSize(in, 1<<16)
	for seq := uint64(1); ; seq++ {
		line, err := lines.ReadBytes('\n')
		if err != nil && !errors.Is(err, io.EOF) {
			return fmt.Errorf("reading %s: %w", name, err)
		}
		if len(bytes.TrimSpace(line)) == 0 {
			if err != nil && seq > 1 {
				return nil
			}
			return fmt.Errorf("%s line %d is empty: give the whole log with one event a line, as nox-mesh log --json prints it", name, seq)
		}
		e, decodeErr := events.Decode(line)
		if decodeErr != nil {
			return fmt.Errorf("%s line %d: %w: give the whole log with one event a line, as nox-mesh log --json prints it", name, seq, decodeErr)
		}
		if auditErr := a.Event(events.Record{Seq: seq, Event: e}); auditErr != nil {
			return auditErr
		}
		if err != nil {
			return nil
		}
	}
}

func printAudit(out io.Writer, res *rollout.AuditResult, each bool) {
	if len(res.Rollouts) == 0 {
		fmt.Fprintln(out, "no rollout is in the log: there is nothing to audit")
		return
	}
	t := newTable(out, "ROLLOUT", "VERSION", "STATE", "DECISIONS", "RECOMPUTED", "CHECKED", "COMMANDS", "NOT BORNE OUT")
	decisions, checked, wrong := 0, 0, 0
	for _, r := range res.Rollouts {
		t.row(dash(r.Rollout), dash(r.Version), dash(string(r.State)), r.Decisions, r.Recomputed, r.Checked, r.Commands, r.NotBorneOut)
		decisions, checked, wrong = decisions+r.Decisions+r.Commands, checked+r.Checked, wrong+r.NotBorneOut
	}
	t.end()
	if each {
		printDecisions(out, res)
	}
	for _, f := range res.Findings {
		fmt.Fprintf(out, "event %d at %s, %s of %s: NOT BORNE OUT\n", f.Event, f.Time.Local().Format(time.DateTime), shortType(f.Type), aboutWhat(f.Rollout, f.Node))
		field(out, "recorded", f.Recorded)
		field(out, "policy", f.Policy)
	}
	if wrong > 0 {
		fmt.Fprintf(out, "%d of %s not borne out\n", wrong, pluralOf(decisions, "decision or command is", "decisions and commands are"))
	} else {
		fmt.Fprintf(out, "every decision is borne out\n")
	}
	if checked > 0 && !each {
		fmt.Fprintf(out, "%s could not be recomputed: heartbeats of then are not there any more; --rollout ID or --json says what could not be looked at\n",
			plural(checked, "decision"))
	}
	beats := "without heartbeats"
	if h := res.Heartbeats; h.Last > 0 {
		beats = fmt.Sprintf("heartbeats %d to %d", h.First, h.Last)
		if h.Missing > 0 {
			beats += fmt.Sprintf(", of which and before which %d are gone", h.Missing)
		}
	}
	fmt.Fprintf(out, "as of event %d, %s\n", res.Events, beats)
}

// printDecisions is one line for each decision.
func printDecisions(out io.Writer, res *rollout.AuditResult) {
	t := newTable(out, "EVENT", "TIME", "DECISION", "NODE", "HOW", "NOT LOOKED AT")
	for _, d := range res.Decisions {
		how := string(d.How)
		if d.Command {
			how = "command"
		}
		t.row(d.Event, d.Time.Local().Format(time.DateTime), shortType(d.Type), dash(d.Node), how, dash(strings.Join(d.NotSeen, "; ")))
	}
	t.end()
}

func aboutWhat(rollout, node string) string {
	if node == "" {
		return rollout
	}
	return node + " in " + rollout
}

// shortType is an event's type without what all types have.
func shortType(typ string) string {
	short := strings.TrimPrefix(typ, "mesh.")
	if i := strings.LastIndex(short, ".v"); i > 0 {
		short = short[:i]
	}
	return short
}
