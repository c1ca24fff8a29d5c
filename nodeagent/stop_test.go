package nodeagent_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"noxmesh/events"
	"noxmesh/nodeagent"
)

// stopper ends an agent after the n-th durable step, as a power cut would, and
// notes the steps on the way.
type stopper struct {
	at    int
	steps []string
}

func (s *stopper) after(step string) error {
	s.steps = append(s.steps, step)
	if len(s.steps) == s.at {
		return errors.New("power cut")
	}
	return nil
}

// life starts the machine again and again until the version runs, confirmed
// and with everything reported.
func (b *box) life(t *testing.T, creds, url string, s *stopper, version string, also func(nodeagent.Overview) bool) {
	t.Helper()
	for range 10 {
		cfg := b.config(creds, url)
		cfg.HaltAfter(s.after)
		r := start(t, cfg)
		if cfg.Version == version {
			select {
			case <-r.done: // halted before it was ready
				r.wait()
				continue
			default:
			}
			b.awaitStatus(creds, func(o nodeagent.Overview) bool {
				select {
				case <-r.done:
					return true
				default:
				}
				return o.Host != nil && o.Host.Confirmed && o.Host.Version == version && also(o) && o.Outbox == 0
			})
			select {
			case <-r.done:
				r.wait()
				continue
			default:
			}
			r.stop()
			return
		}
		r.wait()
	}
	t.Fatalf("the machine does not get to %s", version)
}

// picture is the end state that must not depend on where the process stopped.
func (b *box) picture(m *mesh) string {
	var lines []string
	err := filepath.WalkDir(b.dir, func(path string, e os.DirEntry, err error) error {
		if err == nil && !e.IsDir() {
			name := must(filepath.Rel(b.dir, path))
			switch name {
			case "lock", "status.json":
			case "refused.json":
				lines = append(lines, fmt.Sprintf("refused %d", len(must(nodeagent.OpenState(b.dir)).Refused())))
			default:
				if strings.HasPrefix(name, "packages/") && !strings.HasSuffix(name, ".sha256") {
					lines = append(lines, name)
				} else {
					lines = append(lines, name+": "+b.file(name))
				}
			}
		}
		return err
	})
	if err != nil {
		b.t.Fatal(err)
	}
	for _, kind := range []string{events.ReportRolledBack, events.ReportRefused, events.ReportFailedToApply} {
		for _, f := range m.kept(kind) {
			lines = append(lines, kind+" "+asJSON(f))
		}
	}
	confirmed := map[string]bool{} // how often depends on the number of starts
	for _, f := range m.kept(events.ReportConfirmed) {
		confirmed[f.(*events.NodeConfirmed).Version] = true
	}
	lines = append(lines, fmt.Sprintf("confirmed %v", confirmed))
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// everyStop runs a scenario once through and then once for each step, with a
// stop there. All must end alike.
func everyStop(t *testing.T, want []string, scenario func(t *testing.T, s *stopper) string) {
	whole := &stopper{}
	end := scenario(t, whole)
	t.Logf("steps %v, end:\n%s", whole.steps, end)
	for _, step := range want {
		if !slices.Contains(whole.steps, step) {
			t.Errorf("there was no step %q", step)
		}
	}
	for i, step := range whole.steps {
		t.Run(fmt.Sprintf("%d %s", i+1, step), func(t *testing.T) {
			t.Parallel()
			s := &stopper{at: i + 1}
			if got := scenario(t, s); got != end {
				t.Errorf("with a stop after %s (steps %v) it ends as\n%s\nand not as\n%s", step, s.steps, got, end)
			}
		})
	}
}

func TestAStopAnywhereInAnUpgrade(t *testing.T) {
	everyStop(t, []string{"fetched", "retained", "installing", "installed", "previous", "known-good", "starts", "installing-done", "confirmed-report"},
		func(t *testing.T, s *stopper) string {
			m := newMesh(t, nodeGrants())
			b := newBox(t, "1.0.0")
			b.retain(aPackage(t, "1.0.0"), "1.0.0")
			b.retain(aPackage(t, "0.8.0"), "0.8.0")
			m.append(theDeclaration(m.add(aPackage(t, "1.1.0"), "1.1.0")))
			m.awaitDeclared("n1", 2)
			b.life(t, m.creds("n1"), m.url(), s, "1.1.0", func(nodeagent.Overview) bool { return true })
			return b.picture(m)
		})
}

func TestAStopAnywhereAfterARollback(t *testing.T) {
	bad := releaseOf(aPackage(t, "1.2.0"), "1.2.0")
	everyStop(t, []string{"refused", "rollback-report", "rollback-last", "confirmed-report"},
		func(t *testing.T, s *stopper) string {
			m := newMesh(t, nodeGrants())
			b := newBox(t, "1.1.0")
			b.retain(aPackage(t, "1.1.0"), "1.1.0")
			b.write("known-good", "1.1.0\n")
			b.write("known-good.previous", "1.0.0\n")
			b.write("starts", "1.2.0 3\n")
			b.write("restarted", "1\n")
			b.write("applied", "1\n")
			b.write("declaration.json", string(theDeclaration(bad).Encode()))
			b.write("installing", "version=1.2.0\nsha256="+bad.SHA256+"\nrevision=2\n")
			b.write("rollback", string(nodeagent.RollbackRecord{ID: "3f0c9a40-0000-4000-8000-000000000001", From: "1.2.0", To: "1.1.0",
				At: "2026-01-02T03:04:05Z", Restarts: 3, Exit: "1", Result: "exit-code", Systemd: "252", Status: "done",
				Reason: "it failed 3 times", Journal: []string{"one", "two"}}.Encode()))
			b.life(t, m.creds("n1"), m.url(), s, "1.1.0", func(o nodeagent.Overview) bool {
				return strings.Contains(strings.Join(o.Host.Problems, "\n"), "this machine rolled 1.2.0 back")
			})
			end := b.picture(m)
			for _, want := range []string{"refused 1", "rolled-back ", "refused {", "applied: 1"} {
				if !strings.Contains(end, want) {
					t.Errorf("%q is not in the end state:\n%s", want, end)
				}
			}
			return end
		})
}

// theDeclaration is always the same one.
func theDeclaration(rel events.Release) events.Event {
	return events.NewWithID("0195f000-0000-7000-8000-000000000001", "n1", &events.Declared{Node: "n1", Revision: 2,
		Because: events.DeclarationCause{Kind: events.CauseBatch, Rollout: "r1", Batch: 1}, Resources: []events.Resource{host(events.HostSpec{Release: rel})}},
		events.Origin{Source: "test", Actor: "stager"}, must(parseTime("2026-01-02T00:00:00Z")))
}

func (b *box) write(name, content string) {
	b.t.Helper()
	if err := os.WriteFile(filepath.Join(b.dir, name), []byte(content), 0o644); err != nil {
		b.t.Fatal(err)
	}
}
