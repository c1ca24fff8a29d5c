package client_test

import (
	"os/exec"
	"strings"
	"testing"
)

// TestToolsStaySmall: who imports this package gets no broker and no server.
func TestToolsStaySmall(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", ".").Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range strings.Fields(string(out)) {
		if strings.HasPrefix(path, "github.com/nats-io/nats-server/") || path == "noxmesh/server" || path == "noxmesh/rollout" {
			t.Errorf("it imports %s", path)
		}
	}
}
