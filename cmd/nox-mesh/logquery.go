package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/mattn/go-isatty"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"noxmesh/server"
)

// screenful is how many events a terminal gets that nobody has asked for all.
const screenful = 100

// logOptions are what is asked of the log.
type logOptions struct {
	q            server.LogRequest
	since, until string
	last         int
	all, follow  bool
}

func (l *logOptions) flags(f *pflag.FlagSet) {
	f.StringVar(&l.q.Node, "node", "", "only events about this node and its declarations")
	f.StringVar(&l.q.Rollout, "rollout", "", "only events of this rollout and the declarations that it led to")
	f.StringVar(&l.q.Release, "release", "", "only events about this version, as 1.2.3 or 1.2.3/amd64, and the rollouts of it")
	f.StringVar(&l.q.Type, "type", "", `only events of this type: "halted", "rollout.halted" or in full`)
	f.StringVar(&l.q.Actor, "actor", "", `only events that this user, "stager" or "node:NAME" made happen`)
	f.StringVar(&l.since, "since", "", "only events since then: "+momentHelp)
	f.StringVar(&l.until, "until", "", "only events before then")
	f.Uint64Var(&l.q.From, "from", 0, "only from this sequence number on")
	f.IntVar(&l.q.Limit, "limit", 0, "only the first so many; says how to get the next")
	f.IntVar(&l.last, "last", 0, "only the newest so many")
	f.BoolVar(&l.all, "all", false, "all of them, on a terminal too")
	f.BoolVar(&l.follow, "follow", false, "go on with new events until Ctrl-C")
}

// request completes what is asked. screen says that people look at it, who are
// not flooded unless they ask for it.
func (l *logOptions) request(f *pflag.FlagSet, screen bool, now time.Time) (server.LogRequest, error) {
	q := l.q
	var err error
	if l.since != "" {
		if q.Since, err = parseWhen(l.since, now); err != nil {
			return q, err
		}
	}
	if l.until != "" {
		if q.Until, err = parseWhen(l.until, now); err != nil {
			return q, err
		}
	}
	set := f.Changed
	switch {
	case set("last") && (set("limit") || set("all")), set("limit") && set("all"):
		return q, errors.New("--all, --limit and --last each say how much: give one of them")
	case set("last") && l.last < 1, set("limit") && q.Limit < 1:
		return q, errors.New("--limit and --last are a number of events: give 1 or more")
	case l.follow && set("until"):
		return q, errors.New("--until has an end, and --follow has none: give one of them")
	case l.since != "" && l.until != "" && !q.Since.Before(q.Until):
		return q, fmt.Errorf("--since %s is not before --until %s", l.since, l.until)
	}
	q.Last = l.last
	if screen && !set("last") && !set("limit") && !set("from") && !l.all {
		q.Last = screenful
	}
	return q, nil
}

// readLog prints what is asked of the log.
func (l *logOptions) readLog(cmd *cobra.Command, c *server.Client, asJSON bool) error {
	out, aside := cmd.OutOrStdout(), cmd.ErrOrStderr()
	q, err := l.request(cmd.Flags(), !asJSON && isTerminal(out), time.Now())
	if err != nil {
		return err
	}
	matched, first := 0, true
	var next, last uint64
	err = c.ReadLogPages(cmd.Context(), q, l.follow, func(p server.LogPage) error {
		if first && p.Earlier > 0 && !cmd.Flags().Changed("last") {
			fmt.Fprintf(aside, "the newest %d; %s before them: --all shows all, --from SEQ begins there\n",
				len(p.Events), pluralOf(p.Earlier, "event that matches is", "events that match are"))
		}
		if first && l.follow && len(p.Unknown) > 0 {
			fmt.Fprintln(aside, "nothing matches yet: "+strings.Join(p.Unknown, "; "))
		}
		if first && !l.follow && len(p.Events) == 0 {
			to := out
			if asJSON {
				to = aside
			}
			fmt.Fprintln(to, colon("no event matches", strings.Join(p.Unknown, "; ")))
		}
		first = false
		matched += len(p.Events)
		next, last = p.Next, p.Last
		return printPage(out, p, asJSON)
	})
	if errors.Is(err, context.Canceled) {
		return nil // Ctrl-C ends --follow
	}
	if err == nil && q.Limit > 0 && matched == q.Limit && next <= last {
		fmt.Fprintf(aside, "there are more: %s\n", again(cmd, "--from", fmt.Sprint(next)))
	}
	return err
}

func printPage(out io.Writer, p server.LogPage, asJSON bool) error {
	for _, raw := range p.Events {
		if asJSON {
			if _, err := fmt.Fprintf(out, "%s\n", raw.Data); err != nil {
				return err
			}
			continue
		}
		rec, err := raw.Decode()
		if err != nil {
			return err
		}
		if err := printEvent(out, rec); err != nil {
			return err
		}
	}
	return nil
}

// again is the command as it was given, with one flag set anew.
func again(cmd *cobra.Command, flag, value string) string {
	parts := []string{cmd.CommandPath()}
	cmd.Flags().Visit(func(f *pflag.Flag) {
		switch {
		case "--"+f.Name == flag:
		case f.Value.Type() == "bool":
			parts = append(parts, "--"+f.Name)
		default:
			parts = append(parts, "--"+f.Name, shellWord(f.Value.String()))
		}
	})
	return strings.Join(append(parts, flag, value), " ")
}

func isTerminal(out io.Writer) bool {
	f, ok := out.(*os.File)
	return ok && isatty.IsTerminal(f.Fd())
}
