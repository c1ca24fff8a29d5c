package nodeagent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"

	"noxmesh/events"
)

// maxOutbox bounds the reports that wait. A node that restarts for weeks with
// no link must not fill its disk.
const maxOutbox = 500

// outbox keeps reports on disk, in order, until the broker has them.
type outbox struct {
	state *State
	log   zerolog.Logger
	added chan struct{}

	mu   sync.Mutex
	next uint64
}

// outgoing is one file of the outbox.
type outgoing struct {
	Kind   string        `json:"kind"`
	Report events.Report `json:"report"`
}

func newOutbox(s *State, log zerolog.Logger) *outbox {
	o := &outbox{state: s, log: log, added: make(chan struct{}, 1), next: 1}
	for _, name := range outboxFiles(s) {
		var n uint64
		if _, err := fmt.Sscanf(name, "%020d-", &n); err == nil && n >= o.next {
			o.next = n + 1
		}
	}
	return o
}

// outboxFiles lists the waiting reports, oldest first.
func outboxFiles(s *State) []string {
	entries, err := os.ReadDir(s.path(dirOutbox))
	if err != nil {
		if !errors.Is(err, os.ErrNotExist) {
			s.note("the outbox cannot be read: %v", err)
		}
		return nil
	}
	var names []string
	for _, e := range entries {
		if !e.IsDir() && !strings.HasPrefix(e.Name(), ".") && strings.HasSuffix(e.Name(), ".json") {
			names = append(names, e.Name())
		}
	}
	slices.Sort(names)
	return names
}

// add puts a report on disk. One that waits already, by its id, is not added
// again.
func (o *outbox) add(kind string, r events.Report) error {
	raw, err := json.Marshal(r)
	if err == nil {
		_, _, err = events.DecodeReport(kind, raw)
	}
	if err != nil {
		return fmt.Errorf("the mesh would not take this %s report: %w", kind, err)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	names := outboxFiles(o.state)
	for _, name := range names {
		if strings.HasSuffix(name, "-"+r.ID+"."+kind+".json") {
			return nil
		}
	}
	if len(names) >= maxOutbox {
		o.drop(names)
	}
	name := fmt.Sprintf("%020d-%s.%s.json", o.next, r.ID, kind)
	if err := o.state.writeJSON(filepath.Join(dirOutbox, name), outgoing{kind, r}); err != nil {
		return err
	}
	o.next++
	poke(o.added)
	return nil
}

// drop makes room: the oldest report goes that is no rollback.
func (o *outbox) drop(names []string) {
	for _, name := range names {
		if strings.HasSuffix(name, "."+events.ReportRolledBack+".json") {
			continue
		}
		o.log.Warn().Str("report", name).Msg("the outbox is full: the oldest report is dropped")
		if err := o.state.remove(filepath.Join(dirOutbox, name)); err != nil {
			o.log.Warn().Err(err).Msg("outbox")
		}
		return
	}
}

// run sends reports in order until the context ends.
func (o *outbox) run(ctx context.Context, a *Agent) {
	t := a.cfg.Timings
	for try := 1; ; {
		nc, err := a.link.waitUp(ctx)
		if err != nil {
			return
		}
		names := outboxFiles(o.state)
		if len(names) == 0 {
			a.problem("sending", "")
			try = 1
			select {
			case <-o.added:
			case <-ctx.Done():
				return
			}
			continue
		}
		err = o.send(ctx, a, nc, names[0])
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			a.problem("sending", "")
			poke(a.dirty)
			try = 1
			continue
		}
		if a.link.isUp() {
			a.problem("sending", fmt.Sprintf("%d reports wait, the mesh does not take them: %v", len(names), err))
		}
		if wait(ctx, backoff(try, t.RetryLeast, t.RetryMost)) != nil {
			return
		}
		try++
	}
}

// send hands the oldest report to the broker and forgets it once it is kept.
func (o *outbox) send(ctx context.Context, a *Agent, nc *nats.Conn, name string) error {
	file := filepath.Join(dirOutbox, name)
	var out outgoing
	if !o.state.readJSON(file, &out) || out.Kind == "" || strings.ContainsAny(out.Kind, ".*> \t") {
		if _, err := os.Lstat(o.state.path(file)); err == nil {
			return o.reject(a, name, "it is damaged")
		}
		return nil // set aside by the reader
	}
	raw, err := json.Marshal(out.Report)
	if err != nil {
		return o.reject(a, name, err.Error())
	}
	a.mu.Lock()
	node := a.node
	a.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, a.cfg.Timings.Request)
	defer cancel()
	m, err := nc.RequestWithContext(ctx, events.ReportSubject(node, out.Kind), raw)
	switch {
	case errors.Is(err, nats.ErrMaxPayload):
		return o.reject(a, name, err.Error())
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("no acknowledgement within %v", a.cfg.Timings.Request)
	case err != nil:
		return err
	}
	if err := ackError(m.Data); errors.Is(err, errRejected) {
		return o.reject(a, name, err.Error())
	} else if err != nil {
		return err
	}
	if err := o.state.remove(file); err != nil {
		return fmt.Errorf("the report was taken and cannot be removed from the outbox: %w", err)
	}
	o.log.Info().Str("kind", out.Kind).Str("id", out.Report.ID).Msg("report is with the mesh")
	return nil
}

// errRejected: the broker will never take this message.
var errRejected = errors.New("rejected")

// tooLarge is the broker's error code for a message over the stream's limit.
const tooLarge = 10054

// ackError reads the broker's answer to a publication into a stream.
func ackError(raw []byte) error {
	var ack struct {
		Stream string `json:"stream"`
		Error  *struct {
			Code        int    `json:"code"`
			ErrCode     int    `json:"err_code"`
			Description string `json:"description"`
		} `json:"error"`
	}
	if err := json.Unmarshal(raw, &ack); err != nil {
		return fmt.Errorf("the broker's acknowledgement does not read: %w", err)
	}
	switch {
	case ack.Error != nil && ack.Error.ErrCode == tooLarge:
		return fmt.Errorf("%w: %s", errRejected, ack.Error.Description)
	case ack.Error != nil:
		return fmt.Errorf("the broker answers %d %s", ack.Error.Code, events.Printable(ack.Error.Description, 200))
	case ack.Stream != events.StreamReports:
		return fmt.Errorf("the report went to stream %q and not to %s", events.Printable(ack.Stream, 60), events.StreamReports)
	}
	return nil
}

// reject moves a report aside that can never be sent, so that those behind it
// are not held up.
func (o *outbox) reject(a *Agent, name, why string) error {
	a.problem("rejected "+name, fmt.Sprintf("a report was not taken and is kept in %s: %s", filepath.Join(dirRejected, name), why))
	return errors.Join(
		os.Rename(o.state.path(filepath.Join(dirOutbox, name)), o.state.path(filepath.Join(dirRejected, name))),
		syncDir(o.state.path(dirOutbox)))
}
