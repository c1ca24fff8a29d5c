package rollout_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"noxmesh/events"
	"noxmesh/rollout"
	"noxmesh/rollout/simulate"
)

// TestScenarios runs the stories in testdata/scenarios. Rewrite their traces
// with: go test ./rollout -run Scenarios -rewrite
func TestScenarios(t *testing.T) {
	datadriven.Walk(t, "../testdata/scenarios", func(t *testing.T, path string) {
		s := newStory()
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			s.trace.Reset()
			out := s.command(t, d)
			if err := s.w.Err(); err != nil {
				t.Fatalf("%s: %v\n%s", d.Pos, err, s.trace.String())
			}
			if out = s.trace.String() + out; out != "" {
				return out
			}
			return "ok\n"
		})
		if err := errors.Join(notClean(s.w.Records, s.w.Messages()), notClean(s.w.Records, nil)); err != nil {
			t.Errorf("%s: an audit finds %v", path, err)
		}
	})
}

// story is a world that commands in a text act on. Everything in it takes a
// known time, see [simulate.Story].
type story struct {
	w      *simulate.World
	trace  strings.Builder
	quiet  bool
	wanted []rollout.Pending // remembered
}

func newStory() *story {
	s := &story{w: simulate.NewWorld(simulate.Story())}
	s.w.OnEvent = func(rec events.Record, fact events.Fact) {
		if _, ok := fact.(*events.NodeConfirmed); !ok && !s.quiet {
			fmt.Fprintln(&s.trace, simulate.TraceLine(rec, fact))
		}
	}
	return s
}

func (s *story) command(t *testing.T, d *datadriven.TestData) string {
	w := s.w
	nodes := func(args []datadriven.CmdArg) (out []*simulate.Node) {
		for _, arg := range args {
			n := w.Node(arg.Key)
			if n == nil {
				t.Fatalf("%s: there is no node %q", d.Pos, arg.Key)
			}
			out = append(out, n)
		}
		return out
	}
	last := len(d.CmdArgs) - 1
	switch d.Cmd {
	case "fleet": // fleet n=4 [version=1.0.0] [site=ams] [arch=arm64] [prefix=m]
		s.fleet(t, d)
	case "release": // release 1.1.0
		s.quiet = true
		w.AddRelease(d.CmdArgs[0].Key, "amd64", "arm64")
		s.quiet = false
	case "behave": // behave n01 n02 crash
		for _, n := range nodes(d.CmdArgs[:last]) {
			n.SetBehaviour(simulate.Behaviour(d.CmdArgs[last].Key))
		}
	case "all": // all crash
		for _, id := range w.Nodes() {
			w.Node(id).SetBehaviour(simulate.Behaviour(d.CmdArgs[0].Key))
		}
	case "away", "back": // away n01: the lid is closed
		for _, n := range nodes(d.CmdArgs) {
			n.SetAway(d.Cmd == "away")
		}
	case "cut", "mend": // cut n01: it runs on and nobody hears it
		for _, n := range nodes(d.CmdArgs) {
			n.SetCut(d.Cmd == "cut")
		}
	case "deaf", "listen":
		w.SetDeaf(d.Cmd == "deaf")
	case "rollback": // rollback n01: the version ran there and does no more
		for _, n := range nodes(d.CmdArgs) {
			n.RollBack()
		}
		w.Advance(0)
	case "stager": // stager off
		w.Sleep(d.CmdArgs[0].Key == "off")
	case "remember": // remember r1: what a server that decides now wants to write
		return s.remember(d.CmdArgs[0].Key)
	case "append": // append r1: it comes to write that
		for _, p := range s.wanted {
			if err := w.Append(p); err != nil {
				return "refused: " + err.Error() + "\n"
			}
		}
	case "restart": // the server starts again: its state is a fold of the log
		if err := w.Refold(); err != nil {
			t.Fatalf("%s: %v", d.Pos, err)
		}
	case "decommission": // decommission n01
		for _, n := range nodes(d.CmdArgs) {
			w.Decommission(n.ID)
		}
	case "hold": // hold 1.1.0
		w.Hold(d.CmdArgs[0].Key, "by hand")
	case "lift":
		w.Lift(d.CmdArgs[0].Key, "")
	case "advance": // advance 30s
		w.Advance(span(t, d, d.CmdArgs[0].Key))
	case "start": // start 1.1.0 [batches=(2,100%)] [window=2m] [soak=1m] [max-failed=1] [select=site=ams] [retry]
		if _, err := w.Start(request(t, d)); err != nil {
			return err.Error() + "\n"
		}
	case "pause", "resume", "abort", "revert": // resume r1 [retry | leave-out]
		if err := s.operate(d); err != nil {
			return err.Error() + "\n"
		}
	case "status": // status r1
		return s.status(d.CmdArgs[0].Key)
	default:
		t.Fatalf("%s: unknown command %q", d.Pos, d.Cmd)
	}
	return ""
}

func (s *story) fleet(t *testing.T, d *datadriven.TestData) {
	n, version, site, prefix, arch := 0, "1.0.0", "", "n", "amd64"
	d.ScanArgs(t, "n", &n)
	d.MaybeScanArgs(t, "version", &version)
	d.MaybeScanArgs(t, "site", &site)
	d.MaybeScanArgs(t, "prefix", &prefix)
	d.MaybeScanArgs(t, "arch", &arch)
	var labels map[string]string
	if site != "" {
		labels = map[string]string{"site": site}
	}
	s.quiet = true
	for i := 1; i <= n; i++ {
		s.w.AddNode(fmt.Sprintf("%s%02d", prefix, i), version, labels).Architecture = arch
	}
	s.quiet = false
}

func span(t *testing.T, d *datadriven.TestData, text string) time.Duration {
	v, err := time.ParseDuration(text)
	if err != nil {
		t.Fatalf("%s: %v", d.Pos, err)
	}
	return v
}

func request(t *testing.T, d *datadriven.TestData) rollout.Request {
	req := rollout.Request{Version: d.CmdArgs[0].Key, Policy: rollout.DefaultPolicy(), Seed: 1}
	for _, arg := range d.CmdArgs[1:] {
		switch arg.Key {
		case "batches":
			req.Policy.Batches = arg.Vals
		case "window":
			req.Policy.Window = events.Duration(span(t, d, arg.Vals[0]))
		case "soak":
			req.Policy.Soak = events.Duration(span(t, d, arg.Vals[0]))
		case "max-failed":
			req.Policy.Tolerate = arg.Vals[0]
			if _, err := fmt.Sscanf(arg.Vals[0], "%d", &req.Policy.MaxFailed); err == nil && !strings.HasSuffix(arg.Vals[0], "%") {
				req.Policy.Tolerate = ""
			}
		case "retry":
			req.Retry = true
		case "select":
			req.Selector = strings.Join(arg.Vals, "=")
		default:
			t.Fatalf("%s: unknown argument %q", d.Pos, arg.Key)
		}
	}
	return req
}

// operate is an operator's command about a rollout.
func (s *story) operate(d *datadriven.TestData) error {
	m := s.w.Mesh()
	id := d.CmdArgs[0].Key
	r := m.Rollouts[id]
	if r == nil {
		return fmt.Errorf("there is no rollout %q", id)
	}
	var fact events.Fact
	var err error
	switch d.Cmd {
	case "pause":
		fact, err = rollout.Pause(r, "lunch")
	case "resume":
		mode := events.ResumeMode("")
		if len(d.CmdArgs) > 1 {
			mode = events.ResumeMode(d.CmdArgs[1].Key)
		}
		fact, err = rollout.Resume(m, r, mode, "")
	case "abort":
		fact, err = rollout.Abort(m, r, "")
	case "revert":
		fact, err = rollout.Revert(m, r, "")
	}
	if err != nil {
		return err
	}
	return s.w.Do(id, fact)
}

func (s *story) remember(id string) string {
	s.wanted = rollout.Decide(s.w.Mesh(), id, s.w.Now()).Events
	var out strings.Builder
	for _, p := range s.wanted {
		fmt.Fprintf(&out, "wants: %s\n", simulate.Describe(p.Subject, p.Fact))
	}
	return out.String()
}

func (s *story) status(id string) string {
	st := rollout.StatusOf(s.w.Mesh(), id, s.w.Now())
	var out strings.Builder
	sum := 0
	for _, n := range st.Counts {
		sum += n
	}
	fmt.Fprintf(&out, "%s %s batch %d of %d, declared %d, counts %v", st.ID, st.State, st.Stage, st.Batches, st.Declared, st.Counts)
	if sum != st.Cohort {
		fmt.Fprintf(&out, " DO NOT ADD UP TO %d", st.Cohort)
	}
	for _, line := range st.Waiting {
		fmt.Fprintf(&out, "\nwaiting: %s", line)
	}
	for _, n := range st.Nodes {
		if n.Detail != "" {
			fmt.Fprintf(&out, "\n%s: %s: %s", n.Node, n.Outcome, n.Detail)
		}
	}
	return out.String() + "\n"
}
