package main

import (
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"noxmesh/server"
)

// atFlag adds --at to a command. The function gives the moment that was asked for,
// nil for now.
func atFlag(cmd *cobra.Command) func() (*time.Time, error) {
	var text string
	cmd.Flags().StringVar(&text, "at", "", `as it was at a moment: 2h or 3d ago, a local time like "2006-01-02 15:04", or RFC 3339`)
	return func() (*time.Time, error) {
		if text == "" {
			return nil, nil
		}
		at, err := parseWhen(text, time.Now())
		if err != nil {
			return nil, fmt.Errorf("--at: %w", err)
		}
		return &at, nil
	}
}

// momentOf is the time that a view is of: spans like "2h ago" count from there.
func momentOf(p *server.Past) time.Time {
	if p == nil {
		return time.Now()
	}
	return p.At
}

// printPast says of which moment what was printed is, and what it rests on.
func printPast(out io.Writer, p *server.Past) {
	if p == nil {
		return
	}
	fmt.Fprintf(out, "as it was at %s: the log up to event %d, heartbeats up to %d\n", p.At.Local().Format(time.DateTime), p.EventSeq, p.HeartbeatSeq)
	for _, note := range p.Notes {
		fmt.Fprintln(out, note)
	}
}
