package rollout_test

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"noxmesh/events"
	"noxmesh/projections"
	"noxmesh/rollout"
	"noxmesh/rollout/simulate"
)

// audit gives a log and the heartbeats that are left to an audit.
func audit(log []events.Record, beats []events.Message) (*rollout.AuditResult, error) {
	a := rollout.NewAudit("")
	for _, rec := range log {
		if err := a.Event(rec); err != nil {
			return nil, err
		}
	}
	for _, b := range beats {
		if err := a.Heartbeat(b); err != nil {
			return nil, err
		}
	}
	return a.Result()
}

// notClean says what an audit finds, and what it could not recompute.
func notClean(log []events.Record, beats []events.Message) error {
	res, err := audit(log, beats)
	if err != nil {
		return err
	}
	for _, f := range res.Findings {
		return fmt.Errorf("event %d %s of %s %s: recorded %s; the policy says %s", f.Event, f.Type, f.Rollout, f.Node, f.Recorded, f.Policy)
	}
	for _, d := range res.Decisions {
		if len(beats) > 0 && beats[0].Seq == 1 && !d.Command && d.How != rollout.Recomputed {
			return fmt.Errorf("event %d %s of %s %s is %s only: %v", d.Event, d.Type, d.Rollout, d.Node, d.How, d.NotSeen)
		}
	}
	return nil
}

// TestWorldsAuditClean: what the stager decides in any world is what the policy
// says, from both streams and from the log alone.
func TestWorldsAuditClean(t *testing.T) {
	seeds := 4
	if testing.Short() {
		seeds = 1
	}
	for _, s := range simulate.Settings() {
		t.Run(s.Name, func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(seeds) {
				audited := false
				simulate.Run(s, seed+1, simulate.Options{Cohort: 60, Record: func(log []events.Record, beats []events.Message) {
					audited = true
					for what, kept := range map[string][]events.Message{"everything": beats, "the log alone": nil, "half of the heartbeats": beats[len(beats)/2:]} {
						if err := notClean(log, kept); err != nil {
							t.Errorf("seed %d, from %s: %v", seed+1, what, err)
						}
					}
				}})
				if !audited {
					t.Errorf("seed %d was not audited", seed+1)
				}
			}
		})
	}
}

// TestRecordedLogsAuditClean: logs of earlier versions, of which no heartbeat is
// left.
func TestRecordedLogsAuditClean(t *testing.T) {
	paths, err := filepath.Glob("../testdata/logs/*.jsonl")
	if err != nil || len(paths) < 2 {
		t.Fatalf("found %v, %v", paths, err)
	}
	for _, path := range paths {
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		var log []events.Record
		for lines := bufio.NewScanner(f); lines.Scan(); {
			e, err := events.Decode(lines.Bytes())
			if err != nil {
				t.Fatal(err)
			}
			log = append(log, events.Record{Seq: uint64(len(log)) + 1, Event: e})
		}
		if err := notClean(log, nil); err != nil {
			t.Errorf("%s: %v", path, err)
		}
		res, err := audit(log, nil)
		if err != nil {
			t.Fatal(err)
		}
		if len(res.Rollouts) != 2 || res.Rollouts[0].State != projections.Completed || res.Rollouts[1].State != projections.Halted {
			t.Errorf("%s: %+v", path, res.Rollouts)
		}
		for _, d := range res.Decisions {
			if !d.Command && (d.How != rollout.Checked || len(d.NotSeen) == 0) {
				t.Errorf("%s: event %d is %s, and %q could not be looked at", path, d.Event, d.How, d.NotSeen)
			}
		}
	}
}
