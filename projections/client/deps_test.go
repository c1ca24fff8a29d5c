package client_test

import (
	"os/exec"
	"strings"
	"testing"
)

func deps(t *testing.T, of string) []string {
	t.Helper()
	out, err := exec.Command("go", "list", "-deps", of).Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.Fields(string(out))
}

// TestProgramsHaveNoTestHelpers: what makes schemas and what waits for events in
// tests is not in the product.
func TestProgramsHaveNoTestHelpers(t *testing.T) {
	for _, path := range deps(t, "noxmesh/cmd/...") {
		if strings.Contains(path, "jsonschema") || strings.HasSuffix(path, "test") && strings.HasPrefix(path, "noxmesh/") {
			t.Errorf("a program imports %s", path)
		}
	}
}

// TestToolsStaySmall: who imports this package gets no broker and no server.
func TestToolsStaySmall(t *testing.T) {
	for _, path := range deps(t, ".") {
		if strings.HasPrefix(path, "github.com/nats-io/nats-server/") || path == "noxmesh/server" || path == "noxmesh/rollout" {
			t.Errorf("it imports %s", path)
		}
	}
}
