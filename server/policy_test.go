package server

import (
	"strings"
	"testing"
	"time"

	"noxmesh/events"
)

func TestParseMaxFailed(t *testing.T) {
	for _, c := range []struct {
		text     string
		tolerate string
		most     int
		err      string // in the error
	}{
		{text: "", tolerate: "auto"},
		{text: "auto", tolerate: "auto"},
		{text: "0", most: 0},
		{text: "3", most: 3},
		{text: " 3 ", most: 3},
		{text: "0%", tolerate: "0%"},
		{text: "5%", tolerate: "5%"},
		{text: "05%", tolerate: "5%"},
		{text: "100%", tolerate: "100%"},
		{text: "101%", err: "more than the whole batch"},
		{text: "-1", err: "negative"},
		{text: "-5%", err: "negative"},
		{text: "few", err: `"few" is neither a number of nodes, a percentage of the batch like 5%, nor auto`},
		{text: "%", err: "neither"},
		{text: "2.5%", err: "neither"},
		{text: "99999999999999999999", err: "neither"},
	} {
		tolerate, most, err := ParseMaxFailed(c.text)
		if c.err != "" {
			if err == nil || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%q: the error is %v, want one with %q", c.text, err, c.err)
			}
			continue
		}
		if err != nil || tolerate != c.tolerate || most != c.most {
			t.Errorf("%q reads as %q and %d, %v; want %q and %d", c.text, tolerate, most, err, c.tolerate, c.most)
		}
	}
}

func TestPolicyDefaults(t *testing.T) {
	policy := func(tolerate string, most int) events.Policy {
		return events.Policy{Tolerate: tolerate, MaxFailed: most}
	}
	for _, c := range []struct {
		name     string
		q        StartRequest
		tolerate string
		most     int
	}{
		{"nothing said", StartRequest{}, "auto", 0},
		{"none asked for", StartRequest{MaxFailed: "0"}, "", 0},
		{"a percentage", StartRequest{MaxFailed: "5%"}, "5%", 0},
		{"a number in the policy", StartRequest{Policy: policy("", 2)}, "", 2},
		{"a percentage in the policy", StartRequest{Policy: policy("3%", 0)}, "3%", 0},
		{"the text wins", StartRequest{Policy: policy("3%", 0), MaxFailed: "1"}, "", 1},
	} {
		p, err := policyOf(c.q)
		if err != nil || p.Tolerate != c.tolerate || p.MaxFailed != c.most {
			t.Errorf("%s: tolerate %q, max failed %d, %v; want %q and %d", c.name, p.Tolerate, p.MaxFailed, err, c.tolerate, c.most)
		}
		if len(p.Batches) == 0 || p.Window == 0 || p.Soak == 0 || p.Presence == 0 {
			t.Errorf("%s: left open: %+v", c.name, p)
		}
	}
	short, err := policyOf(StartRequest{Policy: events.Policy{Window: events.Duration(30 * time.Second)}})
	if err != nil || short.Soak != events.Duration(15*time.Second) {
		t.Errorf("a window of 30s gets a soak of %s, %v", short.Soak, err)
	}
}
