package nodeagent

import (
	"fmt"

	"noxmesh/events"
)

// declaration is an accepted declaration, with the bytes that it came in.
type declaration struct {
	events.Declared
	event events.Event
	raw   []byte
}

// parseDeclaration checks a message that should be a declaration for the node.
// With no node known (no credentials yet) it takes the one it names: only a
// cached declaration is read so, and it was checked when it was cached.
func parseDeclaration(raw []byte, node string) (declaration, error) {
	e, err := events.Decode(raw)
	if err != nil {
		return declaration{}, err
	}
	f, err := e.Fact()
	if err != nil {
		return declaration{}, err
	}
	d, ok := f.(*events.Declared)
	if !ok {
		return declaration{}, fmt.Errorf("event %s is a %s and no declaration", e.ID, e.Type)
	}
	if node != "" && d.Node != node {
		return declaration{}, fmt.Errorf("declaration is for node %q and this is %q", events.Printable(d.Node, 63), node)
	}
	if err := events.CheckNodeID(d.Node); err != nil {
		return declaration{}, fmt.Errorf("declaration: %w", err)
	}
	if d.Revision == 0 {
		return declaration{}, fmt.Errorf("declaration %s has no revision", e.ID)
	}
	return declaration{Declared: *d, event: e, raw: raw}, nil
}

func (a *Agent) current() *declaration {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.decl
}

func (a *Agent) revision() uint64 {
	if d := a.current(); d != nil {
		return d.Revision
	}
	return 0
}

// offer takes a message that should be this node's declaration. newest says
// that it is what the mesh holds now, not one that may have been overtaken.
func (a *Agent) offer(raw []byte, newest bool) {
	a.mu.Lock()
	node := a.node
	a.mu.Unlock()
	d, err := parseDeclaration(raw, node)
	if err != nil && !newest {
		// Any node can have an answer of the broker sent here. What the mesh
		// holds is asked for in any case.
		a.log.Debug().Err(err).Msg("what came is no declaration for this node")
		return
	}
	if err != nil {
		a.problem("declaration", "a declaration was ignored: "+events.Printable(err.Error(), 250))
		return
	}
	have := a.revision()
	if d.Revision < have && newest {
		a.problem("declaration", fmt.Sprintf(
			"the mesh holds revision %d of this node's declaration and the node has %d already: was the mesh restored from an old copy? Declare again until it is past %d",
			d.Revision, have, have))
		return
	}
	if d.Revision < have {
		return // overtaken on its way
	}
	next, ok := a.check(&d)
	if !ok {
		return
	}
	if d.Revision > have {
		err = a.state.write(fileDeclaration, raw)
	}
	if err == nil {
		err = a.keepTrust(next)
	}
	if err != nil {
		// Not acted on: after a restart the node would not know of it.
		a.problem("declaration", fmt.Sprintf("revision %d cannot be kept on disk, so it is not acted on: %v", d.Revision, err))
		return
	}
	if d.Revision == have {
		if newest {
			a.problem("declaration", "")
		}
		return
	}
	if err := a.state.remove(fileDenied); err != nil {
		a.log.Warn().Err(err).Msg("refused declarations")
	}
	a.mu.Lock()
	a.decl = &d
	a.mu.Unlock()
	a.problem("declaration", "")
	a.log.Info().Uint64("revision", d.Revision).Str("because", string(d.Because.Kind)).
		Str("rollout", d.Because.Rollout).Msg("new declaration")
	poke(a.newer)
	poke(a.dirty)
}

// loadDeclaration takes up the declaration that was in force when the host
// stopped, if it holds against the keys of now.
func (a *Agent) loadDeclaration() {
	if _, err := a.trust(a.node); err != nil {
		return // shown; what cannot be verified is left for when it can be
	}
	raw, ok := a.state.read(fileDeclaration)
	if !ok {
		return
	}
	d, err := parseDeclaration(raw, a.node)
	if err != nil {
		a.state.setAside(fileDeclaration, err.Error())
		return
	}
	next, ok := a.check(&d)
	if !ok {
		a.state.setAside(fileDeclaration, "it could not be verified")
		return
	}
	if err := a.keepTrust(next); err != nil {
		a.problem("verified", fmt.Sprintf("what was verified cannot be kept on disk: %v", err))
	}
	a.decl = &d
}

// identify sets the node's name once the credentials are there. A cached
// declaration of another node is set aside: the machine was enrolled anew.
func (a *Agent) identify(node string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.node = node
	if a.decl == nil || a.decl.Node == node {
		return
	}
	a.state.setAside(fileDeclaration, fmt.Sprintf("it is for node %q and this is %q", a.decl.Node, node))
	a.decl = nil
}
