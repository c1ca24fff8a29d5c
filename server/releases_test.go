package server

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"noxmesh/events"
	"noxmesh/projections"
)

// addFor adds a release for one architecture.
func (w *whole) addFor(t *testing.T, version, arch string, replace bool) (ReleaseAddReply, error) {
	t.Helper()
	control := strings.NewReplacer("1.2.3", version, "amd64", arch).Replace(goodControl)
	path := filepath.Join(t.TempDir(), "p.deb")
	if err := os.WriteFile(path, debSpec{control: control, comp: "gz", payload: []byte(fmt.Sprint(replace))}.build(t), 0o600); err != nil {
		t.Fatal(err)
	}
	return w.client.AddRelease(testContext(t), path, w.releaseKey(), replace)
}

func TestHoldAndLift(t *testing.T) {
	w := startServer(t, t.TempDir())
	ctx := testContext(t)
	w.fleetOf(t, "n1", "n2")
	if _, err := w.addFor(t, "1.1.0", "arm64", false); err != nil {
		t.Fatal(err)
	}
	hold := func(version, reason string) (HoldReply, error) { return w.client.Hold(ctx, version, reason) }
	_, err := hold("1.1.0", "  ")
	refused(t, "holding without a reason", err, "--reason TEXT")
	_, err = hold("9.9.9", "x")
	refused(t, "holding what is not there", err, `no release has version "9.9.9" (there are 1.1.0, 1.0.0)`)
	_, err = w.client.Lift(ctx, "9.9.9", "")
	refused(t, "lifting what is not there", err, `no release has version "9.9.9"`)
	if r, err := w.client.Lift(ctx, "1.1.0", ""); err != nil || len(r.Changed) != 0 || len(r.Already) != 2 {
		t.Errorf("lifting no hold gives %+v, %v", r, err)
	}
	w.once(t, &events.ReleaseHoldLifted{}, 0)

	if _, err := w.client.StartRollout(ctx, StartRequest{Version: "1.1.0", Policy: twoByOne}); err != nil {
		t.Fatal(err)
	}
	w.batch(t, "r1", 1)
	for i, r := range w.twice(t, cmdReleaseHold, HoldRequest{Version: "1.1.0", Reason: "leaks"}) {
		var got HoldReply
		if err := json.Unmarshal(r.Result, &got); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(got.Changed, []string{"amd64", "arm64"}) || got.Already != nil || !slices.Equal(got.Rollouts, []string{"r1"}) {
			t.Errorf("answer %d to a hold is %+v", i+1, got)
		}
	}
	w.once(t, &events.ReleaseHeld{}, 2)
	if r, err := hold("1.1.0", "more"); err != nil || len(r.Changed) != 0 || !slices.Equal(r.Already, []string{"amd64", "arm64"}) {
		t.Errorf("holding again gives %+v, %v", r, err)
	}
	w.once(t, &events.ReleaseHeld{}, 2)

	if s := w.inState(t, "r1", projections.Halted); s.Held != "leaks" || !strings.Contains(s.Reason, "leaks") {
		t.Errorf("the rollout of a held release halted: %s (held: %q)", s.Reason, s.Held)
	}
	_, err = w.client.ResumeRollout(ctx, "r1", events.ResumeRetry, "")
	refused(t, "resuming a held one", err, "nox-mesh release lift 1.1.0")
	if _, err := w.client.AbortRollout(ctx, "r1", ""); err != nil {
		t.Fatal(err)
	}
	_, err = w.client.StartRollout(ctx, StartRequest{Version: "1.1.0"})
	refused(t, "starting a held one", err, "nox-mesh release lift 1.1.0")
	_, err = w.client.PlanRollout(ctx, StartRequest{Version: "1.1.0"})
	refused(t, "planning a held one", err, "nox-mesh release lift 1.1.0")
	_, err = w.addFor(t, "1.1.0", "amd64", true)
	refused(t, "replacing a held one", err, "lift the hold first with nox-mesh release lift 1.1.0")
	if r, err := w.addFor(t, "1.1.0", "amd64", false); err != nil || !r.Already || r.Held != "leaks" {
		t.Errorf("adding a held one again gives %+v, %v", r, err)
	}
	list, err := w.client.Releases(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range list.Releases {
		if want := map[string]string{"1.1.0": "leaks"}[r.Version]; r.Held != want {
			t.Errorf("%s is held because of %q, want %q", r.Key(), r.Held, want)
		}
	}

	w.twice(t, cmdReleaseLift, HoldRequest{Version: "1.1.0", Reason: "was the proxy"})
	w.once(t, &events.ReleaseHoldLifted{}, 2)
	// A lifted one is replaced by a writer that expects the last of all its events.
	if r, err := w.addFor(t, "1.1.0", "amd64", true); err != nil || r.Already {
		t.Errorf("replacing one whose hold was lifted gives %+v, %v", r, err)
	}
	if _, err := w.client.StartRollout(ctx, StartRequest{Version: "1.1.0"}); err != nil {
		t.Errorf("a lifted release does not start: %v", err)
	}
}

// TestHoldGivenAgainAfterHalf: a server stopped between two events of one
// command. Given again it does the rest, and nothing twice, also if somebody
// else was there meanwhile.
func TestHoldGivenAgainAfterHalf(t *testing.T) {
	w := startServer(t, t.TempDir())
	w.fleetOf(t, "n1")
	for _, arch := range []string{"arm64", "riscv64"} {
		if _, err := w.addFor(t, "1.1.0", arch, false); err != nil {
			t.Fatal(err)
		}
	}
	by := caller{actor: FirstOperator, command: "half"}
	half := func(m *projections.Mesh) (string, events.Fact, uint64, error) {
		r := m.Releases[events.ReleaseKey("1.1.0", "amd64")]
		return r.Key(), &events.ReleaseHeld{Reason: "leaks"}, r.LastSeq, nil
	}
	if _, err := w.api.append(testContext(t), by, half); err != nil {
		t.Fatal(err)
	}
	again := func() HoldReply {
		r, err := w.api.holdRelease(testContext(t), by, HoldRequest{Version: "1.1.0", Reason: "leaks"})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	if r := again(); !slices.Equal(r.Changed, []string{"amd64", "arm64", "riscv64"}) {
		t.Errorf("given again it changed %v", r.Changed)
	}
	w.once(t, &events.ReleaseHeld{}, 3)
	if _, err := w.client.Lift(testContext(t), "1.1.0", ""); err != nil {
		t.Fatal(err)
	}
	again()
	w.once(t, &events.ReleaseHeld{}, 3)
}
