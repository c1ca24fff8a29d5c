package nodeagent

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/rs/zerolog"
)

// Agent is the host of one node.
type Agent struct {
	cfg     Config
	log     zerolog.Logger
	state   *State
	outbox  *outbox
	link    *link
	startID string
	started time.Time

	newer chan struct{} // a newer declaration was accepted
	beat  chan struct{} // send a heartbeat now
	dirty chan struct{} // status.json is out of date
	kit   chan struct{} // unit files of the rescue kit changed

	mu        sync.Mutex
	node      string // empty until the credentials were read
	decl      *declaration
	applied   uint64
	confirmed bool
	knownGood string
	parachute error // nil: the package of known-good is retained and whole
	problems  map[string]string
}

// New makes an agent. It touches nothing yet.
func New(cfg Config) (*Agent, error) {
	if err := cfg.fill(); err != nil {
		return nil, err
	}
	a := &Agent{
		cfg: cfg, log: cfg.Logger, startID: uuid.NewString(),
		newer: make(chan struct{}, 1), beat: make(chan struct{}, 1), dirty: make(chan struct{}, 1), kit: make(chan struct{}, 1),
		parachute: ErrNotRetained, problems: map[string]string{},
	}
	a.link = newLink(a)
	return a, nil
}

// errHalted wraps what a test's afterStep returned: the process ends here.
var errHalted = errors.New("halted")

func (a *Agent) step(name string) error {
	if err := a.cfg.afterStep(name); err != nil {
		return fmt.Errorf("%w after %s: %w", errHalted, name, err)
	}
	return nil
}

// Run works until the context ends or another version is installed. It is
// called once. The error says that the state directory cannot be used at all.
func (a *Agent) Run(ctx context.Context) (Exit, error) {
	state, err := OpenState(a.cfg.StateDir)
	if err != nil {
		return ExitStopped, err
	}
	unlock, err := state.lock()
	if err != nil {
		return ExitStopped, err
	}
	defer unlock()
	a.state, a.started = state, time.Now()
	a.outbox = newOutbox(state, a.log)
	a.load()

	// The service manager's start timeout bounds this, not the link.
	first := a.reconcile(ctx, ctx)
	if first.halted != nil {
		return ExitStopped, first.halted
	}
	if ctx.Err() != nil {
		return ExitStopped, nil
	}
	if err := a.confirm(); errors.Is(err, errHalted) {
		return ExitStopped, err
	}
	a.cfg.Ready()
	a.cfg.Status("running " + a.cfg.Version)

	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	wg.Go(func() { a.link.run(ctx) })
	wg.Go(func() { a.outbox.run(ctx, a) })
	wg.Go(func() { a.sendHeartbeats(ctx) })
	wg.Go(func() { a.keepStatus(ctx) })
	wg.Go(func() { a.adoptKit(ctx) })
	wg.Go(func() { a.drills(ctx) })
	return a.loop(ctx)
}

// load reads what the last process left.
func (a *Agent) load() {
	if err := a.state.clearIncoming(); err != nil {
		a.problem("incoming", fmt.Sprintf("left-over downloads cannot be deleted: %v", err))
	}
	if raw, ok := a.state.read(fileApplied); ok {
		if _, err := fmt.Sscan(string(raw), &a.applied); err != nil {
			a.state.setAside(fileApplied, err.Error())
		}
	}
	a.knownGood = a.state.KnownGood()
	node, err := NodeName(a.cfg.CredsFile)
	if err == nil {
		a.node = node
	}
	a.loadDeclaration()
	a.log.Info().Str("version", a.cfg.Version).Str("known_good", a.knownGood).Uint64("revision", a.revision()).
		Str("start", a.startID).Msg("host starts")
}

// outcome is how a reconcile ended.
type outcome struct {
	failed   bool  // something does not apply: try again, later each time
	waiting  bool  // something waits for the link or the confirmation
	upgraded bool  // another version is installed: exit
	halted   error // a test stops the process here
}

// loop is the agent's life after it is ready: it reconciles when there is a
// newer declaration, when something failed, when the link came up that
// something waits for, and once in a while without a cause.
func (a *Agent) loop(ctx context.Context) (Exit, error) {
	var (
		done    chan outcome // of the reconcile under way, if any
		cancel  context.CancelFunc
		since   time.Time
		last    = outcome{failed: true} // the first one left host aside
		again   bool
		tries   int
		confirm = !a.isConfirmed()
		timer   = time.NewTimer(0)
		dog     = time.NewTicker(a.cfg.WatchdogEvery)
	)
	defer timer.Stop()
	defer dog.Stop()
	start := func() {
		timer.Stop()
		if done != nil {
			again = true
			return
		}
		again = false
		var sub context.Context
		sub, cancel = context.WithTimeout(ctx, a.cfg.Timings.Reconcile)
		out := make(chan outcome, 1)
		done, since = out, time.Now()
		go func() { out <- a.reconcile(ctx, sub) }()
	}
	stop := func() {
		if done != nil {
			cancel()
			<-done
		}
	}
	a.cfg.Watchdog()
	for {
		select {
		case <-ctx.Done():
			stop()
			return ExitStopped, nil
		case <-dog.C:
			// Every step of a reconcile is bounded, so one that outlives the
			// bound is stuck and the service manager may know.
			if done == nil || time.Since(since) < a.cfg.Timings.Reconcile+time.Minute {
				a.cfg.Watchdog()
			}
		case <-a.newer:
			tries = 0
			if done != nil {
				cancel() // what it works on is out of date
			}
			start()
		case <-a.link.cameUp:
			if last.waiting || done != nil {
				start()
			}
		case <-timer.C:
			if confirm {
				err := a.confirm()
				if errors.Is(err, errHalted) {
					return ExitStopped, err
				}
				confirm = err != nil
			}
			start()
		case last = <-done:
			cancel()
			done = nil
			switch {
			case last.halted != nil:
				return ExitStopped, last.halted
			case last.upgraded:
				return ExitUpgraded, nil
			case again:
				start()
			case last.failed || confirm:
				tries++
				timer.Reset(backoff(tries, a.cfg.Timings.RetryLeast, a.cfg.Timings.RetryMost))
			default:
				tries = 0
				timer.Reset(about(a.cfg.Timings.Recheck))
			}
		}
	}
}

func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// problem shows a line under a key, in the status and in heartbeats; an empty
// one takes it away.
func (a *Agent) problem(key, line string) {
	a.mu.Lock()
	old := a.problems[key]
	if line == "" {
		delete(a.problems, key)
	} else {
		a.problems[key] = line
	}
	a.mu.Unlock()
	if line == old {
		return
	}
	if line != "" {
		a.log.Warn().Str("about", key).Msg(line)
	}
	poke(a.dirty)
}

func (a *Agent) isConfirmed() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.confirmed
}

func (a *Agent) name() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.node
}
