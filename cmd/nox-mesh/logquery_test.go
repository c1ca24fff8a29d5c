package main

import (
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
)

// TestHowMuchOfTheLog: a terminal gets the newest events unless somebody says how
// much; everything else gets all.
func TestHowMuchOfTheLog(t *testing.T) {
	now := time.Date(2026, 11, 29, 14, 30, 0, 0, time.UTC)
	for _, c := range []struct {
		args   string
		screen bool
		want   int    // newest only
		err    string // or this
	}{
		{"", true, screenful, ""},
		{"", false, 0, ""},
		{"--node ams-01 --since 2h", true, screenful, ""},
		{"--follow", true, screenful, ""},
		{"--all", true, 0, ""},
		{"--from 1", true, 0, ""},
		{"--limit 5", true, 0, ""},
		{"--last 5", true, 5, ""},
		{"--last 5", false, 5, ""},
		{"--last 5 --follow", false, 5, ""},
		{"--last 5 --all", true, 0, "give one of them"},
		{"--limit 5 --all", true, 0, "give one of them"},
		{"--limit 0", true, 0, "give 1 or more"},
		{"--last -1", true, 0, "give 1 or more"},
		{"--since 2h --until 3h", true, 0, "is not before"},
		{"--since soon", true, 0, "is no moment"},
		{"--until soon", true, 0, "is no moment"},
	} {
		var l logOptions
		f := pflag.NewFlagSet("log", pflag.ContinueOnError)
		l.flags(f)
		if err := f.Parse(strings.Fields(c.args)); err != nil {
			t.Fatal(err)
		}
		q, err := l.request(f, c.screen, now)
		switch {
		case c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)):
			t.Errorf("%q gives %v, want %q", c.args, err, c.err)
		case c.err == "" && (err != nil || q.Last != c.want):
			t.Errorf("%q asks for the last %d, %v; want %d", c.args, q.Last, err, c.want)
		}
	}
}

func TestDataIsPrinted(t *testing.T) {
	var out strings.Builder
	printData(&out, []byte(`{"b":"x y","a":1,"nodes":["n1","n2"],"words":["a b","c"],"none":[],"o":{"p":true,"q":[{"r":"1","s":[1,2]},{"r":""}]},"line":"one\ntwo","big":18446744073709551615}`), "  ")
	const want = `  b: x y
  a: 1
  nodes: n1 n2
  words:
    - a b
    - c
  none: none
  o:
    p: true
    q:
      - r: 1
        s: 1 2
      - r: ""
  line: "one\ntwo"
  big: 18446744073709551615
`
	if out.String() != want {
		t.Errorf("it is printed as\n%s", out.String())
	}
	out.Reset()
	printData(&out, []byte(`{"nodes":["`+strings.Repeat(`node-one","`, 40)+`n"]}`), "")
	for line := range strings.Lines(out.String()) {
		if len(line) > screen {
			t.Errorf("a line has %d columns: %s", len(line), line)
		}
	}
	for _, raw := range []string{``, `7`, `"x"`, `[[1],[2]]`, `{"a":`, `[`, `nonsense`} {
		printData(&out, []byte(raw), "") // and does not fall over
	}
}
