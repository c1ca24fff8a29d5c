package main

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"noxmesh/events"
	"noxmesh/projections"
	"noxmesh/server"
)

func newLog(o *options) *cobra.Command {
	var l logOptions
	cmd := &cobra.Command{
		Use:   "log",
		Short: "Read the log of everything that happened",
		Long: `Read the log, oldest first: one line an event, or with --json one CloudEvents
object a line, byte for byte as it is stored. Filters add up. Lines have this
machine's time zone, --json has UTC.

On a terminal only the newest 100 events are shown, unless --all, --from, --limit
or --last says otherwise; a file or a pipe, and --json, get all that match.`,
		Example: `  nox-mesh log --node ams-01 --since 2h
  nox-mesh log --release 1.2.0 --type halted --json
  nox-mesh log --limit 500 --from 12000
  nox-mesh log --follow`,
		Args: cobra.NoArgs,
		RunE: o.with(func(cmd *cobra.Command, _ []string, c *server.Client) error { return l.readLog(cmd, c, o.json) }),
	}
	l.flags(cmd.Flags())
	cmd.AddCommand(newLogShow(o), newLogExplain(o), newLogReplay(o), newLogAudit(o))
	cmd.AddCommand(logProofs(o)...)
	return o.jsonFlag(cmd)
}

func printEvent(out io.Writer, rec events.Record) error {
	e := rec.Event
	what, text := e.Type, ""
	if fact, err := e.Fact(); err == nil {
		text = describe(fact)
	}
	what = strings.TrimPrefix(what, "mesh.")
	if i := strings.LastIndex(what, ".v"); i > 0 {
		what = what[:i]
	}
	_, err := fmt.Fprintf(out, "%6d  %s  %-22s  %-14s  %s\n", rec.Seq, e.Time.Local().Format(time.DateTime), what, e.Subject, text)
	return err
}

// describe words a fact in one line.
func describe(fact events.Fact) string {
	switch f := fact.(type) {
	case *events.ReleaseAdded:
		return fmt.Sprintf("%s for %s, %s", f.Version, f.Architecture, byteSize(f.Size))
	case *events.ReleaseHeld:
		return f.Reason
	case *events.ReleaseHoldLifted:
		return f.Reason
	case *events.NodeDecommissioned:
		return f.Reason
	case *events.NodeInvited:
		return fmt.Sprintf("one machine may join until %s, labels %s", f.Expires.UTC().Format(time.DateTime+"Z"), labelText(f.Labels))
	case *events.NodeJoinRefused:
		return f.Reason
	case *events.NodeRevoked:
		return f.Reason
	case *events.NodeAway:
		return fmt.Sprintf("not heard for %s, since %s; the mesh listened for %s of it", f.To.Sub(f.From).Round(time.Second), f.From.Local().Format(time.DateTime), time.Duration(f.Listened).Round(time.Second))
	case *events.UserAdded:
		return f.Role
	case *events.UserRevoked:
		return f.Reason
	case *events.NodeEnrolled:
		return labelText(f.Labels)
	case *events.NodeConfirmed:
		return fmt.Sprintf("started %s and completed a reconcile", f.Version)
	case *events.NodeRolledBack:
		return fmt.Sprintf("from %s to %s after %s: %s", f.From, f.To, plural(f.Restarts, "restart"), f.Reason)
	case *events.NodeRefused:
		return fmt.Sprintf("%s: %s", f.Version, f.Reason)
	case *events.NodeFailedToApply:
		return fmt.Sprintf("%s: %s", f.Resource, f.Error)
	case *events.NodeReportRejected:
		return fmt.Sprintf("%s: %s", f.Kind, f.Reason)
	case *events.Declared:
		to := "no host version"
		if h := f.Host(); h != nil {
			to = "host " + h.Version
		}
		why := string(f.Because.Kind)
		if f.Because.Rollout != "" {
			why = fmt.Sprintf("%s of %s", why, f.Because.Rollout)
		}
		return fmt.Sprintf("revision %d, %s (%s)", f.Revision, to, why)
	case *events.RolloutStarted:
		return fmt.Sprintf("%s over %s in batches %s", f.Version, plural(len(f.Cohort), "node"), strings.Join(f.Policy.Batches, ","))
	case *events.BatchOpened:
		what := "batch"
		switch {
		case f.Tail:
			what = "tail, batch"
		case f.Retry:
			what = "to try again, batch"
		}
		return fmt.Sprintf("%s %d: %s", what, f.Batch, cut(strings.Join(f.Nodes, " "), 70))
	case *events.BatchPassed:
		text := fmt.Sprintf("batch %d: %d passed, %d failed", f.Batch, len(f.Passed), len(f.Failures))
		if len(f.Gone) > 0 {
			text += fmt.Sprintf(", %d left the fleet", len(f.Gone))
		}
		return text
	case *events.RolloutPaused:
		return pauseText(f)
	case *events.RolloutResumed:
		return resumeText(f)
	case *events.RolloutReverted:
		return colon(plural(len(f.Nodes), "node")+" to get back what they had", f.Reason)
	case *events.RolloutAmended:
		return amendText(f)
	case *events.RolloutHalted:
		return fmt.Sprintf("%s: %s", f.Diagnosis, f.Reason)
	case *events.RolloutAborted:
		return f.Reason
	case *events.RolloutCompleted:
		return fmt.Sprintf("%d passed, %d failed, %d not heard in time", f.Passed, f.Failed, len(f.Tail))
	}
	return ""
}

func resumeText(f *events.RolloutResumed) string {
	switch {
	case f.Because == events.ByLink:
		return "the link is back"
	case f.Mode == events.ResumeRetry:
		return colon("the failed try again", f.Reason)
	case f.Mode == events.ResumeLeaveOut:
		return colon("the failed are left out", f.Reason)
	}
	return f.Reason
}

// amendText words late evidence: node by node while they are few.
func amendText(f *events.RolloutAmended) string {
	var parts []string
	for _, p := range f.Passed {
		parts = append(parts, p.Node+" passed")
	}
	for _, n := range f.Failures {
		parts = append(parts, fmt.Sprintf("%s %s", n.Node, outcomeText(projections.Outcome(n.Kind))))
	}
	if len(parts) > 3 {
		return fmt.Sprintf("late: %d passed, %d failed", len(f.Passed), len(f.Failures))
	}
	return "late: " + strings.Join(parts, ", ")
}

// colon joins what happened and the reason for it, if there is one.
func colon(what, reason string) string {
	if reason == "" {
		return what
	}
	return what + ": " + reason
}
