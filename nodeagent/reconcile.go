package nodeagent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"noxmesh/events"
)

// Handler makes one type of resource so. Apply does nothing when all is right
// already, and may be called again after any failure.
type Handler interface {
	Apply(ctx context.Context, r events.Resource) error
}

// handler finds the handler of a type. Host resources know their declaration:
// a refusal is about a revision.
func (a *Agent) handler(run context.Context, typ string, revision uint64) (Handler, error) {
	switch typ {
	case events.ResourceFile:
		return fileHandler{}, nil
	case events.ResourceHost:
		return hostHandler{a: a, run: run, revision: revision}, nil
	}
	return nil, fmt.Errorf("host %s knows no resources of type %q", a.cfg.Version, events.Printable(typ, 40))
}

// errWaiting marks a resource that waits for something ordinary, like the
// link. It is shown, but it is no failure.
var errWaiting = errors.New("waiting")

// errUpgraded: another version is installed and must be started.
var errUpgraded = errors.New("upgraded")

// refusedError: the node will not install what it is declared to run.
type refusedError struct {
	spec   events.HostSpec
	reason string
}

func (e *refusedError) Error() string { return "refused: " + e.reason }

// reconcile makes the machine what the newest declaration says: each resource
// in order, the host last. One that fails does not stop the rest. ctx ends when
// the declaration is out of date, run only with the process: a newer
// declaration ends a download, but not an installation half-way.
func (a *Agent) reconcile(run, ctx context.Context) outcome {
	var out outcome
	if a.isConfirmed() {
		if _, err := a.mend(run); err != nil {
			out.failed = true
		}
	}
	d := a.current()
	if d == nil {
		a.clearProblems(nil)
		return out
	}
	hostRight := true
	seen := map[string]bool{}
	for _, r := range hostLast(d.Resources) {
		key := "resource " + r.String()
		if seen[key] {
			key += " (again)"
		}
		seen[key] = true
		err := a.apply(run, ctx, r, d.Revision)
		switch {
		case errors.Is(err, errHalted):
			return outcome{halted: err}
		case errors.Is(err, errUpgraded):
			return outcome{upgraded: true}
		case ctx.Err() != nil:
			// Cut off, so the error is no finding about the machine.
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				a.problem("reconcile", fmt.Sprintf("a reconcile took longer than %v and was given up at %s", a.cfg.Timings.Reconcile, r))
			}
			out.failed = true
			return out
		}
		var refused *refusedError
		switch {
		case err == nil:
			a.problem(key, "")
		case errors.Is(err, errWaiting):
			out.waiting = true
			a.problem(key, fmt.Sprintf("%s: %v", r, err))
		case errors.As(err, &refused):
			out.failed = true
			a.reportRefused(d, refused)
			a.problem(key, fmt.Sprintf("%s: %v", r, err))
		default:
			out.failed = true
			a.reportFailed(d, r, err)
			a.problem(key, fmt.Sprintf("%s: %v", r, err))
		}
		if r.Type == events.ResourceHost && err != nil {
			hostRight = false
		}
	}
	a.problem("reconcile", "")
	a.clearProblems(seen)
	if hostRight {
		a.setApplied(d.Revision)
	}
	return out
}

// hostLast gives the resources in order, with the host behind all others: when
// it changes, the process ends.
func hostLast(rs []events.Resource) []events.Resource {
	rs = slices.Clone(rs)
	slices.SortStableFunc(rs, func(x, y events.Resource) int {
		switch xh, yh := x.Type == events.ResourceHost, y.Type == events.ResourceHost; {
		case xh && !yh:
			return 1
		case yh && !xh:
			return -1
		}
		return 0
	})
	return rs
}

// apply hands a resource to its handler. A panic there is that resource's
// failure: otherwise one bad declaration would end the host again and again,
// and the service manager would roll a good version back for it.
func (a *Agent) apply(run, ctx context.Context, r events.Resource, revision uint64) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%s: the host has a bug: %v", r, p)
		}
	}()
	h, err := a.handler(run, r.Type, revision)
	if err != nil {
		return err
	}
	return h.Apply(ctx, r)
}

// clearProblems forgets problems of resources that are not declared any more.
func (a *Agent) clearProblems(seen map[string]bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for key := range a.problems {
		if strings.HasPrefix(key, "resource ") && !seen[key] {
			delete(a.problems, key)
		}
	}
}

// setApplied notes that the node runs what that revision declares.
func (a *Agent) setApplied(revision uint64) {
	a.mu.Lock()
	same := a.applied == revision
	a.applied = revision
	a.mu.Unlock()
	if same {
		return
	}
	if err := a.state.write(fileApplied, fmt.Appendf(nil, "%d\n", revision)); err != nil {
		a.problem("applied", fmt.Sprintf("the applied revision cannot be kept on disk: %v", err))
	} else {
		a.problem("applied", "")
	}
	a.log.Info().Uint64("revision", revision).Msg("declaration is applied")
	poke(a.beat)
	poke(a.dirty)
}

// reported remembers which reports were made about a revision, over restarts.
type reported struct {
	Revision uint64   `json:"revision"`
	IDs      []string `json:"ids"`
}

// maxReported bounds the reports about one revision: an error whose text
// differs each time must not fill the outbox.
const maxReported = 50

// reportOnce puts a report into the outbox unless the same was said about the
// revision before. A stop between the two writes repeats it with the same id.
func (a *Agent) reportOnce(d *declaration, f events.ReportFact, parts ...string) {
	var done reported
	if !a.state.readJSON(fileReported, &done) || done.Revision != d.Revision {
		done = reported{Revision: d.Revision}
	}
	parts = append([]string{f.ReportKind(), d.Node, fmt.Sprint(d.Revision)}, parts...)
	id := events.DerivedID(parts...)
	if slices.Contains(done.IDs, id) || len(done.IDs) >= maxReported {
		return
	}
	err := a.outbox.add(f.ReportKind(), events.NewReport(id, time.Now(), f))
	if err == nil {
		done.IDs = append(done.IDs, id)
		err = a.state.writeJSON(fileReported, done)
	}
	if err != nil {
		a.problem("outbox", fmt.Sprintf("a report cannot be kept: %v", err))
		return
	}
	a.problem("outbox", "")
}

func (a *Agent) reportRefused(d *declaration, r *refusedError) {
	a.reportOnce(d, &events.NodeRefused{
		Version: r.spec.Version, SHA256: r.spec.SHA256, Revision: d.Revision, Reason: events.Printable(r.reason, 400),
	}, r.spec.Version, r.spec.SHA256)
}

func (a *Agent) reportFailed(d *declaration, r events.Resource, err error) {
	text := events.Printable(err.Error(), 400)
	a.reportOnce(d, &events.NodeFailedToApply{
		Revision: d.Revision, Resource: events.Printable(r.String(), 200), Error: text,
	}, r.String(), text)
}
