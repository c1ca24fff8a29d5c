package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"noxmesh/events"
	"noxmesh/projections"
)

// api answers people and tools. The broker lets through what their roles allow.
type api struct {
	nc       *nats.Conn
	js       jetstream.JetStream
	log      *events.Log
	runner   *projections.Runner
	identity *Identity
	guard    *guard
	place    func() place
	signer   *signer
	notary   *logNotary
	source   string
	logger   zerolog.Logger

	sub  *nats.Subscription
	gate gate
	// waiting are the commands that wait for something to happen; they are not at
	// work meanwhile.
	waiting gate
	stopped <-chan struct{} // closed when the server stops
	moments pastKeeper
	users   sync.Mutex // held by commands that change who is an operator
}

const (
	// commandTimeout bounds one command; reading a package back is the slowest.
	commandTimeout = 2 * time.Minute
	freshTimeout   = 10 * time.Second
	// maxCommands are at work at a time, maxUserCommands of them a user's: one
	// who asks without end leaves room for others.
	maxCommands     = 16
	maxUserCommands = 8
	// Those who wait for something to happen take no room from the others.
	maxWaiting     = 256
	maxUserWaiting = 64
	fleetPage      = 500
)

// handle is one command: it decodes its own request and gives a result.
type handle func(ctx context.Context, by caller, request []byte) (any, error)

// caller is who gives a command, as the broker knows them, and the command's id.
type caller struct {
	actor, command string
	slot           *slot // that the command has at the gate
}

func (a *api) commands() map[string]handle {
	return map[string]handle{
		cmdNodeInvite:       command(a.invite),
		cmdNodeRevoke:       command(a.revokeNode),
		cmdNodeDeclare:      command(a.declare),
		cmdNodeDecommission: command(a.decommission),
		cmdReleasePart:      command(a.storePart),
		cmdReleaseAdd:       command(a.addRelease),
		cmdReleaseList:      command(a.listReleases),
		cmdReleaseHold:      command(a.holdRelease),
		cmdReleaseLift:      command(a.liftRelease),
		cmdRolloutPlan:      command(a.planRollout),
		cmdRolloutStart:     command(a.startRollout),
		cmdRolloutStatus:    command(a.rolloutStatus),
		cmdRolloutList:      command(a.listRollouts),
		cmdRolloutPause:     command(a.pauseRollout),
		cmdRolloutResume:    command(a.resumeRollout),
		cmdRolloutAbort:     command(a.abortRollout),
		cmdRolloutRevert:    command(a.revertRollout),
		cmdRolloutBacktest:  command(a.backtest),
		cmdUserAdd:          command(a.addUser),
		cmdUserList:         command(a.listUsers),
		cmdUserRevoke:       command(a.revokeUser),
		cmdFleet:            command(a.fleet),
		cmdKeyList:          command(a.listKeys),
		cmdKeyRotate:        command(a.rotateKey),
		cmdLogRead:          command(a.readLog),
		cmdStreamRead:       command(a.readStream),
		cmdViewWatch:        command(a.watchView),
		cmdLogCheckpoint:    command(a.logCheckpoint),
		cmdLogCheckpoints:   command(a.logCheckpoints),
		cmdLogHashes:        command(a.logHashes),
		cmdLogProve:         command(a.logProve),
	}
}

func command[Q, R any](fn func(ctx context.Context, by caller, q Q) (R, error)) handle {
	return func(ctx context.Context, by caller, raw []byte) (any, error) {
		var q Q
		dec := json.NewDecoder(strings.NewReader(string(raw)))
		dec.DisallowUnknownFields()
		err := dec.Decode(&q)
		if err == nil {
			if _, end := dec.Token(); !errors.Is(end, io.EOF) {
				err = errors.New("there is something behind its end")
			}
		}
		if err != nil {
			return nil, fmt.Errorf("the request does not read (is this nox-mesh of another version than the server?): %w", err)
		}
		return fn(ctx, by, q)
	}
}

func (a *api) start() error {
	commands := a.commands()
	a.gate.limits(maxCommands, maxUserCommands)
	a.waiting.limits(maxWaiting, maxUserWaiting)
	sub, err := a.nc.QueueSubscribe(events.APISubject("*", ">"), "nox-mesh", func(msg *nats.Msg) {
		t := strings.SplitN(msg.Subject, ".", 4)
		name := t[3]
		by := caller{actor: t[2], command: events.Printable(msg.Header.Get(headerCommand), 64)}
		do, ok := commands[name]
		switch {
		case by.command == "":
			a.answer(msg, nil, fmt.Errorf("a command needs an id of its own in header %s", headerCommand))
			return
		case !ok:
			a.answer(msg, nil, fmt.Errorf("this server knows no command %q: is nox-mesh of another version than the server?", name))
			return
		case !a.gate.enter(by.actor):
			a.answer(msg, nil, errBusy)
			return
		}
		by.slot = &slot{api: a, user: by.actor, held: true}
		go func() {
			defer by.slot.leave()
			ctx, cancel := context.WithTimeout(context.Background(), commandTimeout)
			defer cancel()
			if name != cmdViewWatch { // which rests on the buckets, not on the fold
				if err := a.fresh(ctx); err != nil {
					a.answer(msg, nil, fmt.Errorf("%w: %w", err, errAgain))
					return
				}
			}
			result, err := do(ctx, by, msg.Data)
			a.answer(msg, result, err)
		}()
	})
	if err != nil {
		return fmt.Errorf("serving operators: %w", err)
	}
	a.sub = sub
	return a.nc.Flush()
}

// errAgain: the command was not begun, or did nothing.
var errAgain = errors.New("try again in a moment")

var errBusy = fmt.Errorf("the server is busy with other commands: %w", errAgain)

// errWaiting is told to who would be one too many to wait. Those whose connection
// broke are counted until their wait is over.
var errWaiting = fmt.Errorf("%d commands of yours wait for something to happen, or %d in all, and that is the limit: end one (a watch, a log that is followed), or %w", maxUserWaiting, maxWaiting, errAgain)

// gate counts commands at work, in all and of each user.
type gate struct {
	mu           sync.Mutex
	all          int
	user         map[string]int
	max, maxUser int
}

func (g *gate) limits(all, user int) { g.max, g.maxUser = all, user }

func (g *gate) enter(user string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.all == g.max || g.user[user] == g.maxUser {
		return false
	}
	if g.user == nil {
		g.user = map[string]int{}
	}
	g.all++
	g.user[user]++
	return true
}

func (g *gate) leave(user string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.all--
	if g.user[user]--; g.user[user] == 0 {
		delete(g.user, user)
	}
}

// slot is the place of a command at the gate.
type slot struct {
	api  *api
	user string
	held bool
}

// aside makes room for other commands while this one waits. [errWaiting] means
// that too many wait already, [errBusy] that there was no room when the wait was
// over.
func (s *slot) aside(wait func()) error {
	if s == nil { // it holds up nobody
		wait()
		return nil
	}
	if !s.api.waiting.enter(s.user) {
		return errWaiting
	}
	s.leave()
	wait()
	s.api.waiting.leave(s.user)
	if s.held = s.api.gate.enter(s.user); !s.held {
		return errBusy
	}
	return nil
}

func (s *slot) leave() {
	if s.held {
		s.held = false
		s.api.gate.leave(s.user)
	}
}

func (a *api) stop() { _ = a.sub.Unsubscribe() }

// fresh waits until what is in the log now is folded, so that nobody is told
// less than they have seen in the log already.
func (a *api) fresh(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, freshTimeout)
	defer cancel()
	stream, err := a.js.Stream(ctx, events.StreamEvents)
	if err != nil {
		return fmt.Errorf("looking at the log's end: %w", err)
	}
	return a.runner.WaitEvent(ctx, stream.CachedInfo().State.LastSeq)
}

func (a *api) answer(msg *nats.Msg, result any, err error) {
	if msg.Reply == "" {
		return // nobody waits for it
	}
	var out reply
	if err == nil {
		out.Result, err = json.Marshal(result)
	}
	if err != nil {
		out = reply{Error: err.Error(), Busy: errors.Is(err, errAgain)}
	}
	raw, err := json.Marshal(out)
	if err != nil {
		raw = []byte(`{"error":"the answer could not be written"}`)
	}
	if err := msg.Respond(raw); err != nil && !a.nc.IsClosed() { // else the server stops
		a.logger.Warn().Err(err).Str("subject", msg.Subject).Msg("could not answer a command")
	}
}

// decide looks at the folded state and gives the event that a command leads to,
// with the sequence it expects; no fact means that there is nothing to do.
type decide func(m *projections.Mesh) (subject string, fact events.Fact, expected uint64, err error)

// change carries a command out once and gives the id of the aggregate it was
// about. A command that was carried out already is not carried out again:
// whoever gave it had no answer and gave it once more.
func (a *api) change(ctx context.Context, by caller, fn decide) (string, error) {
	return a.append(ctx, by, func(m *projections.Mesh) (string, events.Fact, uint64, error) {
		if done := m.Commands[by.command]; by.command != "" && done != "" {
			return done, nil, 0, nil
		}
		return fn(m)
	})
}

// append appends what is decided, and decides again if somebody else was
// faster, until it is written and folded.
func (a *api) append(ctx context.Context, by caller, fn decide) (string, error) {
	for {
		var (
			subject  string
			fact     events.Fact
			expected uint64
			err      error
		)
		changed := a.runner.Changed()
		a.runner.View(func(m *projections.Mesh) { subject, fact, expected, err = fn(m) })
		if err != nil || fact == nil {
			return subject, err
		}
		e := events.New(subject, fact, events.Origin{Source: a.source, Actor: by.actor, Cause: by.command}, time.Now())
		seq, err := a.log.Append(ctx, e, expected)
		if err == nil {
			return subject, a.runner.WaitEvent(ctx, seq)
		}
		if !errors.Is(err, events.ErrConflict) {
			return "", err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return "", err
		}
	}
}
