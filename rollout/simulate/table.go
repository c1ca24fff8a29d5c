package simulate

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"noxmesh/events"
)

// Row is a setting's line of the table.
type Row struct {
	Name       string    `json:"name"`
	Runs       int       `json:"runs"`
	Halted     int       `json:"halted"`
	FalseHalts int       `json:"false_halts"` // of a release that is not broken
	Completed  int       `json:"completed"`
	ExposedP50 int       `json:"exposed_p50"` // nodes
	ExposedP99 int       `json:"exposed_p99"`
	Cohort     int       `json:"cohort"`
	Diagnosis  Diagnoses `json:"diagnosis"`

	What string `json:"what"`
	Must string `json:"must"`
	// Met says whether the target was met, nil where it cannot be judged: the
	// targets are stated for one cohort, one policy and many runs.
	Met *bool `json:"met"`
	// Broken counts the runs that broke a law or did not end.
	Broken  int `json:"broken"`
	Named   int `json:"named"`   // the report named the broken architecture
	Reached int `json:"reached"` // completed and reached all that were there
	// Demands says in how many runs each thing that is demanded was so.
	Demands []Demand `json:"demands"`
	// Against are some of the runs in which one was not.
	Against []Result      `json:"against,omitempty"`
	TookP50 time.Duration `json:"took_p50"` // virtual, ns
}

// Demand is one thing that is demanded of a setting's runs.
type Demand struct {
	What string `json:"what"`
	Runs int    `json:"runs"` // in which it was so
}

// Diagnoses counts what was found: of the halt, or that the link was away.
type Diagnoses struct {
	Release      int `json:"release"`
	Machine      int `json:"machine"`
	Link         int `json:"link"`
	Inconclusive int `json:"inconclusive"`
}

func (d *Diagnoses) count(what events.Diagnosis) {
	switch what {
	case events.DiagnosisRelease:
		d.Release++
	case events.DiagnosisMachine:
		d.Machine++
	case events.DiagnosisLink:
		d.Link++
	case events.DiagnosisInconclusive:
		d.Inconclusive++
	}
}

// StatedRuns is how many runs a target needs to be judged.
const StatedRuns = 100

// Judgeable says why runs like these cannot be held against the targets, or "".
func Judgeable(runs int, opts Options) string {
	stated := StatedPolicy()
	switch {
	case runs < StatedRuns:
		return fmt.Sprintf("%d seeds are too few, use at least %d", runs, StatedRuns)
	case opts.Cohort != StatedCohort:
		return fmt.Sprintf("they are stated for a cohort of %d", StatedCohort)
	case !slices.Equal(opts.Policy.Batches, stated.Batches):
		return "they are stated for batches " + strings.Join(stated.Batches, ",")
	case opts.Policy.Window != stated.Window || opts.Policy.Tolerate != stated.Tolerate:
		return fmt.Sprintf("they are stated for a window of %s and the tolerance %q", stated.Window, stated.Tolerate)
	}
	return ""
}

// RowOf sums up the runs of one setting.
func RowOf(s Setting, results []Result, opts Options) Row {
	row := Row{Name: s.Name, What: s.What, Must: s.Must, Runs: len(results), Cohort: opts.Cohort}
	if s.most > 0 {
		row.Cohort = min(row.Cohort, s.most)
	}
	var exposed []int
	var took []time.Duration
	for _, r := range results {
		if r.Err != nil {
			row.Broken++
		}
		row.Diagnosis.count(r.Diagnosis)
		exposed, took = append(exposed, r.Exposed), append(took, r.Took)
		if r.Completed {
			row.Completed++
			if r.Reached {
				row.Reached++
			}
		}
		if r.Named {
			row.Named++
		}
		if r.Halted {
			row.Halted++
			if !s.Breaks {
				row.FalseHalts++
			}
		}
	}
	all := row.judge(s, results)
	if len(results) == 0 {
		return row
	}
	slices.Sort(exposed)
	slices.Sort(took)
	row.ExposedP50, row.ExposedP99 = quantile(exposed, 50), quantile(exposed, 99)
	row.TookP50 = quantile(took, 50)
	if Judgeable(len(results), opts) == "" {
		met := row.Broken == 0 && all
		row.Met = &met
	}
	return row
}

// mostAgainst bounds how many runs a row lists by their seeds.
const mostAgainst = 10

// judge counts in how many runs each demand was so, and says whether in enough.
func (r *Row) judge(s Setting, results []Result) bool {
	met := true
	against := make([]bool, len(results))
	for _, d := range s.demands {
		so := 0
		for i, result := range results {
			if d.so(result) {
				so++
			} else {
				against[i] = true
			}
		}
		r.Demands = append(r.Demands, Demand{d.what, so})
		met = met && (len(results)-so)*100 <= d.allowed*len(results)
	}
	for i, result := range results {
		if against[i] && len(r.Against) < mostAgainst {
			r.Against = append(r.Against, result)
		}
	}
	return met
}

// quantile is the smallest value that at least percent of the sorted ones do
// not exceed.
func quantile[T any](sorted []T, percent int) T {
	return sorted[(len(sorted)*percent+99)/100-1]
}

// Verdict is the row's in one word.
func (r Row) Verdict() string {
	switch {
	case r.Broken > 0:
		return fmt.Sprintf("BROKEN in %d", r.Broken)
	case r.Met == nil:
		return "-"
	case *r.Met:
		return "ok"
	}
	return "MISSED"
}

var heads = []string{"WORLD", "RUNS", "HALTED", "FALSE HALTS", "COMPLETED", "EXPOSED P50/P99", "RELEASE/MACHINE/LINK/INCONCLUSIVE", "MUST", "RUNS IN WHICH", "VERDICT"}

func (r Row) cells() []string {
	d := r.Diagnosis
	return []string{
		r.Name, fmt.Sprint(r.Runs), fmt.Sprint(r.Halted), fmt.Sprint(r.FalseHalts), fmt.Sprint(r.Completed),
		fmt.Sprintf("%d/%d", r.ExposedP50, r.ExposedP99),
		fmt.Sprintf("%d/%d/%d/%d", d.Release, d.Machine, d.Link, d.Inconclusive),
		r.Must, r.figures(), r.Verdict(),
	}
}

// figures is what the target is about, in numbers.
func (r Row) figures() string {
	var out []string
	for _, d := range r.Demands {
		out = append(out, fmt.Sprintf("%s: %d", d.What, d.Runs))
	}
	return strings.Join(out, ", ")
}

// Print writes the table for a terminal: the figures, and below them what each
// world demands and in how many runs that was so.
func Print(out io.Writer, rows []Row) error {
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "WORLD\tRUNS\tHALTED\tFALSE\tCOMPLETED\tEXPOSED P50/P99\tDIAGNOSIS R/M/L/I\tVERDICT")
	for _, r := range rows {
		c := r.cells()
		fmt.Fprintln(t, strings.Join(append(c[:7:7], c[9]), "\t"))
	}
	fmt.Fprintln(t)
	for _, r := range rows {
		fmt.Fprintf(t, "%s\t%s\n", r.Name, r.Must)
		if f := r.figures(); f != "" {
			fmt.Fprintf(t, "\t%s of %d\n", f, r.Runs)
		}
	}
	if err := t.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintln(out, "\nDIAGNOSIS: release, machine, link, inconclusive. FALSE: halts of a release that was good.")
	return err
}

// PrintMarkdown writes the table for a document.
func PrintMarkdown(out io.Writer, rows []Row) error {
	line := func(cells []string) error {
		_, err := fmt.Fprintf(out, "| %s |\n", strings.Join(cells, " | "))
		return err
	}
	head := make([]string, len(heads))
	rule := make([]string, len(heads))
	for i, h := range heads {
		head[i], rule[i] = strings.ToLower(h), "---"
	}
	if err := line(head); err != nil {
		return err
	}
	if err := line(rule); err != nil {
		return err
	}
	for _, r := range rows {
		cells := r.cells()
		cells[0] = "`" + cells[0] + "`"
		if err := line(cells); err != nil {
			return err
		}
	}
	return nil
}
