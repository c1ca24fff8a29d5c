package main

import (
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"noxmesh/server"
)

// withAt makes a command one that needs the mesh and has --at. The function gets
// the moment that was asked for, nil for now.
func (o *options) withAt(cmd *cobra.Command, fn func(cmd *cobra.Command, args []string, c *server.Client, at *time.Time) error) {
	var text string
	cmd.Flags().StringVar(&text, "at", "", "as it was at a moment: "+momentHelp)
	cmd.RunE = o.with(func(cmd *cobra.Command, args []string, c *server.Client) error {
		if text == "" {
			return fn(cmd, args, c, nil)
		}
		at, err := parseWhen(text, time.Now())
		if err != nil {
			return fmt.Errorf("--at: %w", err)
		}
		return fn(cmd, args, c, &at)
	})
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
