package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"noxmesh/projections"
)

// TestLabServer is the server's package on a machine of its own: installed with
// one command it serves, root gives commands at once, and another machine joins
// with a token. It survives a reboot, an upgrade and a removal.
func TestLabServer(t *testing.T) {
	l, ctx := newLab(t)
	server := map[string]string{}
	for _, version := range []string{first, good} {
		program, err := l.Build(ctx, "./cmd/nox-mesh", version)
		must(t, err)
		server[version], err = l.ServerPackage(ctx, program, version)
		must(t, err)
	}
	program, err := l.Build(ctx, "./cmd/nox-mesh-host", first)
	must(t, err)
	host, err := l.HostPackage(ctx, program, first)
	must(t, err)

	// Debian 13 is stricter with services that are shut in.
	mesh, err := l.Machine(ctx, "mesh", MachineOptions{Release: Debian13, OwnNetwork: true})
	must(t, err)
	node, err := l.Machine(ctx, "node", MachineOptions{Release: Debian12})
	must(t, err)
	t.Cleanup(func() {
		if t.Failed() && mesh.On() {
			journal, err := mesh.Journal(context.WithoutCancel(ctx), "nox-mesh.service", "--lines=40")
			t.Logf("the server's journal (%v):\n%s", err, journal)
			journal, err = node.Journal(context.WithoutCancel(ctx), hostUnit, "--lines=40")
			t.Logf("the node's journal (%v):\n%s", err, journal)
		}
	})
	must(t, errors.Join(mesh.Boot(ctx), node.Boot(ctx)))
	install := func(version string) {
		t.Helper()
		must(t, mesh.CopyIn(server[version], "/root/server.deb", 0o644))
		execIn(t, ctx, mesh, "dpkg", "-i", "/root/server.deb")
		if got := execIn(t, ctx, mesh, "nox-mesh", "--version"); !strings.Contains(got, version) {
			t.Errorf("the program says it is %q", got)
		}
	}
	install(first)
	l.Say("mesh", "%s is installed", first)
	if got := execIn(t, ctx, mesh, "nox-mesh", "fleet"); !strings.Contains(got, "no node yet") {
		t.Errorf("right after the installation the fleet is %q", got)
	}
	if got := execIn(t, ctx, mesh, "sh", "-c", "stat -c '%U %a' /var/lib/nox-mesh /var/lib/nox-mesh/tls/ca.key; systemctl show --value -p User,ActiveState,UnitFileState,NRestarts nox-mesh"); !sameLines(got, "nox-mesh 700", "nox-mesh 600", "nox-mesh", "active", "enabled", "0") {
		t.Errorf("owners, modes and state are %q", got)
	}

	must(t, node.CopyIn(host, "/root/host.deb", 0o644))
	execIn(t, ctx, node, "dpkg", "-i", "/root/host.deb")
	token := execIn(t, ctx, mesh, "nox-mesh", "node", "invite", "node", "--label", "site=lab")
	must(t, join(ctx, node, token))
	heard := func(since time.Time) error {
		return WaitFor(ctx, "the mesh hears the node", 90*time.Second, func(ctx context.Context) error {
			out, err := mesh.Exec(ctx, "nox-mesh", "fleet", "--json")
			if err != nil {
				return err
			}
			var f struct{ Nodes []projections.NodeView }
			if err := json.Unmarshal([]byte(out), &f); err != nil {
				return err
			}
			if len(f.Nodes) != 1 || f.Nodes[0].LastHeard == nil || f.Nodes[0].LastHeard.Before(since) || f.Nodes[0].Labels["site"] != "lab" {
				return fmt.Errorf("the fleet is %s", out)
			}
			return nil
		})
	}
	must(t, heard(time.Time{}))
	l.Say("node", "has joined and is heard")
	if _, err := node.Exec(ctx, "nox-mesh-host", "join", strings.TrimSpace(token)); err == nil || !strings.Contains(err.Error(), "was used already") {
		t.Errorf("joining with a used token: %v", err)
	}
	must(t, wantFile(node, "/var/lib/mesh-host/known-good", first+"\n"))

	must(t, mesh.Stop(ctx))
	again := time.Now()
	must(t, mesh.Boot(ctx))
	must(t, heard(again))
	l.Say("mesh", "has rebooted; the node is back")

	again = time.Now()
	install(good)
	must(t, heard(again))
	l.Say("mesh", "is upgraded to %s; the node is back", good)

	execIn(t, ctx, mesh, "dpkg", "-r", "nox-mesh")
	if there, err := mesh.Exists("/var/lib/nox-mesh/identity"); err != nil || !there {
		t.Errorf("the mesh's keys are gone with the package: %v", err)
	}
	again = time.Now()
	install(good)
	must(t, heard(again))
	l.Say("mesh", "was removed and is back with all it had")

	execIn(t, ctx, mesh, "nox-mesh", "node", "revoke", "node", "--reason", "the end")
	must(t, WaitFor(ctx, "the node's status says that it is refused", 60*time.Second, func(ctx context.Context) error {
		status, err := hostStatus(ctx, node)
		if err == nil && !strings.Contains(status, "the mesh refuses: the node was revoked") {
			err = fmt.Errorf("the status is %s", status)
		}
		return err
	}))
	must(t, wantActive(ctx, node))
	l.Say("node", "was revoked, and says so")
}

// sameLines: newer systemds print properties in another order.
func sameLines(text string, want ...string) bool {
	left := strings.Split(strings.TrimSpace(text), "\n")
	for _, w := range want {
		found := false
		for i, l := range left {
			if l == w {
				left, found = append(left[:i], left[i+1:]...), true
				break
			}
		}
		if !found {
			return false
		}
	}
	return len(left) == 0
}
