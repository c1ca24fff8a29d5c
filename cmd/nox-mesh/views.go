package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"noxmesh/projections"
	"noxmesh/projections/client"
	"noxmesh/server"
)

func newWatch(o *options) *cobra.Command {
	var from string
	cmd := &cobra.Command{
		Use:   "watch fleet|rollouts|releases",
		Short: "Follow what changes in the fleet, the rollouts or the releases",
		Long: `Follow what changes, one line a change: first what there is, then each change
until Ctrl-C. What changes several times in a moment may be told of once, with
the newest state; nothing is left out for good. With --json each line is an
object with a token, from which --from goes on later.`,
		Example:   "  nox-mesh watch rollouts\n  nox-mesh watch fleet --json --from TOKEN",
		Args:      cobra.MatchAll(cobra.ExactArgs(1), cobra.OnlyValidArgs),
		ValidArgs: projections.Buckets,
		RunE: o.with(func(cmd *cobra.Command, args []string, c *server.Client) error {
			return watchView(cmd.Context(), cmd.OutOrStdout(), c.Conn(), args[0], client.Token(from), o.json)
		}),
	}
	cmd.Flags().StringVar(&from, "from", "", "go on behind this token, as --json printed it")
	return o.jsonFlag(cmd)
}

// watchView prints what changes in a bucket until ctx ends.
func watchView(ctx context.Context, out io.Writer, c *client.Conn, bucket string, from client.Token, asJSON bool) error {
	v := viewWatcher{out: out, bucket: bucket, caught: from != "", seen: map[string]viewFields{}}
	for ch, err := range client.Watch[json.RawMessage](ctx, c, bucket, from) {
		switch {
		case ctx.Err() != nil:
			return nil // Ctrl-C
		case err != nil:
			return err
		}
		show := v.show
		if asJSON {
			show = v.showJSON
		}
		if err := show(ch); err != nil {
			return err
		}
	}
	return nil
}

// viewLine is one line of --json.
type viewLine struct {
	Key          string          `json:"key,omitempty"`
	Value        json.RawMessage `json:"value,omitempty"`
	Deleted      bool            `json:"deleted,omitempty"`
	Reset        bool            `json:"reset,omitempty"`
	CaughtUp     bool            `json:"caught_up,omitempty"`
	EventSeq     uint64          `json:"event_seq,omitempty"`
	HeartbeatSeq uint64          `json:"heartbeat_seq,omitempty"`
	Token        client.Token    `json:"token"`
}

// viewWatcher remembers what was there, to say what changed.
type viewWatcher struct {
	out    io.Writer
	bucket string
	caught bool
	seen   map[string]viewFields
}

func (v *viewWatcher) showJSON(ch client.Change[json.RawMessage]) error {
	line := viewLine{Key: ch.Key, Reset: ch.Reset, CaughtUp: ch.CaughtUp, EventSeq: ch.EventSeq, HeartbeatSeq: ch.HeartbeatSeq, Token: ch.Token}
	if ch.Value != nil {
		line.Value = *ch.Value
	} else {
		line.Deleted = ch.Key != ""
	}
	return json.NewEncoder(v.out).Encode(line)
}

func (v *viewWatcher) show(ch client.Change[json.RawMessage]) error {
	say := func(text string) error {
		_, err := fmt.Fprintf(v.out, "%s  %-14s  %s\n", time.Now().Format(time.TimeOnly), ch.Key, text)
		return err
	}
	switch {
	case ch.Reset:
		v.caught = false
		clear(v.seen)
		_, err := fmt.Fprintln(v.out, "the view was made anew; this is what there is:")
		return err
	case ch.CaughtUp:
		v.caught = true
		return nil
	case ch.Value == nil:
		delete(v.seen, ch.Key)
		if !v.caught {
			return nil // it was gone before anybody looked
		}
		return say("gone")
	}
	now, err := viewFieldsOf(*ch.Value)
	if err != nil {
		return err
	}
	before, known := v.seen[ch.Key]
	v.seen[ch.Key] = now
	if !known {
		text, err := inShort(v.bucket, *ch.Value)
		if err != nil {
			return err
		}
		return say(text)
	}
	if changes := before.to(now); len(changes) > 0 {
		return say(cut(strings.Join(changes, ", "), 160))
	}
	return nil
}

// viewFields are the values of an object, by name; those of objects in it by both
// names.
type viewFields map[string]string

func viewFieldsOf(raw json.RawMessage) (viewFields, error) {
	var top map[string]json.RawMessage
	if err := json.Unmarshal(raw, &top); err != nil {
		return nil, fmt.Errorf("the value does not read: %w", err)
	}
	out := viewFields{}
	for name, v := range top {
		var inner map[string]json.RawMessage
		if json.Unmarshal(v, &inner) != nil || inner == nil {
			out[name] = string(v)
		}
		for k, v := range inner {
			out[name+"."+k] = string(v)
		}
	}
	// That it was heard again is no news.
	delete(out, "last_heard")
	return out, nil
}

// to says which fields became what.
func (f viewFields) to(now viewFields) []string {
	names := maps.Clone(f)
	maps.Copy(names, now)
	var out []string
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if a, b := f[name], now[name]; a != b {
			out = append(out, fmt.Sprintf("%s %s -> %s", name, dash(a), dash(b)))
		}
	}
	return out
}

// inShort is what is worth knowing about an entity that is seen for the first
// time.
func inShort(bucket string, raw json.RawMessage) (string, error) {
	var (
		n   projections.NodeView
		r   projections.RolloutView
		rel projections.ReleaseView
		err error
	)
	switch bucket {
	case projections.BucketFleet:
		err = json.Unmarshal(raw, &n)
		text := fmt.Sprintf("runs %s, declared %s", dash(n.Running), dash(n.Declared))
		if more := note(n); more != "" {
			text += "; " + more
		}
		return text, err
	case projections.BucketRollouts:
		err = json.Unmarshal(raw, &r)
		text := fmt.Sprintf("%s %s, batch %d of %d, %s", r.Version, r.State, r.Stage, r.Batches, countText(r.Counts, nil))
		return cut(colon(text, r.Reason), 160), err
	}
	err = json.Unmarshal(raw, &rel)
	text := fmt.Sprintf("declared to %d, confirmed by %d, rolled back by %d, silent %d", rel.Declared, rel.Confirmed, rel.RolledBack, rel.Silent)
	if rel.Held != "" {
		text += "; held: " + rel.Held
	}
	return text, err
}
