package lab

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"noxmesh/events"
	"noxmesh/projections"
	"noxmesh/rollout"
)

// mesh is a real nox-mesh server on this machine, with the operator's command
// line to it.
type mesh struct {
	program, data string
	url           string
	server        *exec.Cmd
	exited        chan error
	logFile       string
}

// startMesh starts the server. lost hears when it ends, so that nobody waits
// for one that is no more.
func startMesh(ctx context.Context, l *Lab, program string, lost func(error)) (*mesh, error) {
	data, err := l.Dir("mesh")
	if err != nil {
		return nil, err
	}
	m := &mesh{program: program, data: data, logFile: filepath.Join(data, "..", "mesh.log"), exited: make(chan error, 1)}
	log, err := os.Create(m.logFile)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	m.server = exec.Command(program, "server", "--data-dir", data, "--listen", "127.0.0.1:0", "--host", MeshName, "--pulse", "1s")
	m.server.Stdout, m.server.Stderr = log, log
	if err := l.Start(m.server); err != nil {
		return nil, err
	}
	go func() {
		err := m.server.Wait()
		m.exited <- err
		lost(fmt.Errorf("nox-mesh server has ended (%v)", err))
	}()
	return m, WaitFor(ctx, "the mesh answers", 30*time.Second, func(ctx context.Context) error {
		if _, err := m.cli(ctx, "fleet"); err != nil {
			return err
		}
		url, err := os.ReadFile(filepath.Join(data, "url"))
		m.url = strings.TrimSpace(string(url))
		return err
	})
}

// stop ends the server as an operator does.
func (m *mesh) stop() error {
	if err := m.server.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	select {
	case err := <-m.exited:
		return err
	case <-time.After(5 * time.Second):
		return errors.New("the server does not stop within 5 s of SIGTERM")
	}
}

// cli runs nox-mesh as an operator on the server's machine does.
func (m *mesh) cli(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, m.program, append(args, "--data-dir", m.data)...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("nox-mesh %s: %w: %s", strings.Join(args, " "), err, lastLines(errs.Bytes(), 3))
	}
	return out.String(), nil
}

// invite gives a token for a machine; flags are further ones.
func (m *mesh) invite(ctx context.Context, name string, flags ...string) (string, error) {
	return m.cli(ctx, append([]string{"node", "invite", name}, flags...)...)
}

// ask runs a command that answers with a JSON object.
func ask[T any](ctx context.Context, m *mesh, args ...string) (T, error) {
	var v T
	out, err := m.cli(ctx, append(args, "--json")...)
	if err != nil {
		return v, err
	}
	if err := json.Unmarshal([]byte(out), &v); err != nil {
		return v, fmt.Errorf("nox-mesh %s: %w", strings.Join(args, " "), err)
	}
	return v, nil
}

func (m *mesh) rollout(ctx context.Context) (*rollout.Status, error) {
	return ask[*rollout.Status](ctx, m, "rollout", "status", "latest")
}

func (m *mesh) fleet(ctx context.Context) (map[string]projections.NodeView, error) {
	f, err := ask[struct{ Nodes []projections.NodeView }](ctx, m, "fleet")
	nodes := map[string]projections.NodeView{}
	for _, n := range f.Nodes {
		nodes[n.Node] = n
	}
	return nodes, err
}

// facts reads all facts of one kind from the log, with the aggregate that each
// is about.
func facts[T events.Fact](ctx context.Context, m *mesh) ([]factAbout[T], error) {
	out, err := m.cli(ctx, "log", "--json")
	if err != nil {
		return nil, err
	}
	var found []factAbout[T]
	for line := range strings.Lines(out) {
		e, err := events.Decode([]byte(line))
		if err != nil {
			return nil, err
		}
		fact, err := e.Fact()
		if err != nil {
			return nil, err
		}
		if f, ok := fact.(T); ok {
			found = append(found, factAbout[T]{e.Subject, f})
		}
	}
	return found, nil
}

type factAbout[T events.Fact] struct {
	subject string
	fact    T
}

// declarations counts how often each node was declared to run a version.
func (m *mesh) declarations(ctx context.Context, version string) (map[string]int, error) {
	all, err := facts[*events.Declared](ctx, m)
	count := map[string]int{}
	for _, d := range all {
		if h := d.fact.Host(); h != nil && h.Version == version {
			count[d.fact.Node]++
		}
	}
	return count, err
}
