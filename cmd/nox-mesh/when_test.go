package main

import (
	"strings"
	"testing"
	"time"
)

func TestParseWhen(t *testing.T) {
	zone := time.FixedZone("east", 2*3600)
	now := time.Date(2026, 11, 29, 14, 0, 0, 0, zone)
	for _, tt := range []struct{ text, want string }{
		{"2026-11-01T10:00:00Z", "2026-11-01T10:00:00Z"},
		{"2026-11-01T10:00:00+02:00", "2026-11-01T08:00:00Z"},
		{"2026-11-01T10:00:00.25Z", "2026-11-01T10:00:00.25Z"},
		{"2026-11-01 10:00", "2026-11-01T08:00:00Z"},
		{"2026-11-01 10:00:30", "2026-11-01T08:00:30Z"},
		{"2026-11-01T10:00", "2026-11-01T08:00:00Z"},
		{"2026-11-01", "2026-10-31T22:00:00Z"},
		{"2h", "2026-11-29T10:00:00Z"},
		{" 2h ago ", "2026-11-29T10:00:00Z"},
		{"90m", "2026-11-29T10:30:00Z"},
		{"3d", "2026-11-26T12:00:00Z"},
		{"1w2d12h30m", "2026-11-19T23:30:00Z"},
		{"0s", "2026-11-29T12:00:00Z"},
		{"now", "2026-11-29T12:00:00Z"},
		{"13:30", "2026-11-29T11:30:00Z"},
		{"14:30:05", "2026-11-28T12:30:05Z"}, // not today's yet
		{"", ""}, {"yesterday", ""}, {"-2h", ""}, {"+2h", ""}, {"d", ""}, {"-3d", ""}, {"2", ""},
		{"2h3d", ""}, {"1.5d", ""}, {"2026-13-01", ""}, {"99999999d", ""}, {"ago", ""}, {"25:00", ""},
	} {
		got, err := parseWhen(tt.text, now)
		switch {
		case tt.want == "" && err == nil:
			t.Errorf("%q is read as %s, want a refusal", tt.text, got)
		case tt.want == "" && !strings.Contains(err.Error(), "2h or 3d"):
			t.Errorf("%q: the refusal does not say what to give: %v", tt.text, err)
		case tt.want != "" && (err != nil || got.Format(time.RFC3339Nano) != tt.want):
			t.Errorf("%q is %s, %v, want %s", tt.text, got.Format(time.RFC3339Nano), err, tt.want)
		}
	}
}
