package server

import (
	"context"
	"errors"
	"fmt"
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
	for {
		changed := in.runner.Changed()
		e, expected := in.event(msg)
		if e == nil {
			return nil
		}
		seq, err := in.log.Append(ctx, *e, expected)
		var again <-chan time.Time
		switch {
		case err == nil:
			return in.runner.WaitEvent(ctx, seq)
		case ctx.Err() != nil:
			return ctx.Err()
		case !errors.Is(err, events.ErrConflict):
			in.logger.Error().Err(err).Uint64("report", msg.Seq).Msg("could not record a report; trying again")
		}
		again = time.After(time.Second)
		select {
		case <-changed:
		case <-again:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// event makes the event that a report leads to, or nil if it leads to none.
func (in *intake) event(msg events.Message) (e *events.Event, expected uint64) {
	node, kind, err := events.SubjectNode(msg.Subject)
	if err != nil {
		in.logger.Warn().Err(err).Uint64("report", msg.Seq).Msg("report dropped")
		return nil, 0
	}
	report, fact, reportErr := events.DecodeReport(kind, msg.Data)
	in.runner.View(func(m *projections.Mesh) {
		n := m.Enrolled(node)
		switch {
		case n == nil:
			in.logger.Warn().Str("node", events.Printable(node, 64)).Uint64("report", msg.Seq).Msg("report dropped: no such node is enrolled")
		case reportErr != nil:
			in.logger.Warn().Str("node", node).Uint64("report", msg.Seq).Err(reportErr).Msg("report rejected")
			if n.Rejected != nil && (msg.Stored.Sub(n.Rejected.At) < rejectionPause || n.Rejected.Fact.ReportSeq >= msg.Seq) {
				return
			}
			rejected := &events.NodeReportRejected{Kind: events.Printable(kind, 40), Reason: reportErr.Error()}
			rejected.ReportSeq = msg.Seq
			e, expected = in.newEvent(node, "", rejected), n.EventSeq
		case n.HasReport(report.ID):
		default:
			fact.SetReceipt(events.Receipt{ReportID: report.ID, ReportSeq: msg.Seq, NodeTime: report.At})
			e, expected = in.newEvent(node, report.ID, fact), n.EventSeq
		}
	})
	return e, expected
}

func (in *intake) newEvent(node, cause string, fact events.Fact) *events.Event {
	e := events.New(node, fact, events.Origin{Source: in.source, Actor: "node:" + node, Cause: cause}, time.Now())
	return &e
}
