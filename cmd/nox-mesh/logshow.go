package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"noxmesh/events"
	"noxmesh/projections"
	"noxmesh/rollout"
	"noxmesh/server"
)

// Bounds of what is shown around an event.
const (
	maxCauses  = 64   // up the chain
	maxEffects = 1000 // that are looked at
	maxBranch  = 5    // effects of one event that are printed
	maxCites   = 20
)

func newLogShow(o *options) *cobra.Command {
	return o.jsonFlag(&cobra.Command{
		Use:   "show ID|SEQ",
		Short: "Show one event in full: what led to it, what it led to, what it rests on",
		Long: `Show one event in full: its data, the chain of causes up to the command that began
it and who gave that, the events that it led to, and for a decision the heartbeats
and events that it rests on. The first characters of an id are enough.`,
		Example: "  nox-mesh log show 1234\n  nox-mesh log show 01a228b0-a36b",
		Args:    cobra.ExactArgs(1),
		RunE: o.with(func(cmd *cobra.Command, args []string, c *server.Client) error {
			s, err := showing(cmd.Context(), c, args[0])
			if err != nil {
				return err
			}
			if o.json {
				return printJSON(cmd.OutOrStdout(), s.json())
			}
			return s.print(cmd.OutOrStdout())
		}),
	})
}

// around is an event with what is around it.
type around struct {
	at      server.LogRecord
	rec     events.Record
	causes  []server.LogRecord // the first one first, without the event itself
	begun   string             // id of what began the chain, if that is no event
	by      string             // whose it was
	effects []server.LogRecord // in order, at all depths
	more    bool               // effects were left out
	cites   []rollout.Cite
	// cited are what the evidence is; what is gone is not among them.
	beats, facts map[uint64]events.Message
}

func showing(ctx context.Context, c *server.Client, arg string) (*around, error) {
	at, err := findEvent(ctx, c, arg)
	if err != nil {
		return nil, err
	}
	s := &around{at: at}
	if s.rec, err = at.Decode(); err != nil {
		return nil, err
	}
	if err := s.climb(ctx, c); err != nil {
		return nil, err
	}
	if err := s.descend(ctx, c); err != nil {
		return nil, err
	}
	return s, s.cite(ctx, c)
}

// findEvent gives the event that a person names by its sequence, or by its id or
// the beginning of that.
func findEvent(ctx context.Context, c *server.Client, arg string) (server.LogRecord, error) {
	if seq, err := strconv.ParseUint(arg, 10, 63); err == nil && seq > 0 && arg[0] != '0' {
		page, err := c.LogPage(ctx, server.LogRequest{From: seq, To: seq})
		switch {
		case err != nil:
			return server.LogRecord{}, err
		case len(page.Events) == 1:
			return page.Events[0], nil
		case len(arg) < projections.MinPrefix:
			return server.LogRecord{}, fmt.Errorf("there is no event %d: the log ends with %d", seq, page.Last)
		}
	}
	if len(arg) < projections.MinPrefix {
		return server.LogRecord{}, fmt.Errorf("%q is neither a sequence number nor the first %d characters of an id: nox-mesh log shows the numbers", arg, projections.MinPrefix)
	}
	const few = 4
	page, err := c.LogPage(ctx, server.LogRequest{IDs: []string{arg}, Limit: few})
	switch {
	case err != nil:
		return server.LogRecord{}, err
	case len(page.Events) == 0:
		return server.LogRecord{}, fmt.Errorf("no event has an id that begins with %q", arg)
	case len(page.Events) == 1:
		return page.Events[0], nil
	}
	var seqs []string
	for _, e := range page.Events {
		seqs = append(seqs, fmt.Sprint(e.Seq))
	}
	if len(seqs) == few {
		seqs[few-1] = "more"
	}
	return server.LogRecord{}, fmt.Errorf("the ids of several events begin with %q: give more of it, or one of the sequence numbers %s", arg, strings.Join(seqs, ", "))
}

// climb follows the causes up to what is no event: a command, or a node's report.
func (s *around) climb(ctx context.Context, c *server.Client) error {
	e := s.rec.Event
	for range maxCauses {
		s.begun, s.by = e.Cause, e.Actor
		if e.Cause == "" {
			break
		}
		if len(e.Cause) < projections.MinPrefix {
			break
		}
		page, err := c.LogPage(ctx, server.LogRequest{IDs: []string{e.Cause}, Limit: 1})
		if err != nil {
			return err
		}
		if len(page.Events) == 0 {
			break
		}
		rec, err := page.Events[0].Decode()
		if err != nil {
			return err
		}
		s.causes = append(s.causes, page.Events[0])
		e = rec.Event
	}
	slices.Reverse(s.causes)
	return nil
}

// descend collects the effects, and their effects, a level at a time.
func (s *around) descend(ctx context.Context, c *server.Client) error {
	level := []string{s.rec.Event.ID}
	for len(level) > 0 && !s.more {
		found, page := []string{}, server.LogPage{}
		for some := range slices.Chunk(level, 500) {
			var err error
			q := server.LogRequest{Causes: some, From: s.at.Seq + 1, Limit: maxEffects - len(s.effects)}
			if page, err = c.LogPage(ctx, q); err != nil {
				return err
			}
			for _, raw := range page.Events {
				rec, err := raw.Decode()
				if err != nil {
					return err
				}
				s.effects = append(s.effects, raw)
				found = append(found, rec.Event.ID)
			}
			if s.more = page.Next <= page.Last || len(s.effects) >= maxEffects; s.more {
				break
			}
		}
		level = found
	}
	return nil
}

// cite reads what the event rests on.
func (s *around) cite(ctx context.Context, c *server.Client) error {
	fact, err := s.rec.Event.Fact()
	if errors.Is(err, events.ErrUnknownType) {
		return nil
	}
	if err != nil {
		return err
	}
	s.cites = rollout.Cited(fact)
	var beats, facts []uint64
	for _, cite := range s.cites {
		beats, facts = append(beats, cite.Heartbeats...), append(facts, cite.Events...)
	}
	if s.beats, err = c.Messages(ctx, events.StreamHeartbeats, beats); err != nil {
		return err
	}
	s.facts, err = c.Messages(ctx, events.StreamEvents, facts)
	return err
}

// beginning says what began the chain of causes.
func (s *around) beginning() string {
	switch {
	case s.begun == "":
		return "nothing before it, by " + s.by
	case strings.HasPrefix(s.by, "node:"):
		return fmt.Sprintf("report %s of node %s", s.begun, strings.TrimPrefix(s.by, "node:"))
	}
	return fmt.Sprintf("command %s by %s", s.begun, s.by)
}

func (s *around) print(out io.Writer) error {
	e := s.rec.Event
	fmt.Fprintf(out, "event %d: %s of %s\n", s.at.Seq, projections.ShortType(e.Type), e.Subject)
	for _, f := range [][2]string{
		{"id", e.ID}, {"type", e.Type}, {"time", e.Time.Local().Format("2006-01-02 15:04:05.000000 -07:00")}, {"actor", e.Actor}, {"source", e.Source},
	} {
		fmt.Fprintf(out, "  %-10s%s\n", f[0], f[1])
	}
	fmt.Fprintln(out, "  data")
	printData(out, e.Data, "    ")
	fmt.Fprintf(out, "because of\n          %s\n", s.beginning())
	for _, raw := range s.causes {
		if err := printRaw(out, raw, ""); err != nil {
			return err
		}
	}
	if err := s.printEffects(out); err != nil {
		return err
	}
	s.printCites(out)
	return nil
}

func printRaw(out io.Writer, raw server.LogRecord, indent string) error {
	rec, err := raw.Decode()
	if err != nil {
		return err
	}
	var line strings.Builder
	if err := printEvent(&line, rec); err != nil {
		return err
	}
	_, err = fmt.Fprintln(out, indent+cut(strings.TrimRight(line.String(), "\n"), screen+40))
	return err
}

// printEffects prints the effects below what they are effects of, folded where
// there are many.
func (s *around) printEffects(out io.Writer) error {
	if len(s.effects) == 0 {
		fmt.Fprintln(out, "led to no event")
		return nil
	}
	fmt.Fprintln(out, "led to")
	below, ids := map[string][]server.LogRecord{}, map[uint64]string{}
	for _, raw := range s.effects {
		rec, err := raw.Decode()
		if err != nil {
			return err
		}
		below[rec.Event.Cause] = append(below[rec.Event.Cause], raw)
		ids[raw.Seq] = rec.Event.ID
	}
	var tree func(id, indent string) error
	tree = func(id, indent string) error {
		list := below[id]
		for i, raw := range list {
			if i == maxBranch && len(list) > maxBranch+1 && len(below[ids[raw.Seq]]) == 0 {
				// What led to something itself is not folded.
				folded := 0
				for _, rest := range list[i:] {
					if len(below[ids[rest.Seq]]) == 0 {
						folded++
					}
				}
				fmt.Fprintf(out, "%6s  %sand %d more: %s\n", "", indent, folded, s.lookFurther())
			}
			if i >= maxBranch && len(list) > maxBranch+1 && len(below[ids[raw.Seq]]) == 0 {
				continue
			}
			if err := printRaw(out, raw, indent); err != nil {
				return err
			}
			if err := tree(ids[raw.Seq], indent+"  "); err != nil {
				return err
			}
		}
		return nil
	}
	if err := tree(s.rec.Event.ID, ""); err != nil {
		return err
	}
	if s.more {
		fmt.Fprintf(out, "        only %s were looked at: %s\n", plural(len(s.effects), "event"), s.lookFurther())
	}
	return nil
}

// lookFurther is the command that shows all of what is folded.
func (s *around) lookFurther() string {
	switch fact, _ := s.rec.Event.Fact(); f := fact.(type) {
	case *events.Declared:
		if f.Because.Rollout != "" {
			return "nox-mesh log --rollout " + f.Because.Rollout
		}
	case nil:
	default:
		if strings.HasPrefix(s.rec.Event.Type, "mesh.rollout.") {
			return "nox-mesh log --rollout " + s.rec.Event.Subject
		}
	}
	return fmt.Sprintf("nox-mesh log --from %d", s.at.Seq)
}

func (s *around) printCites(out io.Writer) {
	if len(s.cites) == 0 {
		return
	}
	fmt.Fprintln(out, "rests on")
	for i, cite := range s.cites {
		if i == maxCites && len(s.cites) > maxCites+1 {
			fmt.Fprintf(out, "  and %d more nodes (--json shows all)\n", len(s.cites)-i)
			return
		}
		who := cite.Says
		if cite.Node != "" {
			who = cite.Node + " " + cite.Says
		}
		fmt.Fprintf(out, "  %s\n", who)
		for _, seq := range cite.Heartbeats {
			fmt.Fprintf(out, "    heartbeat %d: %s\n", seq, s.beatText(seq))
		}
		for _, seq := range cite.Events {
			fmt.Fprintf(out, "    event %d: %s\n", seq, s.factText(seq))
		}
	}
}

// beatText words a heartbeat that something rests on.
func (s *around) beatText(seq uint64) string {
	m, ok := s.beats[seq]
	if !ok {
		return "aged out, heartbeats are kept for a while only"
	}
	node, _, err := events.SubjectNode(m.Subject)
	if err != nil {
		return "on " + m.Subject
	}
	at := m.Stored.Local().Format(time.DateTime)
	hb, err := events.DecodeHeartbeat(m.Data)
	if err != nil {
		return fmt.Sprintf("%s %s, it does not read", at, node)
	}
	return fmt.Sprintf("%s %s ran %s, known good %s, revision %d, start %s", at, node, hb.Version, dash(hb.KnownGood), hb.Revision, cut(hb.StartID, 16))
}

func (s *around) factText(seq uint64) string {
	m, ok := s.facts[seq]
	if !ok {
		return "not in the log"
	}
	rec, err := server.LogRecord{Seq: seq, Data: m.Data}.Decode()
	if err != nil {
		return err.Error()
	}
	text := ""
	if fact, err := rec.Event.Fact(); err == nil {
		text = describe(fact)
	}
	return fmt.Sprintf("%s %s of %s, %s", rec.Event.Time.Local().Format(time.DateTime), projections.ShortType(rec.Event.Type), rec.Event.Subject, text)
}
