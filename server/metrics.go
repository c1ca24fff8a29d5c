package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"noxmesh/projections"
)

// metrics are a fold of the log in numbers. Each look at them is a look at the
// state of now.
type metrics struct {
	runner *projections.Runner
	notary *logNotary
}

var (
	descEventSeq     = prometheus.NewDesc("nox_mesh_event_seq", "Last event of the log that is folded.", nil, nil)
	descHeartbeatSeq = prometheus.NewDesc("nox_mesh_heartbeat_seq", "Last heartbeat that is folded.", nil, nil)
	descSkipped      = prometheus.NewDesc("nox_mesh_events_skipped", "Events of types that this version does not know. Anything but 0 means that a newer server writes the same log.", nil, nil)
	descNodes        = prometheus.NewDesc("nox_mesh_nodes", "Enrolled nodes.", nil, nil)
	descRollouts     = prometheus.NewDesc("nox_mesh_rollouts", "Rollouts by state.", []string{"state"}, nil)
	descSigned       = prometheus.NewDesc("nox_mesh_checkpoint_events", "Events that the newest signed checkpoint of the log is over.", nil, nil)
	descSignedAt     = prometheus.NewDesc("nox_mesh_checkpoint_seconds", "When it was signed, in seconds since 1970.", nil, nil)
	descChanged      = prometheus.NewDesc("nox_mesh_log_changed_event", "First event that is not what was signed, as nox-mesh log verify shows it. Anything but 0 is an alarm.", nil, nil)
	descPulse        = prometheus.NewDesc("nox_mesh_last_pulse_seconds", "When the mesh noted last that it listens, in seconds since 1970.", nil, nil)
)

func (m *metrics) Describe(ch chan<- *prometheus.Desc) {
	prometheus.DescribeByCollect(m, ch)
}

func (m *metrics) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	signed, at, changed := m.notary.standing()
	gauge(descSigned, float64(signed))
	gauge(descChanged, float64(changed))
	if !at.IsZero() {
		gauge(descSignedAt, float64(at.Unix()))
	}
	m.runner.View(func(m *projections.Mesh) {
		nodes := 0
		for _, n := range m.Nodes {
			if n.EnrolledSeq != 0 {
				nodes++
			}
		}
		states := map[projections.State]int{projections.Running: 0, projections.Paused: 0, projections.Halted: 0}
		for _, r := range m.Rollouts {
			states[r.State]++
		}
		gauge(descEventSeq, float64(m.EventSeq))
		gauge(descHeartbeatSeq, float64(m.HeartbeatSeq))
		gauge(descSkipped, float64(m.Skipped))
		gauge(descNodes, float64(nodes))
		for state, n := range states {
			gauge(descRollouts, float64(n), string(state))
		}
		if last := m.Listening.Last(); !last.To.IsZero() {
			gauge(descPulse, float64(last.To.UnixMilli())/1000)
		}
	})
}

// serveMetrics answers GET /metrics until ctx ends. It says nothing that could
// not be told to everybody who reaches the address: counts, no names.
func serveMetrics(ctx context.Context, l net.Listener, m *metrics) error {
	registry := prometheus.NewRegistry()
	registry.MustRegister(m, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{MaxRequestsInFlight: 4, Timeout: 10 * time.Second}))
	s := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second, WriteTimeout: 20 * time.Second, MaxHeaderBytes: 16 << 10}
	stop := context.AfterFunc(ctx, func() { _ = s.Close() })
	defer stop()
	if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return ctx.Err()
}

// listenMetrics opens the address for metrics.
func listenMetrics(address string) (net.Listener, error) {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("metrics cannot be served on %s: %w: give another address with --metrics, or none", address, err)
	}
	return l, nil
}
