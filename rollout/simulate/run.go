package simulate

import (
	"errors"
	"fmt"
	"time"

	"noxmesh/events"
	"noxmesh/projections"
	"noxmesh/rollout"
)

const (
	oldVersion = "1.0.0"
	newVersion = "1.1.0"

	mostTime = 48 * time.Hour   // a rollout that takes longer did not end
	tailTime = 30 * time.Minute // watched after it completed
	haltTime = 4 * time.Minute  // watched after it halted; longer than a server is ever down
	step     = 30 * time.Second // between two looks at whether it ended
)

// Options of a run.
type Options struct {
	Cohort int // nodes; 500
	Policy events.Policy
	Trace  bool // keep the trace
	// Record, if set, gets both streams at the end of a run. The fleet's past is
	// an hour then.
	Record func(log []events.Record, heartbeats []events.Message)
}

// StatedPolicy is the policy that the table's targets are stated for.
func StatedPolicy() events.Policy {
	p := rollout.DefaultPolicy()
	p.Batches = []string{"2", "10%", "50%", "100%"}
	p.Window = events.Duration(10 * time.Minute)
	p.Tolerate = events.TolerateAuto
	return p
}

// StatedCohort is the cohort that the table's targets are stated for.
const StatedCohort = 500

// Result is what came of one run.
type Result struct {
	Setting   string           `json:"world"`
	Seed      uint64           `json:"seed"`
	Cohort    int              `json:"cohort"`
	Halted    bool             `json:"halted"`
	Completed bool             `json:"completed"`
	Exposed   int              `json:"exposed"` // nodes that were declared the version when it ended
	Diagnosis events.Diagnosis `json:"diagnosis,omitempty"`
	Reason    string           `json:"reason,omitempty"` // of the halt
	Stage     int              `json:"stage"`            // last stage that was opened
	Stages    int              `json:"stages"`
	Named     bool             `json:"named"`   // the report names the broken architecture
	Reached   bool             `json:"reached"` // all nodes present at the end were declared
	Took      time.Duration    `json:"took"`    // until it ended
	Trace     []string         `json:"-"`
	// Err is a broken law, or that the rollout did not end.
	Err error `json:"-"`
}

// ErrNoEnd: the rollout neither completed nor halted.
var ErrNoEnd = errors.New("the rollout did not end")

// play is one run under way.
type play struct {
	setting Setting
	w       *World
	res     *Result
	id      string
	ended   bool
	struck  int // number of the batch in which the link goes
	linked  bool
	resumes int
}

// Run plays one rollout in one world.
func Run(s Setting, seed uint64, opts Options) Result {
	if opts.Cohort == 0 {
		opts.Cohort = StatedCohort
	}
	if len(opts.Policy.Batches) == 0 {
		opts.Policy = StatedPolicy()
	}
	if s.most > 0 {
		opts.Cohort = min(opts.Cohort, s.most)
	}
	cfg := Config{Seed: seed, Start: time.Date(2026, 8, 31, 12, 0, 0, 0, time.UTC), Dies: 0.1, Jitter: 5 * time.Second}
	if s.install != nil {
		cfg.Install = s.install(time.Duration(opts.Policy.Window))
	}
	if s.chaos {
		cfg.Lose, cfg.Repeat, cfg.Stop, cfg.Keep = 0.1, 0.1, 0.01, true
	}
	cfg.Keep = cfg.Keep || opts.Record != nil
	p := &play{setting: s, w: NewWorld(cfg), res: &Result{Setting: s.Name, Seed: seed, Cohort: opts.Cohort}}
	w := p.w
	history := dayHeard
	if cfg.Keep {
		history = time.Hour // is read again, at each start of a server or by an auditor
	}
	if s.chaos {
		w.AddServer(time.Second + upTo(w.rng, 39*time.Second))
	}
	w.AddRelease(oldVersion, "amd64", "arm64", "riscv64")
	w.populate(opts.Cohort, oldVersion, s.churn, history)
	w.AddRelease(newVersion, "amd64", "arm64", "riscv64")
	if s.behave != nil {
		s.behave(w.order, w.rng)
	}
	w.OnEvent = func(rec events.Record, fact events.Fact) {
		if opts.Trace {
			p.res.Trace = append(p.res.Trace, TraceLine(rec, fact))
		}
		p.event(rec, fact)
	}
	p.rollout(rollout.Request{Version: newVersion, Policy: opts.Policy, Seed: w.rng.Uint64()})
	if opts.Record != nil {
		opts.Record(w.Records, w.Messages())
	}
	return *p.res
}

// rollout starts the rollout and plays it to its end and a while longer.
func (p *play) rollout(req rollout.Request) {
	w, res := p.w, p.res
	id, err := w.Start(req)
	if err != nil {
		res.Err = err
		return
	}
	p.id = id
	began := w.at
	for w.err == nil && !p.ended && w.at-began < mostTime {
		w.Advance(step)
		if p.setting.chaos {
			p.operate()
		}
	}
	res.Took = w.at - began
	if p.ended {
		if res.Completed {
			w.Advance(tailTime)
		} else {
			w.Advance(haltTime)
		}
		p.countReached()
	}
	res.Err = w.err
	switch {
	case res.Err != nil:
	case !p.ended:
		res.Err = fmt.Errorf("%w in %s", ErrNoEnd, mostTime)
	case p.setting.chaos:
		res.Err = w.Settled()
	}
	if all, first := w.Laws.Exposed(id); res.Err == nil && p.setting.Name == "crash-all" && all != first {
		res.Err = fmt.Errorf("%w: a release that never starts exposed %d nodes, %d were canaries", ErrLaw, all, first)
	}
}

// event notes what is asked of the result, from the records.
func (p *play) event(_ events.Record, fact events.Fact) {
	res := p.res
	switch f := fact.(type) {
	case *events.RolloutStarted:
		res.Stages = len(f.Targets)
		p.struck = 1 + p.w.rng.IntN(res.Stages)
	case *events.BatchOpened:
		if f.Tail {
			return
		}
		res.Stage = max(res.Stage, f.Stage)
		if f.Batch == p.struck {
			p.w.after(5*time.Second+upTo(p.w.rng, 55*time.Second), p.strike)
		}
	case *events.RolloutPaused:
		p.linked = p.linked || f.Because == events.ByLink
	case *events.RolloutHalted:
		res.Diagnosis, res.Reason = f.Diagnosis, f.Reason
		for _, t := range f.Common {
			res.Named = res.Named || t.Attribute == "architecture" && t.Value == brokenArchitecture
		}
		res.Halted = true
		if !p.setting.chaos { // there an operator goes on
			p.end()
		}
	case *events.RolloutAborted, *events.RolloutReverted:
		p.end()
	case *events.RolloutCompleted:
		if p.linked && !res.Halted {
			res.Diagnosis = events.DiagnosisLink
		}
		res.Completed = true
		p.end()
	}
}

func (p *play) end() {
	p.ended = true
	p.res.Exposed, _ = p.w.Laws.Exposed(p.idOrFirst())
}

// idOrFirst: events come before Start has returned the id.
func (p *play) idOrFirst() string {
	if p.id != "" {
		return p.id
	}
	return "r1"
}

// strike is the outage.
func (p *play) strike() {
	w := p.w
	switch p.setting.outage {
	case halfCut:
		var hit []*Node
		for _, i := range w.rng.Perm(len(w.order))[:len(w.order)/2] {
			hit = append(hit, w.order[i])
			w.order[i].SetCut(true)
		}
		w.after(20*time.Minute, func() {
			for _, n := range hit {
				n.SetCut(false)
			}
		})
	case meshDown:
		w.SetDeaf(true)
		w.after(time.Hour, func() { w.SetDeaf(false) })
	}
}

// operate is the operator of the chaos, who pauses, resumes and ends.
func (p *play) operate() {
	w := p.w
	s := w.servers[0]
	if s.down || w.err != nil {
		return
	}
	r := s.mesh.Rollouts[p.id]
	var fact events.Fact
	var err error
	switch dice := w.rng.Float64(); {
	case r.State == projections.Running && dice < 0.02:
		fact, err = rollout.Pause(r, "lunch")
	case r.State == projections.Paused && dice < 0.1:
		fact, err = rollout.Resume(w.Mesh(), r, "", "back")
	case r.State == projections.Halted && p.resumes < 3 && dice < 0.5:
		p.resumes++
		mode := events.ResumeRetry
		if w.rng.IntN(2) == 0 {
			mode = events.ResumeLeaveOut
		}
		fact, err = rollout.Resume(w.Mesh(), r, mode, "once more")
	case r.State == projections.Halted && dice > 0.8:
		fact, err = rollout.Revert(w.Mesh(), r, "enough")
	case r.State == projections.Halted && dice > 0.6:
		fact, err = rollout.Abort(w.Mesh(), r, "enough")
	default:
		return
	}
	if errors.Is(err, rollout.ErrRefused) {
		return // nothing to revert, for example
	}
	if err := w.Do(p.id, fact); err != nil {
		w.fail(err)
	}
}

// countReached looks whether every node that is there, and has been for ten
// minutes, was declared the version.
func (p *play) countReached() {
	w := p.w
	p.res.Reached = true
	r := w.Mesh().Rollouts[p.id]
	for _, n := range w.order {
		if !n.linked || w.at-n.linkedAt < 10*time.Minute {
			continue
		}
		if m := r.Members[n.ID]; m != nil && m.Batch == 0 {
			p.res.Reached = false
		}
	}
}

// Shorten plays a failing seed again with smaller cohorts, and gives the
// smallest that fails too, with its trace up to the failure.
func Shorten(s Setting, seed uint64, opts Options) Result {
	opts.Trace = true
	for _, cohort := range []int{2, 3, 4, 6, 8, 12, 20, 40, 80, 160, 320} {
		if cohort >= opts.Cohort {
			break
		}
		smaller := opts
		smaller.Cohort = cohort
		if r := Run(s, seed, smaller); errors.Is(r.Err, ErrLaw) {
			return r
		}
	}
	return Run(s, seed, opts)
}
