package rollout_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"noxmesh/events"
	"noxmesh/rollout"
	"noxmesh/rollout/simulate"
)

// forgery is a log with one event that the stager did not decide.
type forgery struct {
	t   *testing.T
	log []events.Record
	at  uint64 // sequence of the forged event
}

// find gives the event with some type and a rollout's or node's subject, counted
// from 1.
func (f *forgery) find(typ events.Fact, count int) *events.Record {
	for i := range f.log {
		if f.log[i].Event.Type == typ.EventType() {
			if count--; count == 0 {
				return &f.log[i]
			}
		}
	}
	f.t.Fatalf("there is no such %s", typ.EventType())
	return nil
}

// edit changes a recorded fact.
func edit[F events.Fact](f *forgery, typ F, count int, change func(F)) {
	rec := f.find(typ, count)
	fact, err := rec.Event.Fact()
	if err != nil {
		f.t.Fatal(err)
	}
	change(fact.(F))
	f.replace(rec, fact)
}

// replace puts another fact in the place of a recorded one.
func (f *forgery) replace(rec *events.Record, fact events.Fact) {
	e := rec.Event
	rec.Event = events.NewWithID(e.ID, e.Subject, fact, events.Origin{Source: e.Source, Actor: e.Actor, Cause: e.Cause}, e.Time)
	f.at = rec.Seq
}

// add writes a fact at the log's end, a while after what is there.
func (f *forgery) add(subject, actor, cause string, fact events.Fact) {
	last := f.log[len(f.log)-1]
	f.at = last.Seq + 1
	f.log = append(f.log, events.Record{Seq: f.at, Event: events.New(subject, fact,
		events.Origin{Source: "forged", Actor: actor, Cause: cause}, last.Event.Time.Add(10*time.Minute))})
}

// end is what a forger claims to have read.
func (f *forgery) end() events.Position {
	return events.Position{Event: uint64(len(f.log)), Heartbeat: 1}
}

func (f *forgery) declaration(node string, batch int, kind events.CauseKind) *events.Declared {
	fact, err := f.find(&events.Declared{}, 1).Event.Fact()
	if err != nil {
		f.t.Fatal(err)
	}
	d := *fact.(*events.Declared)
	d.Node, d.Because.Batch, d.Because.Kind, d.AsOf = node, batch, kind, f.end()
	return &d
}

// TestForgedDecisionsAreNamed: each decision that the policy does not bear out is
// named, with and without the heartbeats of then.
func TestForgedDecisionsAreNamed(t *testing.T) {
	good := recorded(t)
	all := good.Nodes()
	bad := recorded(t, all...)                                                                                // halts in its second batch
	some := recorded(t, slices.DeleteFunc(slices.Clone(all), func(id string) bool { return id[2] > '6' })...) // with some of it waiting
	silent := func(nodes []events.NodePassed) (out []events.Failure) {
		for _, n := range nodes {
			out = append(out, events.Failure{Node: n.Node, Kind: events.Silent, Evidence: n.Evidence})
		}
		return out
	}
	var (
		opened    = &events.BatchOpened{}
		passed    = &events.BatchPassed{}
		halted    = &events.RolloutHalted{}
		declared  = &events.Declared{}
		completed = &events.RolloutCompleted{}
	)
	for _, tt := range []struct {
		name  string
		world *simulate.World
		forge func(f *forgery)
		want  string // of the finding by the log alone; empty: it takes the heartbeats to see it
		again string // of the finding by decision anew, if that says something else
	}{
		{"a batch too large", good, func(f *forgery) {
			edit(f, opened, 2, func(b *events.BatchOpened) {
				b.Nodes, b.Presence = append(b.Nodes, "nd9"), append(b.Presence, b.Presence[0])
			})
		}, "at most 18: the target of stage 2 is 20 of 40", ""},
		{"a node not in the cohort", good, func(f *forgery) {
			edit(f, opened, 2, func(b *events.BatchOpened) { b.Nodes[0] = "stranger" })
		}, "it is not in the cohort", ""},
		{"a node twice", good, func(f *forgery) {
			edit(f, opened, 2, func(b *events.BatchOpened) { b.Nodes[0] = b.Nodes[1] })
		}, "once", ""},
		{"a node that passed", good, func(f *forgery) {
			edit(f, opened, 2, func(b *events.BatchOpened) {
				first, _ := f.find(opened, 1).Event.Fact()
				b.Nodes[0] = first.(*events.BatchOpened).Nodes[0]
			})
		}, "it is passed in batch 1", ""},
		{"the wrong stage", good, func(f *forgery) {
			edit(f, opened, 2, func(b *events.BatchOpened) { b.Stage = 3 })
		}, "stage 2 is next", ""},
		{"canaries of another choice", good, func(f *forgery) {
			edit(f, opened, 1, func(b *events.BatchOpened) { slices.Reverse(b.Nodes); slices.Reverse(b.Presence) })
		}, "", "nodes: "},
		{"presence shown by another node", good, func(f *forgery) {
			edit(f, opened, 2, func(b *events.BatchOpened) { b.Presence[0] = b.Presence[1] })
		}, "", "is on mesh.heartbeat."},
		{"a batch after a halt", bad, func(f *forgery) {
			f.add("r1", "stager", "", &events.BatchOpened{Batch: 3, Stage: 3, Nodes: []string{"nd9"}, Presence: []uint64{1}, AsOf: f.end()})
		}, "the rollout is halted", ""},
		{"a batch that asks to try again", good, func(f *forgery) {
			edit(f, opened, 2, func(b *events.BatchOpened) { b.Retry = true })
		}, "retry false", ""},
		{"a batch that leaves out who is not judged", some, func(f *forgery) {
			f.log = f.log[:f.find(halted, 1).Seq]
			f.add("r1", "operator", "", &events.RolloutResumed{Because: events.ByOperator, Mode: events.ResumeLeaveOut})
			f.add("r1", "stager", "", &events.BatchOpened{Batch: 3, Stage: 2, Nodes: []string{"nd9"}, Presence: []uint64{1}, AsOf: f.end()})
		}, "it comes first", ""},
		{"a batch after a canary rolled back", good, func(f *forgery) {
			f.log = f.log[:f.find(passed, 1).Seq]
			first, _ := f.find(opened, 1).Event.Fact()
			canary := first.(*events.BatchOpened).Nodes[0]
			f.add(canary, "node:"+canary, "", &events.NodeRolledBack{From: "1.1.0", To: "1.0.0"})
			f.add("r1", "stager", "", &events.RolloutAmended{AsOf: f.end(), Failures: []events.Failure{
				{Node: canary, Kind: events.RolledBack, Evidence: events.Evidence{Events: []uint64{f.at}}}}})
			f.add("r1", "stager", "", &events.BatchOpened{Batch: 2, Stage: 2, Nodes: []string{"nd9"}, Presence: []uint64{1}, AsOf: f.end()})
		}, "any failure of a canary halts", ""},
		{"somebody else's decision", good, func(f *forgery) {
			rec := f.find(passed, 1)
			rec.Event.Actor, f.at = "mallory", rec.Seq
		}, "only the stager decides that", ""},
		{"a pass with too many failures", good, func(f *forgery) {
			edit(f, passed, 2, func(b *events.BatchPassed) { b.Failures, b.Passed = silent(b.Passed[:11]), b.Passed[11:] })
		}, "to halt: 11 in batch 2 are more than the 10 tolerated", ""},
		{"a pass with a node unjudged", good, func(f *forgery) {
			edit(f, passed, 2, func(b *events.BatchPassed) { b.Passed = b.Passed[1:] })
		}, "is not judged", ""},
		{"a pass with a node that is there called gone", good, func(f *forgery) {
			edit(f, passed, 2, func(b *events.BatchPassed) { b.Gone, b.Passed = []string{b.Passed[0].Node}, b.Passed[1:] })
		}, "it is waiting", ""},
		{"a pass by another node's heartbeats", good, func(f *forgery) {
			edit(f, passed, 2, func(b *events.BatchPassed) { b.Passed[0].Evidence = b.Passed[1].Evidence })
		}, "", "is on mesh.heartbeat."},
		{"a pass by another start", good, func(f *forgery) {
			edit(f, passed, 2, func(b *events.BatchPassed) { b.Passed[0].StartID = "made-up" })
		}, "", "says 1.1.0, known good 1.1.0"},
		{"a pass by heartbeats that were not read", good, func(f *forgery) {
			edit(f, passed, 2, func(b *events.BatchPassed) { b.Passed[0].Evidence.Heartbeats[1] = b.AsOf.Heartbeat + 1 })
		}, "only heartbeats up to", ""},
		{"a pass without a soak", good, func(f *forgery) {
			edit(f, passed, 2, func(b *events.BatchPassed) { h := b.Passed[0].Evidence.Heartbeats; h[1] = h[0] })
		}, "a soak of 1m0s", ""},
		{"a pass with a soak cut short", good, func(f *forgery) {
			edit(f, passed, 2, func(b *events.BatchPassed) { b.Passed[0].To = b.Passed[0].From.Add(59 * time.Second) })
		}, "a soak of 1m0s", ""},
		{"a failure before the mesh had listened long enough", good, func(f *forgery) {
			edit(f, passed, 2, func(b *events.BatchPassed) {
				b.Failures, b.Passed = silent(b.Passed[:1]), b.Passed[1:]
				b.Failures[0].Listened = events.Duration(119 * time.Second)
			})
		}, "listened for the whole window of 2m0s", ""},
		{"a pass of a node that rolled back", bad, func(f *forgery) {
			rec := f.find(halted, 1)
			fact, _ := rec.Event.Fact()
			h := fact.(*events.RolloutHalted)
			p := &events.BatchPassed{Batch: h.Batch, AsOf: h.AsOf, Passed: h.Passed}
			for _, x := range h.Failures {
				p.Passed = append(p.Passed, events.NodePassed{Node: x.Node, StartID: "x", Evidence: events.Evidence{Heartbeats: []uint64{1, 2}}})
			}
			f.replace(rec, p)
		}, "it rolled 1.1.0 back", ""},
		{"a failure before its window is over", good, func(f *forgery) {
			edit(f, passed, 2, func(b *events.BatchPassed) { b.Failures, b.Passed = silent(b.Passed[:1]), b.Passed[1:] })
		}, "to wait until the window of 2m0s is over", ""},
		{"a halt without failures", good, func(f *forgery) {
			f.replace(f.find(passed, 2), &events.RolloutHalted{Batch: 2, Diagnosis: events.DiagnosisRelease, Undeclared: 20,
				AsOf: events.Position{Event: f.find(passed, 2).Seq - 1, Heartbeat: 100}})
		}, "to go on: no failure is tolerated", ""},
		{"a halt by a rollback that nobody reported", good, func(f *forgery) {
			rec := f.find(passed, 2)
			fact, _ := rec.Event.Fact()
			b := fact.(*events.BatchPassed)
			h := &events.RolloutHalted{Batch: 2, Diagnosis: events.DiagnosisRelease, Undeclared: 20, AsOf: b.AsOf}
			for _, p := range b.Passed[:11] {
				h.Failures = append(h.Failures, events.Failure{Node: p.Node, Kind: events.RolledBack, Evidence: events.Evidence{Events: []uint64{1}}})
			}
			f.replace(rec, h)
		}, "no report of it says that it rolled 1.1.0 back", ""},
		{"a halt that calls it another thing", bad, func(f *forgery) {
			edit(f, halted, 1, func(h *events.RolloutHalted) { h.Diagnosis = events.DiagnosisMachine })
		}, "release: ", ""},
		{"a halt that miscounts", bad, func(f *forgery) {
			edit(f, halted, 1, func(h *events.RolloutHalted) { h.Undeclared++ })
		}, "20", ""},
		{"a halt after longer than there was", bad, func(f *forgery) {
			edit(f, halted, 1, func(h *events.RolloutHalted) { h.Listened = events.Duration(24 * time.Hour) })
		}, "batch 2 is open for", ""},
		{"a halt that cites another node's report", bad, func(f *forgery) {
			edit(f, halted, 1, func(h *events.RolloutHalted) {
				h.Failures[0].Evidence, h.Failures[1].Evidence = h.Failures[1].Evidence, h.Failures[0].Evidence
			})
		}, "rolled-back (event ", ""},
		{"a halt that leaves a failure out", bad, func(f *forgery) {
			edit(f, halted, 1, func(h *events.RolloutHalted) { h.Failures = h.Failures[:len(h.Failures)-1] })
		}, "it rolled 1.1.0 back, event ", ""},
		{"a halt by a failure that nobody recorded", bad, func(f *forgery) {
			edit(f, halted, 1, func(h *events.RolloutHalted) {
				first, _ := f.find(opened, 1).Event.Fact()
				h.Failures = append(h.Failures, events.Failure{Node: first.(*events.BatchOpened).Nodes[0], Kind: events.Unstable})
			})
		}, "none", ""},
		{"a halt that takes back who passed", bad, func(f *forgery) {
			edit(f, halted, 1, func(h *events.RolloutHalted) {
				first, _ := f.find(opened, 1).Event.Fact()
				h.Recall = append(h.Recall, first.(*events.BatchOpened).Nodes[0])
			})
		}, "it is not waiting for 1.1.0", ""},
		{"a link that is not away", good, func(f *forgery) {
			f.replace(f.find(passed, 2), &events.RolloutPaused{Because: events.ByLink, Control: events.Control{Nodes: 20, Silent: 1},
				AsOf: events.Position{Event: f.find(passed, 2).Seq - 1, Heartbeat: 100}})
		}, "by these numbers it is not so", ""},
		{"an end before the last batch", good, func(f *forgery) {
			rec := f.find(opened, 3)
			f.replace(rec, &events.RolloutCompleted{Passed: 20, AsOf: events.Position{Event: rec.Seq - 1, Heartbeat: 100}})
		}, "stage 3 of 3 is next", "batch 3 opened"},
		{"an end that miscounts", good, func(f *forgery) {
			edit(f, completed, 1, func(c *events.RolloutCompleted) { c.Passed-- })
		}, "passed: 40", ""},
		{"a declaration of a node that no batch names", good, func(f *forgery) {
			edit(f, declared, 1, func(d *events.Declared) { d.Because.Batch = 2 })
		}, "no batch 2 of r1 names it", ""},
		{"a declaration of another package", good, func(f *forgery) {
			edit(f, declared, 1, func(d *events.Declared) {
				spec := *d.Host()
				spec.SHA256 = strings.Repeat("b", 64)
				d.Resources = []events.Resource{events.ResourceFromSpec(events.ResourceHost, events.HostPackage, spec)}
			})
		}, "what the plan has", ""},
		{"a declaration with a file of the forger's", good, func(f *forgery) {
			edit(f, declared, 1, func(d *events.Declared) {
				d.Resources = append([]events.Resource{events.ResourceFromSpec(events.ResourceFile, "/root/x", events.FileSpec{Mode: "0644"})}, d.Resources...)
			})
		}, "none", ""},
		{"a declaration that follows from something else", good, func(f *forgery) {
			rec := f.find(declared, 1)
			rec.Event.Cause, f.at = "made-up", rec.Seq
		}, "caused by event ", ""},
		{"a declaration of a version that is held", good, func(f *forgery) {
			batch := f.find(opened, 2)
			fact, _ := batch.Event.Fact()
			f.log = f.log[:batch.Seq]
			f.add(events.ReleaseKey("1.1.0", "amd64"), "operator", "", &events.ReleaseHeld{Reason: "leaks"})
			d := f.declaration(fact.(*events.BatchOpened).Nodes[0], 2, events.CauseBatch)
			f.add(d.Node, "stager", batch.Event.ID, d)
		}, "nobody is declared it", ""},
		{"more of the tail than may be watched", good, func(f *forgery) {
			f.add("r1", "stager", "", &events.BatchOpened{Batch: 4, Stage: 4, Tail: true, AsOf: f.end(),
				Nodes: []string{"na0", "na1", "na2"}, Presence: []uint64{1, 1, 1}})
		}, "at most 2: 40 passed", ""},
		{"a declaration made twice", good, func(f *forgery) {
			first, _ := f.find(declared, 1).Event.Fact()
			d := f.declaration(first.(*events.Declared).Node, 1, events.CauseBatch)
			d.Revision = 2
			f.add(d.Node, "stager", "", d)
		}, "the rollout is completed", ""},
		{"a declaration after a halt", bad, func(f *forgery) {
			second, _ := f.find(opened, 2).Event.Fact()
			b := second.(*events.BatchOpened)
			d := f.declaration(b.Nodes[0], 2, events.CauseBatch)
			d.Revision = 3
			f.add(d.Node, "stager", f.find(opened, 2).Event.ID, d)
		}, "the rollout is halted", ""},
		{"a declaration after a halt that pretends not to know", bad, func(f *forgery) {
			second, _ := f.find(opened, 2).Event.Fact()
			d := f.declaration(second.(*events.BatchOpened).Nodes[0], 2, events.CauseBatch)
			d.AsOf.Event = f.find(halted, 1).Seq - 1
			f.add(d.Node, "stager", f.find(opened, 2).Event.ID, d)
		}, "ended that", ""},
		{"a node taken back that nobody asked for", good, func(f *forgery) {
			first, _ := f.find(declared, 1).Event.Fact()
			d := f.declaration(first.(*events.Declared).Node, 1, events.CauseRecall)
			d.Revision = 2
			f.add(d.Node, "stager", "", d)
		}, "nothing in the log leads to it", ""},
		{"a revert that nobody gave", good, func(f *forgery) {
			first, _ := f.find(declared, 1).Event.Fact()
			d := f.declaration(first.(*events.Declared).Node, 1, events.CauseRevert)
			d.Revision = 2
			f.add(d.Node, "stager", "", d)
		}, "nobody reverted rollout r1", ""},
		{"a hold without late evidence", good, func(f *forgery) {
			f.add(events.ReleaseKey("1.1.0", "amd64"), "stager", "", &events.ReleaseHeld{Reason: "made up", Rollout: "r1", AsOf: f.end()})
		}, "nothing in the log leads to it", ""},
		{"late evidence about a node that was judged", good, func(f *forgery) {
			f.add("r1", "stager", "", &events.RolloutAmended{AsOf: f.end(), Failures: []events.Failure{{Node: "na0", Kind: events.Silent}}})
		}, "only its own word changes that", ""},
		{"a decision that rests on what came later", good, func(f *forgery) {
			edit(f, passed, 1, func(b *events.BatchPassed) { b.AsOf.Event += 100 })
		}, "a decision cannot rest on what came after it", ""},
		{"a decision that has not read the one before", good, func(f *forgery) {
			edit(f, passed, 2, func(b *events.BatchPassed) { b.AsOf.Event = f.find(opened, 2).Seq - 1 })
		}, "whoever has not read that writes nothing", ""},
		{"a rollout that nobody started", good, func(f *forgery) {
			f.add("r7", "stager", "", &events.BatchOpened{Batch: 1, Stage: 1, Nodes: []string{"na0"}, Presence: []uint64{1}, AsOf: f.end()})
		}, "there is no rollout r7 that was started", ""},
		{"a command by a stranger", bad, func(f *forgery) {
			f.add("alice", "operator", "", &events.UserAdded{Role: "operator"})
			f.add("r1", "mallory", "", &events.RolloutResumed{Because: events.ByOperator, Mode: events.ResumeRetry})
		}, "nobody of that name was given a credential", ""},
		{"a command by an auditor", bad, func(f *forgery) {
			f.add("alice", "operator", "", &events.UserAdded{Role: "auditor"})
			f.add("r1", "alice", "", &events.RolloutResumed{Because: events.ByOperator, Mode: events.ResumeRetry})
		}, "only operators command that", ""},
		{"a command by one who was shut out", bad, func(f *forgery) {
			f.add("alice", "operator", "", &events.UserAdded{Role: "operator"})
			f.add("alice", "operator", "", &events.UserRevoked{})
			f.add("r1", "alice", "", &events.RolloutResumed{Because: events.ByOperator, Mode: events.ResumeRetry})
		}, "was shut out by event", ""},
		{"a command that the state does not allow", good, func(f *forgery) {
			f.add("r1", "operator", "", &events.RolloutAborted{})
		}, "the rollout is completed", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := &forgery{t: t, log: slices.Clone(tt.world.Records)}
			tt.forge(f)
			for what, beats := range map[string][]events.Message{"with heartbeats": tt.world.Messages(), "by the log alone": nil} {
				want := []string{tt.want, tt.again}
				if beats == nil {
					want = want[:1]
				}
				res, err := audit(f.log, beats)
				if err != nil {
					t.Fatal(err)
				}
				for _, text := range want {
					if text != "" && !slices.ContainsFunc(res.Findings, func(x rollout.Finding) bool { return x.Event == f.at && strings.Contains(x.Policy, text) }) {
						t.Errorf("%s: nothing about event %d says %q: %+v", what, f.at, text, res.Findings)
					}
				}
			}
		})
	}
}

// TestNoLogBreaksTheAudit: whatever somebody wrote into the log, an audit comes to
// an end and says something about it.
func TestNoLogBreaksTheAudit(t *testing.T) {
	good, bad := recorded(t), recorded(t, "na0", "na1", "na2", "na3", "nb0", "nb1", "nc0", "nc1", "nc2", "nc3", "nd0", "nd1")
	rapid.Check(t, func(t *rapid.T) {
		w := rapid.SampledFrom([]*simulate.World{good, bad}).Draw(t, "world")
		log := slices.Clone(w.Records)
		for range rapid.IntRange(1, 6).Draw(t, "edits") {
			from, to := rapid.IntRange(40, len(log)-1).Draw(t, "from"), rapid.IntRange(0, len(log)-1).Draw(t, "to")
			switch e := log[from].Event; rapid.IntRange(0, 3).Draw(t, "edit") {
			case 0: // in another place
				log = slices.Insert(slices.Delete(log, from, from+1), min(to, len(log)-1), events.Record{Event: e})
			case 1: // left out
				log = slices.Delete(log, from, from+1)
			case 2: // twice
				log = slices.Insert(log, to, events.Record{Event: e})
			case 3: // of something else
				e.Subject = log[to].Event.Subject
				log[from].Event = e
			}
			if len(log) < 50 {
				break
			}
		}
		for i := range log {
			log[i].Seq = uint64(i) + 1
		}
		if _, err := audit(log, w.Messages()); err != nil {
			t.Fatal(err)
		}
	})
}
