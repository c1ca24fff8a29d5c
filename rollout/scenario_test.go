package rollout_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"noxmesh/events"
	"noxmesh/projections"
	"noxmesh/rollout"
)

// TestScenarios runs the stories in testdata/scenarios. Rewrite their traces
// with: go test ./rollout -run Scenarios -rewrite
func TestScenarios(t *testing.T) {
	datadriven.Walk(t, "../testdata/scenarios", func(t *testing.T, path string) {
		w := newWorld()
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			w.trace.Reset()
			out := w.command(t, d)
			if s := w.trace.String() + out; s != "" {
				return s
			}
			return "ok\n"
		})
	})
}

func (w *world) command(t *testing.T, d *datadriven.TestData) string {
	switch d.Cmd {
	case "fleet": // fleet n=4 [version=1.0.0] [site=ams]
		n, version, site, prefix := 0, "1.0.0", "", "n"
		d.ScanArgs(t, "n", &n)
		d.MaybeScanArgs(t, "version", &version)
		d.MaybeScanArgs(t, "site", &site)
		d.MaybeScanArgs(t, "prefix", &prefix)
		var labels map[string]string
		if site != "" {
			labels = map[string]string{"site": site}
		}
		w.quiet = true
		for i := 1; i <= n; i++ {
			w.enroll(fmt.Sprintf("%s%02d", prefix, i), version, labels)
		}
		w.quiet = false
	case "release": // release 1.1.0
		w.quiet = true
		w.release(d.CmdArgs[0].Key)
		w.quiet = false
	case "behave": // behave n01 crash
		for _, arg := range d.CmdArgs[:len(d.CmdArgs)-1] {
			n := w.nodes[arg.Key]
			n.mode, n.reported = d.CmdArgs[len(d.CmdArgs)-1].Key, false
		}
	case "all": // all crash
		for _, n := range w.nodes {
			n.mode = d.CmdArgs[0].Key
		}
	case "away", "back": // away n01
		for _, arg := range d.CmdArgs {
			w.nodes[arg.Key].away = d.Cmd == "away"
		}
	case "deaf":
		w.deaf = true
	case "listen":
		w.deaf, w.since = false, w.now
	case "advance": // advance 30s
		span, err := time.ParseDuration(d.CmdArgs[0].Key)
		if err != nil {
			t.Fatal(err)
		}
		w.advance(span)
	case "start": // start 1.1.0 [batches=(2,100%)] [window=2m] [select=site=ams]
		req := rollout.Request{Version: d.CmdArgs[0].Key, Policy: rollout.DefaultPolicy(), Seed: 1}
		for _, arg := range d.CmdArgs[1:] {
			switch arg.Key {
			case "batches":
				req.Policy.Batches = arg.Vals
			case "window":
				span, err := time.ParseDuration(arg.Vals[0])
				if err != nil {
					t.Fatal(err)
				}
				req.Policy.Window = events.Duration(span)
			case "max-failed":
				fmt.Sscan(arg.Vals[0], &req.Policy.MaxFailed)
			case "retry":
				req.Retry = true
			case "select":
				req.Selector = strings.Join(arg.Vals, "=")
			}
		}
		if _, err := w.start(req); err != nil {
			return err.Error() + "\n"
		}
		w.decide()
	case "abort": // abort r1
		r := w.mesh.Rollouts[d.CmdArgs[0].Key]
		if r == nil {
			return "no such rollout\n"
		}
		fact := &events.RolloutAborted{}
		if r.State == projections.Running {
			fact.Recall = rollout.Recallable(w.mesh, r, r.OpenBatch())
		}
		w.must(w.append(w.event(r.ID, fact), r.Seq))
		w.decide()
	case "status": // status r1
		s := rollout.StatusOf(w.mesh, d.CmdArgs[0].Key, w.now)
		var out strings.Builder
		sum := 0
		for _, n := range s.Counts {
			sum += n
		}
		fmt.Fprintf(&out, "%s %s batch %d of %d, declared %d, counts %v", s.ID, s.State, s.Batch, s.Batches, s.Declared, s.Counts)
		if sum != s.Cohort {
			fmt.Fprintf(&out, " DO NOT ADD UP TO %d", s.Cohort)
		}
		for _, line := range s.Waiting {
			fmt.Fprintf(&out, "\nwaiting: %s", line)
		}
		for _, n := range s.Nodes {
			if n.Detail != "" {
				fmt.Fprintf(&out, "\n%s: %s: %s", n.Node, n.Outcome, n.Detail)
			}
		}
		return out.String() + "\n"
	default:
		t.Fatalf("unknown command %q", d.Cmd)
	}
	return ""
}
