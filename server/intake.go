package server

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"noxmesh/events"
	"noxmesh/projections"
)

// intake turns nodes' reports into events. Where it stands is a fold of the
// log, so it needs no state of its own: after a crash it reads again from the
// last report that became an event, and knows the ones it has by their ids.
type intake struct {
	js     jetstream.JetStream
	log    *events.Log
	runner *projections.Runner
	source string
	logger zerolog.Logger

	allowances map[string]allowance // of nodes that reported since the start
}

// rejectionPause is how often at most a node's bad reports are recorded.
const rejectionPause = time.Hour

func (in *intake) run(ctx context.Context) error {
	select {
	case <-in.runner.Ready():
	case <-ctx.Done():
		return ctx.Err()
	}
	stream, err := in.js.Stream(ctx, events.StreamReports)
	if err != nil {
		return fmt.Errorf("opening %s: %w", events.StreamReports, err)
	}
	var from uint64
	in.runner.View(func(m *projections.Mesh) { from = m.ReportSeq + 1 })
	if last := stream.CachedInfo().State.LastSeq; last+1 < from {
		in.logger.Warn().Uint64("last", last).Uint64("recorded", from-1).
			Msg("REPORTS ends before reports that are in the log: it was made anew; reading all of it, known ones are skipped")
		from = 1
	}
	return events.ReadStream(ctx, in.js, events.StreamReports, events.ReadOptions{From: from, Follow: true},
		func(msg events.Message) error { return in.take(ctx, msg) })
}

// take records one report, or says why not. It gives up only with ctx.
func (in *intake) take(ctx context.Context, msg events.Message) error {
	node, kind, err := events.SubjectNode(msg.Subject)
	if err != nil {
		in.logger.Warn().Err(err).Uint64("report", msg.Seq).Msg("report dropped")
		return nil
	}
	report, fact, err := events.DecodeReport(kind, msg.Data)
	allowed := sync.OnceValue(func() bool { return in.allow(node, kind, msg.Stored) })
	for {
		changed := in.runner.Changed()
		var (
			e        *events.Event
			expected uint64
		)
		in.runner.View(func(m *projections.Mesh) {
			n := m.Enrolled(node)
			if n == nil || err == nil && n.HasReport(report.ID) {
				return
			}
			if err == nil && !allowed() {
				err = errTooMany
			}
			expected = n.EventSeq
			if err == nil {
				fact.SetReceipt(events.Receipt{ReportID: report.ID, ReportSeq: msg.Seq, NodeTime: report.At})
				e = in.newEvent(node, report.ID, fact)
			} else if mayReject(n, msg) {
				rejected := &events.NodeReportRejected{Kind: events.Printable(kind, 40), Reason: err.Error()}
				rejected.ReportSeq = msg.Seq
				e = in.newEvent(node, "", rejected)
			}
		})
		if e == nil {
			return nil
		}
		seq, appendErr := in.log.Append(ctx, *e, expected)
		switch {
		case appendErr == nil:
			if err != nil {
				in.logger.Warn().Str("node", node).Uint64("report", msg.Seq).Err(err).Msg("report rejected; further ones of this node are within the hour, without a word")
			}
			return in.runner.WaitEvent(ctx, seq)
		case ctx.Err() != nil:
			return ctx.Err()
		case !errors.Is(appendErr, events.ErrConflict):
			in.logger.Error().Err(appendErr).Uint64("report", msg.Seq).Msg("could not record a report; trying again")
		}
		select {
		case <-changed:
		case <-time.After(time.Second):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// mayReject says whether a bad report is recorded: at most one in a while, so
// that a node cannot fill a log that cannot be purged.
func mayReject(n *projections.Node, msg events.Message) bool {
	return n.Rejected == nil || msg.Stored.Sub(n.Rejected.At) >= rejectionPause && n.Rejected.Fact.ReportSeq < msg.Seq
}

var errTooMany = fmt.Errorf("it sends more than %d reports at once, and more than one in %s after that: the rest is not recorded", reportBurst, reportEvery)

func (in *intake) newEvent(node, cause string, fact events.Fact) *events.Event {
	e := events.New(node, fact, events.Origin{Source: in.source, Actor: "node:" + node, Cause: cause}, time.Now())
	return &e
}
