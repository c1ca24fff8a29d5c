package rollout_test

import (
	"bufio"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"noxmesh/events"
	"noxmesh/projections"
	"noxmesh/rollout"
)

// TestStories tells rollouts of recorded logs and of scenarios. Rewrite with: go
// test ./rollout -run Stories -rewrite
func TestStories(t *testing.T) {
	datadriven.Walk(t, "../testdata/stories", func(t *testing.T, path string) {
		s := newStory()
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			records := s.w.Records
			switch d.Cmd {
			case "recorded": // recorded 0.2.jsonl r2
				records = recordedLog(t, "../testdata/logs/"+d.CmdArgs[0].Key)
			case "tell": // tell r1
			default:
				s.quiet = true
				return s.command(t, d) + "ok\n"
			}
			id := d.CmdArgs[len(d.CmdArgs)-1].Key
			told := rollout.Tell(records, id)
			if told == nil {
				return "there is no such rollout\n"
			}
			if part := rollout.Tell(belonging(t, records, id), id); !reflect.DeepEqual(part, told) {
				t.Errorf("%s: from what belongs to it the story is another one:\n%s", d.Pos, storyText(part))
			}
			return storyText(told)
		})
	})
}

func recordedLog(t *testing.T, path string) (out []events.Record) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		e, err := events.Decode(lines.Bytes())
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, events.Record{Seq: uint64(len(out) + 1), Event: e})
	}
	return out
}

// belonging is what a client asks the log for: see [rollout.Belongs].
func belonging(t *testing.T, records []events.Record, id string) (out []events.Record) {
	t.Helper()
	x := projections.NewIndex()
	var seqs []uint64
	for _, rec := range records {
		if err := x.Apply(rec); err != nil {
			t.Fatal(err)
		}
	}
	started := records[x.Find(projections.Query{Rollout: id, Type: "rollout.started"})[0]-1]
	fact, err := started.Event.Fact()
	if err != nil {
		t.Fatal(err)
	}
	for _, q := range rollout.Belongs(id, started, fact.(*events.RolloutStarted)) {
		for _, seq := range x.Find(q) {
			fact, _ := records[seq-1].Event.Fact()
			for _, c := range rollout.Cited(fact) {
				seqs = append(seqs, c.Events...)
			}
			seqs = append(seqs, seq)
		}
	}
	slices.Sort(seqs)
	for _, seq := range slices.Compact(seqs) {
		out = append(out, records[seq-1])
	}
	return out
}

func storyText(s *rollout.Story) string {
	var out strings.Builder
	fmt.Fprintf(&out, "%s of %s: %s, %d nodes, %v\n", s.Rollout, s.Version, s.State, s.Cohort, s.Counts)
	for _, step := range s.Steps {
		fmt.Fprintf(&out, "%v %s\n", step.Events, step.Text)
		for _, line := range step.Details {
			fmt.Fprintf(&out, "  - %s\n", line)
		}
	}
	return out.String()
}
