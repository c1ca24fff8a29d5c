package nodeagent

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"noxmesh/events"
)

const unverified = "declarations are not verified: join again with nox-mesh-host join TOKEN"

// trust gives what this node checks declarations by, or nil if it has no keys
// to check by: it was installed before there were any. A node that had them once
// does not go back to believing everything.
func (a *Agent) trust(node string) (*trust, error) {
	if a.cfg.PinsFile == "" {
		return nil, nil
	}
	pins, err := events.LoadPins(a.cfg.PinsFile)
	t, kept := a.state.verified()
	switch {
	case errors.Is(err, events.ErrNoPins) && !kept:
		a.problem("pins", unverified)
		return nil, nil
	case errors.Is(err, events.ErrNoPins):
		err = fmt.Errorf("the pinned keys at %s are gone: join again with nox-mesh-host join TOKEN", a.cfg.PinsFile)
	}
	if err != nil {
		a.problem("pins", "no declaration is accepted: "+err.Error())
		return nil, err
	}
	a.problem("pins", "")
	now := trustIn(pins, node, t)
	return &now, nil
}

// verified reads what was verified last.
func (s *State) verified() (t trust, ok bool) {
	if !s.readJSON(fileVerified, &t) {
		return trust{}, false
	}
	if err := t.Pins.Validate(); err != nil {
		s.setAside(fileVerified, err.Error())
		return trust{}, false
	}
	return t, true
}

// keepTrust makes what was verified the least that is accepted from now on. The
// file of pins follows, so that a lost state directory does not bring an old key
// back; whether it can be written decides nothing.
func (a *Agent) keepTrust(next *trust) error {
	if next == nil {
		return nil
	}
	if kept, ok := a.state.verified(); !ok || kept != *next {
		if err := a.state.writeJSON(fileVerified, next); err != nil {
			return err
		}
	}
	if next.Joined == next.Pins {
		return nil
	}
	if err := writeDurablyWith(a.cfg.PinsFile, next.Pins.Encode(), 0o600); err != nil {
		a.problem("pins file", fmt.Sprintf("new keys are trusted and cannot be written: %v", err))
		return nil
	}
	a.problem("pins file", "")
	a.log.Info().Str("delivery", next.Pins.Delivery).Str("release", next.Pins.Release).Msg("followed the mesh to new keys")
	return nil
}

// check verifies a declaration, and gives false if it is refused. With it comes
// what is to be kept once the declaration itself is on disk; nil if this node
// has no keys to check by.
func (a *Agent) check(d *declaration) (next *trust, ok bool) {
	t, err := a.trust(d.Node)
	if err != nil {
		return nil, false
	}
	if t == nil {
		return nil, true
	}
	accepted, err := t.verify(&d.Declared)
	if err != nil {
		a.refuseDeclaration(d, err)
		return nil, false
	}
	return &accepted, true
}

// maxRefusals bounds the reports of refused declarations until one is accepted:
// who can send forged ones can send many.
const maxRefusals = 20

// refuseDeclaration shows that a declaration was not accepted, and reports it
// once.
func (a *Agent) refuseDeclaration(d *declaration, why error) {
	text := "refused: " + events.Printable(why.Error(), 300)
	a.problem("declaration", fmt.Sprintf("declaration %d is %s", d.Revision, text))
	id := events.DerivedID(events.ReportFailedToApply, d.Node, fmt.Sprint(d.Revision), "declaration", text)
	var done reported
	a.state.readJSON(fileDenied, &done)
	if slices.Contains(done.IDs, id) || len(done.IDs) >= maxRefusals {
		return
	}
	f := &events.NodeFailedToApply{Revision: d.Revision, Resource: "declaration", Error: text}
	err := a.outbox.add(f.ReportKind(), events.NewReport(id, time.Now(), f))
	if err == nil {
		done.IDs = append(done.IDs, id)
		err = a.state.writeJSON(fileDenied, done)
	}
	if err != nil {
		a.problem("outbox", fmt.Sprintf("a report cannot be kept: %v", err))
	}
}
