package main

import (
	"fmt"
	"strings"
	"time"
)

// momentHelp says in help texts how a moment is written.
const momentHelp = `14:00, "2026-11-29 14:00" (this machine's time zone), 2026-11-29T14:00:00Z, or 90m, 2h, 3d (ago)`

// parseMoment reads a moment as people write it. A time of day is the last time
// that it was so; a span of time is that long ago.
func parseMoment(text string, now time.Time) (time.Time, error) {
	for _, layout := range []string{
		time.RFC3339Nano, "2006-01-02T15:04Z07:00", "2006-01-02 15:04:05", "2006-01-02 15:04", "2006-01-02T15:04:05", "2006-01-02T15:04", time.DateOnly,
	} {
		if t, err := time.ParseInLocation(layout, text, now.Location()); err == nil {
			return t, nil
		}
	}
	for _, layout := range []string{time.TimeOnly, "15:04"} {
		if t, err := time.Parse(layout, text); err == nil {
			on := func(day int) time.Time {
				return time.Date(now.Year(), now.Month(), day, t.Hour(), t.Minute(), t.Second(), 0, now.Location())
			}
			if today := on(now.Day()); !today.After(now) {
				return today, nil
			}
			return on(now.Day() - 1), nil
		}
	}
	if text == "now" {
		return now, nil
	}
	if ago, err := parseSpan(text); err == nil && ago >= 0 {
		return now.Add(-ago), nil
	}
	return time.Time{}, fmt.Errorf("%q is no moment: write it as %s", text, momentHelp)
}

// parseSpan is [time.ParseDuration] with days and weeks, as in 1w2d12h.
func parseSpan(text string) (time.Duration, error) {
	var sum time.Duration
	rest := text
	for _, unit := range []struct {
		name string
		is   time.Duration
	}{{"w", 7 * 24 * time.Hour}, {"d", 24 * time.Hour}} {
		head, tail, found := strings.Cut(rest, unit.name)
		if !found {
			continue
		}
		n := 0
		if _, err := fmt.Sscanf(head+" ", "%d ", &n); err != nil || fmt.Sprint(n) != head || n < 0 || n > 10_000 {
			return 0, fmt.Errorf("%q is no span of time like 90m, 2h or 3d", text)
		}
		sum, rest = sum+time.Duration(n)*unit.is, tail
	}
	if rest == "" && sum > 0 {
		return sum, nil
	}
	d, err := time.ParseDuration(rest)
	if err != nil {
		return 0, fmt.Errorf("%q is no span of time like 90m, 2h or 3d", text)
	}
	return sum + d, nil
}
