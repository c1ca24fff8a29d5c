package simnode

import (
	"context"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"noxmesh/nodeagent"
)

// story runs a machine with no link for an hour and gives its events.
func story(t *testing.T, m *Machine, events *[]string) []string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	if err := m.Run(ctx); err != nil {
		t.Fatal(err)
	}
	return *events
}

func machine(t *testing.T, version string, crashes ...string) (*Machine, *[]string) {
	t.Helper()
	var lines []string
	m, err := New(Config{Dir: t.TempDir(), Version: version, Architecture: "amd64",
		Crashes: func(v string) bool { return slices.Contains(crashes, v) },
		Event:   func(l string) { lines = append(lines, l) }})
	if err != nil {
		t.Fatal(err)
	}
	return m, &lines
}

func TestWithNothingToGoBackToItStaysFailed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, lines := machine(t, "1.0.0", "1.0.0")
		got := strings.Join(story(t, m, lines), "\n")
		want := "version 1.0.0 crashes on start (1 of 3)\nversion 1.0.0 crashes on start (2 of 3)\nversion 1.0.0 crashes on start (3 of 3)\n" +
			"there is no known-good version to go back to\nthe host stays in a failed state"
		if got != want {
			t.Errorf("story:\n%s", got)
		}
	})
}

func TestItRollsBackOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, lines := machine(t, "1.1.0", "1.1.0")
		if err := m.state.WriteRollback(nodeagent.RollbackRecord{ID: "x", From: "1.2.0", To: "1.1.0", Status: "done"}); err != nil {
			t.Fatal(err)
		}
		got := story(t, m, lines)
		if !strings.Contains(got[3], "the rollback has been used") || got[len(got)-1] != "the host stays in a failed state" {
			t.Errorf("story: %q", got)
		}
	})
}

func TestAGoodVersionRunsAndAMachineIsTakenUpAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, lines := machine(t, "1.0.0")
		if got := strings.Join(story(t, m, lines), "\n"); got != "version 1.0.0 starts\nversion 1.0.0 is confirmed" {
			t.Errorf("story:\n%s", got)
		}
		if err := m.setInstalled("1.1.0"); err != nil {
			t.Fatal(err)
		}
		again, err := New(m.cfg)
		if err != nil || again.Installed() != "1.1.0" {
			t.Errorf("the machine came back with %q, %v", again.Installed(), err)
		}
	})
}
