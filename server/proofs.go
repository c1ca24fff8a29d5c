package server

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/mod/sumdb/tlog"

	"noxmesh/events"
	"noxmesh/projections"
	"noxmesh/projections/notary"
)

const (
	cmdLogCheckpoint  = "log.checkpoint"
	cmdLogCheckpoints = "log.checkpoints"
	cmdLogHashes      = "log.hashes"
	cmdLogProve       = "log.prove"
)

// LogCheckpoint is a signed checkpoint of the whole log.
type LogCheckpoint struct {
	notary.KeptCheckpoint
	// Keys are the public keys of the notary, the first one first.
	Keys []string `json:"keys"`
}

// CheckpointsRequest asks for the checkpoints that the server kept, a page at a
// time: those of logs of more than After events.
type CheckpointsRequest struct {
	After int64 `json:"after,omitempty"`
}

// CheckpointsPage is a page of them, oldest first. An empty one is the last.
type CheckpointsPage struct {
	Checkpoints []notary.KeptCheckpoint `json:"checkpoints"`
	Keys        []string                `json:"keys"`
}

// HashesRequest asks for hashes of the notary's tree, by their index in tlog's
// stored layout.
type HashesRequest struct {
	Indexes []int64 `json:"indexes"`
}

// HashesReply has them in that order.
type HashesReply struct {
	Hashes []tlog.Hash `json:"hashes"`
}

// ProveRequest asks for the proof of one event, by sequence or by id.
type ProveRequest struct {
	Seq uint64 `json:"seq,omitempty"`
	ID  string `json:"id,omitempty"`
}

// ProveReply is the proof in the form of C2SP tlog-proof.
type ProveReply struct {
	Seq   uint64   `json:"seq"`
	Proof string   `json:"proof"`
	Keys  []string `json:"keys"`
}

const (
	pageCheckpoints = 2000
	pageHashes      = 1024
)

// signedNow is a checkpoint that has all that was in the log when the command came.
func (a *api) signedNow(ctx context.Context) (LogCheckpoint, error) {
	var end uint64
	a.runner.View(func(m *projections.Mesh) { end = m.EventSeq })
	if err := a.notary.wait(ctx, end); err != nil {
		return LogCheckpoint{}, err
	}
	k, err := a.notary.checkpoint()
	return LogCheckpoint{KeptCheckpoint: k, Keys: a.notary.keys}, err
}

func (a *api) logCheckpoint(ctx context.Context, _ caller, _ struct{}) (LogCheckpoint, error) {
	return a.signedNow(ctx)
}

func (a *api) logCheckpoints(_ context.Context, _ caller, q CheckpointsRequest) (CheckpointsPage, error) {
	a.notary.mu.Lock()
	defer a.notary.mu.Unlock()
	list, err := a.notary.kept.List(q.After, pageCheckpoints)
	return CheckpointsPage{Checkpoints: list, Keys: a.notary.keys}, err
}

func (a *api) logHashes(_ context.Context, _ caller, q HashesRequest) (HashesReply, error) {
	if len(q.Indexes) > pageHashes {
		return HashesReply{}, fmt.Errorf("%d hashes at once are over the limit of %d", len(q.Indexes), pageHashes)
	}
	a.notary.mu.Lock()
	defer a.notary.mu.Unlock()
	hashes, err := a.notary.hashes.ReadHashes(q.Indexes)
	return HashesReply{Hashes: hashes}, err
}

func (a *api) logProve(ctx context.Context, _ caller, q ProveRequest) (ProveReply, error) {
	signed, err := a.signedNow(ctx)
	if err != nil {
		return ProveReply{}, err
	}
	c, err := notary.ReadUnchecked([]byte(signed.Checkpoint))
	if err != nil {
		return ProveReply{}, err
	}
	m, err := a.stored(ctx, q, uint64(c.Size))
	if err != nil {
		return ProveReply{}, err
	}
	p := notary.Proof{Index: int64(m.Seq) - 1, Event: m.Data, Checkpoint: []byte(signed.Checkpoint)}
	a.notary.mu.Lock()
	p.Hashes, err = tlog.ProveRecord(c.Size, p.Index, a.notary.hashes)
	a.notary.mu.Unlock()
	if err != nil {
		return ProveReply{}, fmt.Errorf("proving event %d: %w", m.Seq, err)
	}
	if _, err := p.Verify(a.notary.keys...); err != nil {
		return ProveReply{}, fmt.Errorf("event %d cannot be proven: %w: the log was changed since it was signed; nox-mesh log verify shows what of it", m.Seq, err)
	}
	return ProveReply{Seq: m.Seq, Proof: string(p.Encode()), Keys: signed.Keys}, nil
}

// stored gives an event as it is stored.
func (a *api) stored(ctx context.Context, q ProveRequest, end uint64) (found events.Message, err error) {
	seqs := []uint64{q.Seq}
	if q.ID != "" {
		// What the index finds has the id, or one that looks like it to the index.
		a.runner.Index(func(x *projections.Index) { seqs = x.Find(projections.Query{IDs: []string{q.ID}}) })
	} else if q.Seq == 0 || q.Seq > end {
		return found, fmt.Errorf("there is no event %d: the log has events 1 to %d", q.Seq, end)
	}
	stream, err := a.js.Stream(ctx, events.StreamEvents)
	if err != nil {
		return found, fmt.Errorf("looking for the event: %w", err)
	}
	for _, seq := range seqs {
		m, err := stream.GetMsg(ctx, seq)
		if err != nil {
			return found, fmt.Errorf("event %d does not read: %w: nox-mesh log verify shows what was changed", seq, err)
		}
		if e, err := events.Decode(m.Data); q.ID != "" && (err != nil || e.ID != q.ID || seq > end) {
			continue
		}
		return events.Message{Seq: m.Sequence, Data: m.Data}, nil
	}
	return found, fmt.Errorf("the log has no event with id %q: nox-mesh log --json shows them", events.Printable(q.ID, 64))
}

// Checkpoint has the whole log signed.
func (c *Client) Checkpoint(ctx context.Context) (LogCheckpoint, error) {
	return ask[LogCheckpoint](ctx, c, requestTimeout, cmdLogCheckpoint, struct{}{})
}

// Checkpoints gives all checkpoints that the server kept, oldest first, and the
// notary's public keys.
func (c *Client) Checkpoints(ctx context.Context) (all []notary.KeptCheckpoint, keys []string, err error) {
	after := int64(0)
	for {
		page, err := ask[CheckpointsPage](ctx, c, requestTimeout, cmdLogCheckpoints, CheckpointsRequest{After: after})
		if err != nil || len(page.Checkpoints) == 0 {
			return all, page.Keys, err
		}
		all = append(all, page.Checkpoints...)
		last, err := notary.ReadUnchecked([]byte(all[len(all)-1].Checkpoint))
		if err != nil {
			return nil, nil, err
		}
		if last.Size <= after {
			return nil, nil, errors.New("the server's checkpoints are not in order")
		}
		after = last.Size
	}
}

// StoredHashes reads the notary's tree.
func (c *Client) StoredHashes(ctx context.Context) tlog.HashReader {
	return tlog.HashReaderFunc(func(indexes []int64) (out []tlog.Hash, err error) {
		for part := range slices.Chunk(indexes, pageHashes) {
			r, err := ask[HashesReply](ctx, c, requestTimeout, cmdLogHashes, HashesRequest{Indexes: part})
			if err != nil {
				return nil, err
			}
			out = append(out, r.Hashes...)
		}
		return out, nil
	})
}

// Prove gives the proof of one event, see [notary.ParseProof].
func (c *Client) Prove(ctx context.Context, q ProveRequest) (ProveReply, error) {
	return ask[ProveReply](ctx, c, commandTimeout, cmdLogProve, q)
}
