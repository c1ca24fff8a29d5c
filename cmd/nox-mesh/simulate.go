package main

import (
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"noxmesh/events"
	"noxmesh/rollout/simulate"
)

// simulation is what the flags of simulate say.
type simulation struct {
	seeds           int
	first           uint64
	worlds          []string
	batches         string
	window          time.Duration
	tolerate        string
	opts            simulate.Options
	markdown, trace bool
}

func newSimulate(o *options) *cobra.Command {
	var q simulation
	stated := simulate.StatedPolicy()
	cmd := &cobra.Command{
		Use:   "simulate",
		Short: "Play rollouts in a simulated fleet and judge the stager's judgement",
		Long: `Play rollouts in virtual time, in worlds in which it is known what is broken: the
real stager over simulated nodes. Each world is played once for each seed, and
the same seed gives the same run. Needs no mesh.

The exit code is 1 if a target is missed or a law of the stager is broken. The
targets are stated for at least ` + fmt.Sprint(simulate.StatedRuns) + ` seeds, a cohort of ` + fmt.Sprint(simulate.StatedCohort) + ` and batches ` + strings.Join(stated.Batches, ",") + `;
other runs are counted and not judged.`,
		Example: `  nox-mesh simulate --seeds 1000
  nox-mesh simulate --world crash-20 --seeds 200 --batches 1,5%,100%
  nox-mesh simulate --world link-half --first-seed 7 --seeds 1 --trace`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return q.run(cmd, o.json) },
	}
	f := cmd.Flags()
	f.IntVar(&q.seeds, "seeds", 100, "how often each world is played")
	f.Uint64Var(&q.first, "first-seed", 1, "the first seed; the others follow it")
	f.StringArrayVar(&q.worlds, "world", nil, "only this world; may be given more than once ("+strings.Join(worldNames(), ", ")+")")
	f.IntVar(&q.opts.Cohort, "cohort", simulate.StatedCohort, "nodes in the fleet")
	f.StringVar(&q.batches, "batches", strings.Join(stated.Batches, ","), "nodes declared in all with each batch, numbers or percentages")
	f.DurationVar(&q.window, "window", time.Duration(stated.Window), "how long a batch may stay unheard")
	f.StringVar(&q.tolerate, "max-failed", stated.Tolerate, "failures that a batch may have: auto, a number, or a percentage")
	f.BoolVar(&q.markdown, "markdown", false, "print the table as Markdown")
	f.BoolVar(&q.trace, "trace", false, "print every event of the run; for one world and one seed")
	return o.jsonFlag(cmd)
}

func worldNames() []string {
	var out []string
	for _, s := range simulate.Settings() {
		out = append(out, s.Name)
	}
	return out
}

// settings are the worlds that were asked for.
func (q *simulation) settings() ([]simulate.Setting, error) {
	if len(q.worlds) == 0 {
		return simulate.Settings(), nil
	}
	var out []simulate.Setting
	for _, name := range q.worlds {
		s, ok := simulate.SettingNamed(name)
		if !ok {
			return nil, fmt.Errorf("no world is named %q: use one of %s", name, strings.Join(worldNames(), ", "))
		}
		out = append(out, s)
	}
	return out, nil
}

func (q *simulation) policy() (events.Policy, error) {
	p := simulate.StatedPolicy()
	p.Batches = strings.Split(q.batches, ",")
	p.Window = events.Duration(q.window)
	p.Soak = min(p.Soak, p.Window/2)
	p.Tolerate = q.tolerate
	if number, ok := wholeNumber(q.tolerate); ok {
		p.Tolerate, p.MaxFailed = "", number
	}
	return p, nil
}

// wholeNumber reads what is nothing but digits.
func wholeNumber(s string) (int, bool) {
	var n int
	if strings.Trim(s, "0123456789") != "" {
		return 0, false
	}
	_, err := fmt.Sscan(s, &n)
	return n, err == nil
}

func (q *simulation) run(cmd *cobra.Command, asJSON bool) error {
	settings, err := q.settings()
	if err != nil {
		return err
	}
	if q.seeds < 1 || q.opts.Cohort < 1 {
		return fmt.Errorf("%d seeds over %d nodes is nothing to play: give at least 1 of each", q.seeds, q.opts.Cohort)
	}
	if q.opts.Policy, err = q.policy(); err != nil {
		return err
	}
	out := cmd.OutOrStdout()
	if q.trace {
		return q.printTrace(out, settings)
	}
	debug.SetGCPercent(400) // many short-lived states: memory is cheaper than collecting it
	rows, broken, err := simulate.Sweep(cmd.Context(), settings, q.first, q.seeds, q.opts, progress(cmd.ErrOrStderr()))
	if err != nil {
		return exitCode(130)
	}
	switch {
	case asJSON:
		err = printJSON(out, map[string]any{"worlds": rows})
	case q.markdown:
		err = simulate.PrintMarkdown(out, rows)
	default:
		err = simulate.Print(out, rows)
		printAgainst(out, rows)
		if why := simulate.Judgeable(q.seeds, q.opts); why != "" && err == nil {
			fmt.Fprintf(out, "targets are not judged: %s\n", why)
		}
	}
	if err != nil {
		return err
	}
	return q.verdict(cmd.ErrOrStderr(), settings, rows, broken)
}

// printAgainst lists runs that went against a target, to look at one by one.
func printAgainst(out io.Writer, rows []simulate.Row) {
	for _, row := range rows {
		for _, r := range row.Against {
			how := "completed"
			if r.Halted {
				how = fmt.Sprintf("%s: %s", r.Diagnosis, r.Reason)
			}
			fmt.Fprintf(out, "%s seed %d, %d exposed, stage %d: %s\n", row.Name, r.Seed, r.Exposed, r.Stage, how)
		}
	}
}

// verdict says what is wrong, each broken law with the shortest trace there is.
func (q *simulation) verdict(out io.Writer, settings []simulate.Setting, rows []simulate.Row, broken []simulate.Result) error {
	for _, r := range broken {
		if !r.IsLaw() {
			fmt.Fprintf(out, "\nworld %s, seed %d: %v\n", r.Setting, r.Seed, r.Err)
			continue
		}
		s, _ := simulate.SettingNamed(r.Setting)
		short := simulate.Shorten(s, r.Seed, q.opts)
		fmt.Fprintf(out, "\nworld %s, seed %d, cohort %d:\n%s\n%v\n", r.Setting, r.Seed, short.Cohort, strings.Join(short.Trace, "\n"), short.Err)
	}
	if len(broken) > 0 {
		return exitCode(1)
	}
	for _, r := range rows {
		if r.Met != nil && !*r.Met {
			return exitCode(1)
		}
	}
	return nil
}

func (q *simulation) printTrace(out io.Writer, settings []simulate.Setting) error {
	if len(settings) != 1 || q.seeds != 1 {
		return fmt.Errorf("--trace is for one run: add --world NAME --seeds 1 --first-seed N")
	}
	opts := q.opts
	opts.Trace = true
	r := simulate.Run(settings[0], q.first, opts)
	for _, line := range r.Trace {
		fmt.Fprintln(out, line)
	}
	if r.Err != nil {
		return r.Err
	}
	how := "completed"
	if r.Halted {
		how = "halted"
	}
	fmt.Fprintf(out, "%s after %s with %d of %d nodes exposed\n", how, r.Took, r.Exposed, r.Cohort)
	return nil
}

// progress rewrites one line, and only where somebody looks.
func progress(out io.Writer) func(done, all int) { return progressOf(out, "runs") }

// progressOf is [progress] of something else than runs.
func progressOf(out io.Writer, what string) func(done, all int) {
	f, ok := out.(*os.File)
	if !ok {
		return nil
	}
	if info, err := f.Stat(); err != nil || info.Mode()&os.ModeCharDevice == 0 {
		return nil
	}
	last := -1
	return func(done, all int) {
		if percent := 100 * done / all; percent != last {
			last = percent
			fmt.Fprintf(f, "\r%d of %d %s (%d%%)", done, all, what, percent)
			if done == all {
				fmt.Fprint(f, "\r\033[K")
			}
		}
	}
}
