package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"

	"noxmesh/events"
	"noxmesh/projections"
)

// linkLife is how long a node's credential for the link lives.
const linkLife = 24 * time.Hour

const (
	// joinTimeout bounds one join.
	joinTimeout = 10 * time.Second
	// maxJoins are at work at a time; each writes to the log.
	maxJoins = 8
	// refusalPause is how often at most refusals of a node are recorded.
	refusalPause = time.Minute
)

// door answers machines that join, nodes that come back after a long absence,
// and linked nodes that need their next credential. Who asks is in the subject,
// which the broker vouches for.
type door struct {
	nc       *nats.Conn
	api      *api // appends, and knows when the fold is fresh
	runner   *projections.Runner
	identity *Identity
	linkLife time.Duration
	logger   zerolog.Logger

	subs []*nats.Subscription
	busy chan struct{}
}

func (d *door) start() error {
	d.busy = make(chan struct{}, maxJoins)
	for subject, answer := range map[string]func(who string, raw []byte) (events.DoorReply, func()){
		events.ReturnSubject("*"): d.comeBack,
		events.RenewSubject("*"):  d.renew,
	} {
		sub, err := d.nc.QueueSubscribe(subject, "nox-mesh", func(msg *nats.Msg) {
			r, after := answer(lastToken(msg.Subject), msg.Data)
			d.answer(msg, r)
			if after != nil {
				after()
			}
		})
		if err != nil {
			return fmt.Errorf("serving the door: %w", err)
		}
		d.subs = append(d.subs, sub)
	}
	sub, err := d.nc.QueueSubscribe(events.JoinSubject("*"), "nox-mesh", func(msg *nats.Msg) {
		select {
		case d.busy <- struct{}{}:
		default:
			d.answer(msg, notNow(errBusy))
			return
		}
		go func() {
			defer func() { <-d.busy }()
			d.answer(msg, d.join(lastToken(msg.Subject), msg.Data))
		}()
	})
	if err != nil {
		return fmt.Errorf("serving the door: %w", err)
	}
	d.subs = append(d.subs, sub)
	return d.nc.Flush()
}

func (d *door) stop() {
	for _, s := range d.subs {
		_ = s.Unsubscribe()
	}
}

func lastToken(subject string) string { return subject[strings.LastIndexByte(subject, '.')+1:] }

func (d *door) answer(msg *nats.Msg, r events.DoorReply) {
	if msg.Reply == "" {
		return // nobody waits for it
	}
	raw, err := json.Marshal(r)
	if err == nil {
		err = msg.Respond(raw)
	}
	if err != nil {
		d.logger.Warn().Err(err).Str("subject", msg.Subject).Msg("could not answer at the door")
	}
}

func notNow(err error) events.DoorReply { return events.DoorReply{Error: err.Error()} }

// refusal is a no for good.
type refusal string

func (r refusal) Error() string { return string(r) }

// join lets a machine in that holds an invite and proves its key. A machine
// that did not get the answer asks again with the same key, and is answered
// again.
func (d *door) join(invite string, raw []byte) events.DoorReply {
	ctx, cancel := context.WithTimeout(context.Background(), joinTimeout)
	defer cancel()
	if err := d.api.fresh(ctx); err != nil {
		return notNow(err)
	}
	q, bad := events.DecodeJoin(invite, raw)
	node, err := d.api.append(ctx, caller{actor: "invite:" + invite}, func(m *projections.Mesh) (string, events.Fact, uint64, error) {
		n := m.Nodes[m.Invites[invite]]
		if n == nil {
			return "", nil, 0, refusal("this mesh knows no such token: it may have been put back to an older state; ask for a new token")
		}
		inv := n.Invite(invite)
		switch {
		case bad != nil:
			return n.ID, nil, 0, refusal(bad.Error())
		case inv != nil && inv.UsedBy == q.PublicKey && n.PublicKey == q.PublicKey && !n.Revoked:
			return n.ID, nil, 0, nil // the answer was lost
		}
		if why := whyNot(m, n, inv, q, time.Now()); why != "" {
			return n.ID, nil, 0, refusal(why)
		}
		labels := inv.Labels
		if len(labels) == 0 {
			labels = n.Labels
		}
		return n.ID, &events.NodeEnrolled{Labels: labels, PublicKey: q.PublicKey, Invite: invite, MachineID: q.MachineID}, n.EventSeq, nil
	})
	var no refusal
	switch {
	case errors.As(err, &no):
		d.refused(ctx, "invite:"+invite, node, events.NodeJoinRefused{Invite: invite, Reason: string(no), PublicKey: q.PublicKey, MachineID: q.MachineID})
		return events.DoorReply{Refused: string(no)}
	case err != nil:
		return notNow(err)
	}
	r, err := d.credentials(node, q.PublicKey)
	if err == nil {
		r.Invite = invite
		r.Door, err = d.identity.DoorJWT(node, q.PublicKey)
	}
	if err != nil {
		return notNow(err)
	}
	d.runner.View(func(m *projections.Mesh) {
		r.Pins = &events.Pins{Delivery: m.Key(events.KeyDelivery), Release: m.Key(events.KeyRelease)}
	})
	return r
}

// whyNot says why a machine may not join, empty if it may.
func whyNot(m *projections.Mesh, n *projections.Node, inv *projections.Invite, q events.JoinRequest, now time.Time) string {
	switch {
	case inv == nil:
		return "the token was replaced by newer ones for the same name"
	case inv.UsedBy != "":
		return "the token was used already, by another machine or by this one with another key: ask for a new token"
	case inv.Void != "":
		return inv.Void + ": ask for a new token"
	case !inv.Open(now):
		return fmt.Sprintf("the token has expired at %s: ask for a new token", inv.Expires.UTC().Format(time.DateTime+"Z"))
	}
	// A key that is revoked would be refused by the broker, and one that two
	// nodes share could not be revoked for one of them.
	for _, other := range m.Nodes {
		if other.PublicKey == q.PublicKey || other.Barred(q.PublicKey) {
			return "the machine's key was used before: remove join.key from its configuration directory and join again"
		}
	}
	return ""
}

// credentials are what a node needs for the link, with the key on record.
func (d *door) credentials(node, key string) (events.DoorReply, error) {
	token, err := d.identity.NodeJWT(node, key, d.linkLife)
	return events.DoorReply{Node: node, Link: token, Seconds: int64(d.linkLife / time.Second)}, err
}

// renew gives a linked node its next credential. The broker has let it in just
// now, so a no is due to an event of this moment.
func (d *door) renew(node string, _ []byte) (events.DoorReply, func()) {
	key, why := d.onRecord(node, "")
	if why != "" {
		return events.DoorReply{Refused: why}, nil
	}
	r, err := d.credentials(node, key)
	if err != nil {
		return notNow(err), nil
	}
	return r, nil
}

// comeBack gives a node that was away for long a credential for the link. A
// revoked key gets this far once: it is told why, that is recorded, and from then
// on the broker lets it in here no more. What it gives besides is done after the
// answer: the record has the broker end the connection that the answer goes over.
func (d *door) comeBack(node string, raw []byte) (events.DoorReply, func()) {
	q, err := events.DecodeReturn(raw)
	if err != nil {
		return events.DoorReply{Refused: err.Error()}, nil
	}
	key, why := d.onRecord(node, q.PublicKey)
	if why != "" {
		return events.DoorReply{Refused: why}, func() { d.recordReturn(node, q.PublicKey, why) }
	}
	r, err := d.credentials(node, key)
	if err != nil {
		return notNow(err), nil
	}
	return r, nil
}

// recordReturn records that a node was not let in again, once the answer is on
// its way.
func (d *door) recordReturn(node, key, why string) {
	select {
	case d.busy <- struct{}{}:
	default:
		return // the next time will do
	}
	go func() {
		defer func() { <-d.busy }()
		ctx, cancel := context.WithTimeout(context.Background(), joinTimeout)
		defer cancel()
		if err := d.nc.FlushWithContext(ctx); err != nil {
			d.logger.Warn().Err(err).Str("node", node).Msg("could not answer at the door")
		}
		d.refused(ctx, "node:"+node, node, events.NodeJoinRefused{Reason: why, PublicKey: key})
	}()
}

// onRecord gives the node's key, or says why it is not let in. Has is the key
// that it says it has, if it says so; the answer is of use to the holder of the
// one on record only.
func (d *door) onRecord(node, has string) (key, why string) {
	d.runner.View(func(m *projections.Mesh) {
		switch n := m.Nodes[node]; {
		case n == nil, n.EnrolledSeq == 0 && n.GoneSeq == 0:
			why = "no such node is enrolled: ask for a token and join"
		case n.GoneSeq != 0:
			why = "the node was decommissioned: it joins again with a new token only"
		case n.Revoked:
			why = "the node was revoked: it joins again with a new token only"
		case has != "" && has != n.PublicKey:
			why = fmt.Sprintf("another machine joined as %s at %s: this one needs a new token", node, n.EnrolledAt.UTC().Format(time.DateTime+"Z"))
		default:
			key = n.PublicKey
		}
	})
	return key, why
}

// refused records that somebody was not let in.
func (d *door) refused(ctx context.Context, actor, node string, fact events.NodeJoinRefused) {
	line := d.logger.Warn().Str("who", actor).Str("node", node).Str("reason", fact.Reason)
	if node == "" {
		line.Msg("refused at the door")
		return
	}
	recorded := false
	_, err := d.api.append(ctx, caller{actor: actor}, func(m *projections.Mesh) (string, events.Fact, uint64, error) {
		n := m.Nodes[node]
		if n == nil || n.JoinRefused != nil && time.Since(n.JoinRefused.At) < refusalPause {
			recorded = false
			return node, nil, 0, nil
		}
		recorded = true
		return node, &fact, n.EventSeq, nil
	})
	if recorded && err == nil {
		line.Msg("refused at the door; further ones within a minute are without a word")
	}
	if err != nil {
		d.logger.Error().Err(err).Str("node", node).Msg("could not record a refusal at the door")
	}
}
