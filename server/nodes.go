package server

import (
	"context"
	"fmt"
	"regexp"
	"time"

	"noxmesh/events"
	"noxmesh/projections"
)

var labelForm = regexp.MustCompile(`^[A-Za-z0-9._-]{1,63}$`)

// decommission takes a node out of the fleet, and shuts it out.
func (a *api) decommission(ctx context.Context, by caller, q DecommissionRequest) (DecommissionReply, error) {
	out := DecommissionReply{Node: q.Node}
	_, err := a.change(ctx, by, func(m *projections.Mesh) (string, events.Fact, uint64, error) {
		n := m.Nodes[q.Node]
		switch {
		case n == nil, n.EnrolledSeq == 0 && n.GoneSeq == 0:
			return "", nil, 0, noSuchNode(q.Node)
		case n.EnrolledSeq == 0:
			out.Already = true
			return q.Node, nil, 0, nil
		}
		return q.Node, &events.NodeDecommissioned{Reason: reasonText(q.Reason)}, n.EventSeq, nil
	})
	if err == nil {
		err = a.guard.apply()
	}
	a.runner.View(func(m *projections.Mesh) {
		for _, r := range m.InOrder() {
			if mb := r.Members[q.Node]; mb != nil && r.State.Open() && mb.Outcome == projections.Decommissioned {
				out.Rollouts = append(out.Rollouts, r.ID)
			}
		}
	})
	return out, err
}

func noSuchNode(name string) error {
	return fmt.Errorf("no node %q is enrolled: nox-mesh fleet shows the names", name)
}

func (a *api) declare(ctx context.Context, by caller, q DeclareRequest) (DeclareReply, error) {
	if err := checkResources(q.Resources); err != nil {
		return DeclareReply{}, err
	}
	_, err := a.change(ctx, by, func(m *projections.Mesh) (string, events.Fact, uint64, error) {
		n := m.Enrolled(q.Node)
		if n == nil {
			return "", nil, 0, noSuchNode(q.Node)
		}
		d := &events.Declared{
			Node: q.Node, Revision: n.Revision() + 1,
			Because: events.DeclarationCause{Kind: events.CauseOperator}, Resources: q.Resources,
		}
		if n.Declaration != nil {
			for _, r := range n.Declaration.Resources {
				if r.Type == events.ResourceHost {
					if err := hostSigned(m, r); err != nil {
						return "", nil, 0, err
					}
					d.Resources = append(append([]events.Resource{}, q.Resources...), r)
				}
			}
			// A rollout that waits for this node goes on waiting for it.
			if b := n.Declaration.Because; b.Kind == events.CauseBatch {
				if r := m.Rollouts[b.Rollout]; r != nil && (r.State == projections.Running || r.State == projections.Paused) {
					return "", nil, 0, fmt.Errorf("rollout %s is %s over node %q: wait for its end (nox-mesh rollout watch), or end it with nox-mesh rollout abort %s", r.ID, r.State, q.Node, r.ID)
				}
			}
		}
		return q.Node, d, n.DeclarationSeq(), nil
	})
	var out DeclareReply
	a.runner.View(func(m *projections.Mesh) {
		if n := m.Nodes[q.Node]; n != nil {
			out.Revision = n.Revision()
		}
	})
	return out, err
}

func checkResources(list []events.Resource) error {
	seen := map[string]bool{}
	for _, r := range list {
		if r.Type != events.ResourceFile {
			return fmt.Errorf("resource type %q cannot be declared by hand: use %q (the host's version is a rollout's business)", r.Type, events.ResourceFile)
		}
		if seen[r.String()] {
			return fmt.Errorf("%s is there twice", r)
		}
		seen[r.String()] = true
		var spec events.FileSpec
		if err := events.DecodeSpec(r, &spec); err != nil {
			return err
		}
		if err := spec.Validate(r.Name); err != nil {
			return fmt.Errorf("%s: %w", r, err)
		}
	}
	return nil
}

func (a *api) fleet(ctx context.Context, _ caller, q FleetRequest) (out Fleet, err error) {
	out.Past, err = a.state(ctx, q.At, func(m *projections.Mesh, _ time.Time) {
		out.EventSeq, out.HeartbeatSeq = m.EventSeq, m.HeartbeatSeq
		if q.Node == "" {
			out.Nodes, out.More = m.Fleet(q.After, fleetPage)
		} else if n := m.Enrolled(q.Node); n != nil {
			out.Nodes = []projections.NodeView{n.Detail()}
		}
	})
	if err == nil && q.Node != "" && len(out.Nodes) == 0 {
		err = noSuchNode(events.Printable(q.Node, 63))
		if out.Past != nil {
			err = fmt.Errorf("no node %q was enrolled at %s", events.Printable(q.Node, 63), out.Past.At.Format(time.RFC3339))
		}
	}
	return out, err
}
