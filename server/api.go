package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"noxmesh/events"
	"noxmesh/projections"
)

// api answers operators and tools.
type api struct {
	nc       *nats.Conn
	js       jetstream.JetStream
	log      *events.Log
	runner   *projections.Runner
	identity *Identity
	source   string
	logger   zerolog.Logger

	sub  *nats.Subscription
	busy chan struct{} // bounds commands at work
}

const (
	// commandTimeout bounds one command; reading a package back is the slowest.
	commandTimeout = 2 * time.Minute
	freshTimeout   = 10 * time.Second
	maxCommands    = 16
	fleetPage      = 500
)

// handle is one command: it decodes its own request and gives a result.
type handle func(ctx context.Context, by caller, request []byte) (any, error)

// caller is who gives a command, as the broker knows them, and the command's id.
type caller struct{ actor, command string }

func (a *api) commands() map[string]handle {
	return map[string]handle{
		cmdNodeEnroll:       command(a.enroll),
		cmdNodeDeclare:      command(a.declare),
		cmdNodeDecommission: command(a.decommission),
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
		cmdFleet:            command(a.fleet),
	}
}

func command[Q, R any](fn func(ctx context.Context, by caller, q Q) (R, error)) handle {
	return func(ctx context.Context, by caller, raw []byte) (any, error) {
		var q Q
		dec := json.NewDecoder(strings.NewReader(string(raw)))
		dec.DisallowUnknownFields()
		if err := dec.Decode(&q); err != nil {
			return nil, fmt.Errorf("the request does not read (is this nox-mesh of another version than the server?): %w", err)
		}
		return fn(ctx, by, q)
	}
}

func (a *api) start() error {
	commands := a.commands()
	a.busy = make(chan struct{}, maxCommands)
	sub, err := a.nc.QueueSubscribe(events.APISubject("*", ">"), "nox-mesh", func(msg *nats.Msg) {
		t := strings.SplitN(msg.Subject, ".", 4)
		name := t[3]
		by := caller{actor: t[2], command: events.Printable(msg.Header.Get(headerCommand), 64)}
		do, ok := commands[name]
		if !ok {
			a.answer(msg, nil, fmt.Errorf("this server knows no command %q: is nox-mesh of another version than the server?", name))
			return
		}
		select {
		case a.busy <- struct{}{}:
		default:
			a.answer(msg, nil, errors.New("the server is busy with other commands: try again in a moment"))
			return
		}
		go func() {
			defer func() { <-a.busy }()
			ctx, cancel := context.WithTimeout(context.Background(), commandTimeout)
			defer cancel()
			if err := a.fresh(ctx); err != nil {
				a.answer(msg, nil, err)
				return
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
	var out reply
	if err == nil {
		out.Result, err = json.Marshal(result)
	}
	if err != nil {
		out = reply{Error: err.Error()}
	}
	raw, err := json.Marshal(out)
	if err != nil {
		raw = []byte(`{"error":"the answer could not be written"}`)
	}
	if err := msg.Respond(raw); err != nil {
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
