package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"noxmesh/events"
	"noxmesh/nodeagent"
)

// errNotWell makes the exit status 1; all is said by then.
var errNotWell = errors.New("not all is well")

func statusCommand(stateDir, configDir *string) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "status",
		Short: "What this machine runs and why; exit status 0 only if all is well",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o := nodeagent.Look(*stateDir, nodeagent.NodeCredsFile(*configDir), installed(cmd.Context()))
			if err := show(cmd.OutOrStdout(), o, asJSON); err != nil {
				return err
			}
			if len(o.Findings) > 0 {
				return errNotWell
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "as one JSON object")
	return cmd
}

// installed asks dpkg; empty when the machine does not know the package.
func installed(ctx context.Context) nodeagent.Installed {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, "dpkg-query", "-W", "-f", "${Version} ${db:Status-Abbrev}", events.HostPackage).Output()
	version, state, _ := strings.Cut(string(out), " ")
	if err != nil || events.CheckVersion(version) != nil {
		return nodeagent.Installed{}
	}
	return nodeagent.Installed{Version: version, State: strings.TrimSpace(state)}
}

func show(w io.Writer, o nodeagent.Overview, asJSON bool) error {
	if asJSON {
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		return enc.Encode(o)
	}
	_, err := io.WriteString(w, text(o))
	return err
}

func text(o nodeagent.Overview) string {
	var b strings.Builder
	line := func(name, format string, args ...any) {
		fmt.Fprintf(&b, "%-12s %s\n", name, fmt.Sprintf(format, args...))
	}
	line("node", "%s", or(o.Node, "unknown: no credentials"))
	line("host", "%s", hostLine(o))
	if o.Installed != "" {
		line("installed", "%s%s", o.Installed, packageNote(o.PackageState))
	}
	line("known-good", "%s", or(o.KnownGood, "none yet"))
	switch o.Parachute {
	case "retained":
		line("parachute", "the package of %s is kept here and its checksum is right", o.KnownGood)
	case "missing":
		line("parachute", "missing: the next upgrade must bring the package of %s along", or(o.KnownGood, "the running version"))
	default:
		line("parachute", "DAMAGED: %s", o.Parachute)
	}
	line("drill", "%s", drillLine(o.Drill))
	if d := o.Declared; d == nil {
		line("declared", "nothing yet")
	} else {
		line("declared", "%s, revision %d, %s, by %s at %s", or(d.Version, "no host version"), d.Revision, because(d.Because), d.Actor, stamp(d.At))
	}
	if o.Host != nil {
		line("applied", "revision %d", o.Host.Applied)
		line("link", "%s", linkLine(o))
		keyLines(line, o.Host.Pins)
	}
	for _, r := range o.Refused {
		line("refused", "%s since %s: %s", r.Version, stamp(r.At), r.Reason)
	}
	rollbackLines(line, "rolled back", o.Last)
	rollbackLines(line, "ROLLBACK", o.Pending)
	line("outbox", "%d waiting for the mesh", o.Outbox)
	if len(o.Findings) == 0 {
		b.WriteString("\nAll is well.\n")
		return b.String()
	}
	b.WriteString("\nNot well:\n")
	for _, f := range o.Findings {
		fmt.Fprintf(&b, "  - %s\n", f.What)
		for _, cmd := range f.Next {
			fmt.Fprintf(&b, "      next: %s\n", cmd)
		}
	}
	return b.String()
}

func rollbackLines(line func(string, string, ...any), name string, r *nodeagent.RollbackRecord) {
	if r == nil {
		return
	}
	line(name, "%s to %s at %s (%s): %s", or(r.From, "?"), or(r.To, "?"), or(r.At, "?"), or(r.Status, "damaged record"), r.Reason)
	for _, l := range r.Journal[max(0, len(r.Journal)-3):] {
		line("", "  %s", l)
	}
}

func packageNote(state string) string {
	if state == "" || state == "ii" {
		return ""
	}
	return " (dpkg: " + events.Printable(state, 10) + ")"
}

func drillLine(d *nodeagent.DrillResult) string {
	switch {
	case d == nil:
		return "not made yet for this version; \"nox-mesh-host drill\" makes one now"
	case d.OK:
		return fmt.Sprintf("%s could be put back, as rehearsed at %s (%s)", d.Version, stamp(d.At), ago(time.Since(d.At)))
	}
	return fmt.Sprintf("FAILED at %s (%s): %s", stamp(d.At), ago(time.Since(d.At)), d.Error)
}

// ago is rough, for reading: the time itself stands beside it.
func ago(d time.Duration) string {
	switch {
	case d < 0:
		return "in the future, so a clock was set back"
	case d < 2*time.Hour:
		return fmt.Sprintf("%d min ago", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h ago", int(d.Hours()))
	}
	return fmt.Sprintf("%d days ago", int(d.Hours()/24))
}

func hostLine(o nodeagent.Overview) string {
	switch {
	case o.Host == nil && o.Running:
		return "starts"
	case o.Host == nil:
		return "does not run, and never did"
	case !o.Running:
		return fmt.Sprintf("does not run; version %s did last, until about %s", o.Host.Version, stamp(o.Host.At))
	case !o.Host.Confirmed:
		return fmt.Sprintf("version %s runs since %s, not confirmed", o.Host.Version, stamp(o.Host.Started))
	}
	return fmt.Sprintf("version %s runs since %s, confirmed", o.Host.Version, stamp(o.Host.Started))
}

func linkLine(o nodeagent.Overview) string {
	switch l := o.Host.Link; {
	case !o.Running:
		return "down: the host does not run"
	case l.Up:
		return fmt.Sprintf("up since %s, to %s", stamp(l.Since), l.URL)
	default:
		return fmt.Sprintf("down since %s: %s", stamp(l.Since), l.Reason)
	}
}

func keyLines(line func(string, string, ...any), pins *events.Pins) {
	if pins == nil {
		line("keys", "NOT VERIFIED: no readable keys are pinned; join again with nox-mesh-host join TOKEN")
		return
	}
	line("keys", "declarations are verified by %s", pins.Delivery)
	line("", "releases by %s", pins.Release)
}

func because(c events.DeclarationCause) string {
	switch c.Kind {
	case events.CauseBatch:
		return fmt.Sprintf("by rollout %s, batch %d", c.Rollout, c.Batch)
	case events.CauseRecall:
		return fmt.Sprintf("recalled after rollout %s stopped", c.Rollout)
	default:
		return "because of " + string(c.Kind)
	}
}

func or(s, instead string) string {
	if s == "" {
		return instead
	}
	return s
}

func stamp(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05Z") }
