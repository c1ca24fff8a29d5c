package nodeagent

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"

	"noxmesh/events"
)

// confirm says that the running version started and got through one full
// reconcile. Every step is durable and may be repeated, so that a stop between
// any two of them changes nothing in the end.
func (a *Agent) confirm() error {
	err := a.confirmSteps()
	switch {
	case errors.Is(err, errHalted):
		return err
	case err != nil:
		err = fmt.Errorf("version %s runs but cannot be confirmed: %w", a.cfg.Version, err)
		a.problem("confirm", err.Error())
		return err
	}
	a.problem("confirm", "")
	// What follows is tidying: it must not take the confirmation back.
	if err := a.tidy(); err != nil {
		a.problem("tidy", err.Error())
	} else {
		a.problem("tidy", "")
	}
	return nil
}

func (a *Agent) confirmSteps() error {
	running, known := a.cfg.Version, a.state.KnownGood()
	if known != running {
		if known != "" {
			if err := a.state.write(filePrevious, []byte(known+"\n")); err != nil {
				return err
			}
			if err := a.step("previous"); err != nil {
				return err
			}
		}
		if err := a.state.write(fileKnownGood, []byte(running+"\n")); err != nil {
			return err
		}
		if err := a.step("known-good"); err != nil {
			return err
		}
	}
	_, err := a.state.Retained(running, a.cfg.Architecture)
	a.setParachute(err)
	if err := a.keepKit(); err != nil {
		return err
	}
	for _, name := range []string{fileStarts, fileRestarted} {
		if err := a.state.remove(name); err != nil {
			return err
		}
	}
	if err := a.step("starts"); err != nil {
		return err
	}
	if err := a.settleRollback(); err != nil {
		return err
	}
	if err := a.state.unrefuse(running); err != nil {
		return err
	}
	if i, ok := a.state.Installing(); ok && i.Version == running {
		if err := a.state.remove(fileInstalling); err != nil {
			return err
		}
	}
	if err := a.step("installing-done"); err != nil {
		return err
	}
	a.mu.Lock()
	applied := a.applied
	a.mu.Unlock()
	report := events.NewReport(events.DerivedID(events.ReportConfirmed, a.startID), time.Now(),
		&events.NodeConfirmed{Version: running, Revision: applied, StartID: a.startID})
	if err := a.outbox.add(events.ReportConfirmed, report); err != nil {
		return err
	}
	if err := a.step("confirmed-report"); err != nil {
		return err
	}
	a.mu.Lock()
	a.confirmed, a.knownGood = true, running
	a.mu.Unlock()
	a.log.Info().Str("version", running).Uint64("revision", applied).Msg("confirmed")
	poke(a.beat)
	poke(a.dirty)
	return nil
}

// settleRollback turns the script's record into a refusal and a report, and
// puts it away, which arms the rollback again.
func (a *Agent) settleRollback() error {
	r, fired := a.state.Rollback()
	if !fired {
		return nil
	}
	i, installing := a.state.Installing()
	if events.CheckVersion(r.From) != nil {
		// What was being installed is what failed.
		a.state.note("the record of a rollback was damaged")
		r.From = ""
		if installing && i.Version != a.cfg.Version {
			r.From = i.Version
			r.Reason = "the record of the rollback was damaged; this version was being installed before it"
		}
	}
	if installing && i.Version == r.From {
		if r.SHA256 == "" {
			r.SHA256 = i.SHA256
		}
		if r.Revision == 0 {
			r.Revision = i.Revision
		}
	}
	if r.ID == "" {
		r.ID = events.DerivedID("rollback", r.From, r.SHA256, fmt.Sprint(r.Revision), r.At)
	}
	if r.From != "" {
		if err := a.noteRollback(r); err != nil {
			return err
		}
	}
	if installing && i.Version == r.From {
		if err := a.state.remove(fileInstalling); err != nil {
			return err
		}
	}
	if err := a.state.rename(fileRollback, fileRollbackLast); err != nil {
		return err
	}
	return a.step("rollback-last")
}

func (a *Agent) noteRollback(r RollbackRecord) error {
	if r.From == a.cfg.Version {
		// The script could not put the former version back, and this one
		// started after all: no rollback, but something to look at.
		d := a.current()
		if d == nil {
			return nil
		}
		f := &events.NodeFailedToApply{Revision: d.Revision, Resource: events.ResourceHost + "/" + events.HostPackage,
			Error: events.Printable(fmt.Sprintf("version %s failed to start, the rollback to %s did not work (%s: %s), and then it did start", r.From, r.To, r.Status, r.Reason), 400)}
		return a.outbox.add(f.ReportKind(), events.NewReport(r.ID, time.Now(), f))
	}
	if events.CheckVersion(r.To) != nil {
		r.To = a.cfg.Version
	}
	if r.Revision == 0 {
		r.Revision = a.revision()
	}
	if r.Reason == "" {
		r.Reason = "it did not start"
	}
	if r.To != a.cfg.Version {
		r.Reason += fmt.Sprintf("; the machine runs %s now", a.cfg.Version)
	}
	err := a.state.refuse(Refusal{Version: r.From, SHA256: r.SHA256, Revision: r.Revision, Reason: r.Reason, At: time.Now().UTC()})
	if err != nil {
		return err
	}
	if err := a.step("refused"); err != nil {
		return err
	}
	f := &events.NodeRolledBack{From: r.From, To: r.To, SHA256: r.SHA256, Revision: r.Revision, At: r.At, Reason: r.Reason,
		Restarts: r.Restarts, Exit: r.Exit, Result: r.Result, Systemd: r.Systemd, Journal: r.Journal}
	if err := a.outbox.add(f.ReportKind(), events.NewReport(r.ID, time.Now(), f)); err != nil {
		return err
	}
	return a.step("rollback-report")
}

// tidy takes away what a confirmed version needs no more.
func (a *Agent) tidy() error {
	if err := a.unpin(); err != nil {
		return fmt.Errorf("the apt pin %s cannot be removed: %w", a.cfg.PinFile, err)
	}
	// While an upgrade is under way, what is installed may be neither the
	// running nor the known-good version.
	if _, underWay := a.state.Installing(); underWay {
		return nil
	}
	keep := []string{a.cfg.Version, a.state.KnownGood(), a.state.readVersion(filePrevious)}
	if d := a.current(); d != nil {
		if spec := d.Host(); spec != nil {
			keep = append(keep, spec.Version)
		}
	}
	if err := a.state.prune(a.cfg.Architecture, keep...); err != nil {
		return fmt.Errorf("old packages cannot be deleted: %w", err)
	}
	return nil
}

// unpin removes the rollback's apt pin once the machine has moved on from the
// version that it went back to: to another one, or to the bad one itself, which
// started this time and must not be pinned away while it runs.
func (a *Agent) unpin() error {
	if a.cfg.PinFile == "" {
		return nil
	}
	raw, err := os.ReadFile(a.cfg.PinFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	// The record of the rollback may be lost; the pin itself is not.
	r, ok := a.state.LastRollback()
	if !pins(raw, a.cfg.Version) && (!ok || a.cfg.Version == r.To) {
		return nil
	}
	if err := os.Remove(a.cfg.PinFile); err != nil {
		return err
	}
	a.log.Info().Str("file", a.cfg.PinFile).Msg("the apt pin is removed")
	return nil
}

// pins says whether an apt preferences file is about that very version.
func pins(raw []byte, version string) bool {
	for line := range strings.Lines(string(raw)) {
		if v, ok := strings.CutPrefix(strings.TrimSpace(line), "Pin: version "); ok && v == version {
			return true
		}
	}
	return false
}

func (a *Agent) setParachute(err error) {
	a.mu.Lock()
	a.parachute = err
	a.mu.Unlock()
	poke(a.dirty)
}
