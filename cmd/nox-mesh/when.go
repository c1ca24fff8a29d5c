package main

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// momentHelp says in help texts how a moment is written.
const momentHelp = `14:00, "2026-11-29 14:00" (this machine's time zone), 2026-11-29T14:00:00Z, or 90m, 2h or 3d (ago)`

// parseWhen reads a moment as people give it: RFC 3339, a local date with or
// without a time of day, a time of day, which is the last time that it was so,
// or a span like "2h", "3d" or "1w2d", which means that long before now. The
// result is in UTC; a moment in the future is as good as any other here.
func parseWhen(text string, now time.Time) (time.Time, error) {
	text = strings.TrimSpace(text)
	if text == "now" {
		return now.UTC(), nil
	}
	if t, err := time.Parse(time.RFC3339, text); err == nil {
		return t.UTC(), nil
	}
	for _, layout := range []string{"2006-01-02 15:04:05", "2006-01-02 15:04", "2006-01-02T15:04:05", "2006-01-02T15:04", "2006-01-02"} {
		if t, err := time.ParseInLocation(layout, text, now.Location()); err == nil {
			return t.UTC(), nil
		}
	}
	for _, layout := range []string{time.TimeOnly, "15:04"} {
		t, err := time.Parse(layout, text)
		if err != nil {
			continue
		}
		on := func(day int) time.Time {
			return time.Date(now.Year(), now.Month(), day, t.Hour(), t.Minute(), t.Second(), 0, now.Location()).UTC()
		}
		if today := on(now.Day()); !today.After(now) {
			return today, nil
		}
		return on(now.Day() - 1), nil
	}
	ago, err := parseSpan(strings.TrimSpace(strings.TrimSuffix(text, "ago")))
	if err != nil {
		return time.Time{}, fmt.Errorf("%q is no moment: write it as %s", text, momentHelp)
	}
	return now.Add(-ago).UTC(), nil
}

// parseSpan reads what [time.ParseDuration] reads, with days and weeks before
// that. A day is 24 hours. Negative spans are refused.
func parseSpan(text string) (time.Duration, error) {
	const day = 24 * time.Hour
	var sum time.Duration
	rest := text
	for _, unit := range []struct {
		name string
		span time.Duration
	}{{"w", 7 * day}, {"d", day}} {
		number, after, ok := strings.Cut(rest, unit.name)
		if !ok {
			continue
		}
		n, err := strconv.ParseUint(number, 10, 16)
		if err != nil {
			return 0, fmt.Errorf("%q is no span of time", text)
		}
		sum += time.Duration(n) * unit.span
		if rest = after; rest == "" {
			return sum, nil
		}
	}
	d, err := time.ParseDuration(rest)
	if err != nil || d < 0 || strings.HasPrefix(rest, "+") {
		return 0, fmt.Errorf("%q is no span of time", text)
	}
	return sum + d, nil
}
