package server

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"noxmesh/events"
)

// TestMetrics: what Prometheus gets is what the log is folded to, and an event
// that a newer server wrote counts.
func TestMetrics(t *testing.T) {
	ctx := testContext(t)
	s, err := Start(ctx, Config{DataDir: t.TempDir(), Listen: "127.0.0.1:0", Metrics: "127.0.0.1:0", PulseInterval: 20 * time.Millisecond, Logger: testLog(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Stop() })
	unknown := `{"specversion":"1.0","id":"x1","type":"mesh.node.teleported.v1","source":"s","subject":"a","time":"2026-11-29T12:00:00Z","actor":"o","cause":"c","data":{}}`
	ack, err := s.api.js.Publish(ctx, events.EventSubject("node", "a"), []byte(unknown))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.api.runner.WaitEvent(ctx, ack.Sequence); err != nil {
		t.Fatal(err)
	}
	s.notary.signNow()
	resp, err := http.Get("http://" + s.metrics.String() + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"nox_mesh_events_skipped 1\n", "nox_mesh_nodes 0\n", "nox_mesh_log_changed_event 0\n", "nox_mesh_checkpoint_seconds 1", `nox_mesh_rollouts{state="halted"} 0`, "nox_mesh_last_pulse_seconds 1", "process_open_fds"} {
		if !strings.Contains(string(raw), want) {
			t.Errorf("the metrics lack %q:\n%s", want, raw)
		}
	}
	if problems, err := testutil.CollectAndLint(&metrics{s.api.runner, s.notary}); err != nil || len(problems) > 0 {
		t.Errorf("the metrics are not as Prometheus wants them: %v %v", problems, err)
	}
	resp, err = http.Post("http://"+s.metrics.String()+"/metrics", "text/plain", strings.NewReader("x"))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("a POST is answered with %s", resp.Status)
	}
	if _, err := Start(ctx, Config{DataDir: t.TempDir(), Listen: "127.0.0.1:0", Metrics: s.metrics.String(), Logger: testLog(t)}); err == nil || !strings.Contains(err.Error(), "--metrics") {
		t.Errorf("an address that is taken: %v", err)
	}
}
