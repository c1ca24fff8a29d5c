package events

import (
	"os"
	"strings"
	"testing"
)

// TestCatalogueIsWhole: every type of event is in the catalogue that people read.
func TestCatalogueIsWhole(t *testing.T) {
	raw, err := os.ReadFile("../docs/events.md")
	if err != nil {
		t.Fatal(err)
	}
	for typ, fresh := range factTypes {
		row := "| `" + typ + "` | `" + EventSubject(fresh().aggregate(), "")
		if !strings.Contains(string(raw), row) {
			t.Errorf("docs/events.md has no row that begins with %q", row)
		}
	}
	if rows := strings.Count(string(raw), "\n| `mesh."); rows != len(factTypes) {
		t.Errorf("docs/events.md has %d types, there are %d", rows, len(factTypes))
	}
}
