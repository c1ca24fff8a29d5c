package main

import (
	"strings"
	"testing"

	"noxmesh/projections/notary"
)

// Whoever is told that a log does not verify is told which event, and what is there
// now, safe to show.
func TestVerifiedIsTold(t *testing.T) {
	by := trusted{"nox-mesh-notary+0+A", "as given"}
	for _, tt := range []struct {
		report notary.Report
		want   string
	}{
		{notary.Report{OK: true, Origin: "nox-mesh/1", Events: 9, Root: "R=", Proven: 7, Checkpoints: 2}, `log nox-mesh/1: 9 events, root R=
verified: nothing was changed, removed or reordered up to event 7 (2 checkpoints)
later than the newest checkpoint, so that nothing vouches for it yet: 2 events
key nox-mesh-notary+0+A, as given
`},
		{notary.Report{Origin: "nox-mesh/1", Events: 9, Root: "R=", Proven: 9, Checkpoints: 1, Now: "{\"a\":\"\x1b[2J\"}",
			Fault: &notary.Fault{Seq: 4, UpTo: 4, Reason: "it is not what was signed"}}, `log nox-mesh/1: 9 events, root R=
THE LOG DOES NOT VERIFY
the first that does not fit is event 4: it is not what was signed
there is now: "{\"a\":\"\x1b[2J\"}"
what to do: docs/operations.md
key nox-mesh-notary+0+A, as given
`},
		{notary.Report{Proven: 9, Checkpoints: 1, Fault: &notary.Fault{Seq: 3, UpTo: 9, Reason: "why"}}, `log -: 0 events, root -
THE LOG DOES NOT VERIFY
the first that does not fit is one of events 3 to 9: why
what to do: docs/operations.md
key nox-mesh-notary+0+A, as given
`},
	} {
		var out strings.Builder
		printVerified(&out, tt.report, by)
		if out.String() != tt.want {
			t.Errorf("it says\n%s\nwant\n%s", out.String(), tt.want)
		}
	}
}
