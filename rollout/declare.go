package rollout

import (
	"fmt"
	"slices"

	"noxmesh/events"
	"noxmesh/projections"
)

// declarations are the ones of an opened batch that are not in the log yet.
func declarations(m *projections.Mesh, r *projections.Rollout, b *projections.Batch) Decision {
	var d Decision
	cause := events.DeclarationCause{Kind: events.CauseBatch, Rollout: r.ID, Batch: b.Number}
	for _, node := range b.Nodes {
		member := r.Members[node]
		if member.Batch != b.Number || member.Revision != 0 || member.Outcome != projections.Waiting {
			continue
		}
		n := m.Nodes[node]
		if n == nil || n.Heard == nil {
			continue // chosen by a heartbeat that is not read yet on this server
		}
		release, ok := releaseFor(r.Plan.Releases, n.Heard.Architecture)
		if !ok {
			continue // judged as not applied once the window has passed
		}
		spec := events.HostSpec{Release: release, Fallback: fallback(m, r, n), Retry: r.Plan.Retry || b.Retry}
		d = d.with(declare(m, n, cause, b.EventID, withHost(n.Declaration, &spec)))
	}
	return d
}

func declare(m *projections.Mesh, n *projections.Node, cause events.DeclarationCause, causeID string, resources []events.Resource) Pending {
	return Pending{
		ID: events.DeclarationID(cause, n.ID), Subject: n.ID, Expected: n.DeclarationSeq(), Cause: causeID,
		Fact: &events.Declared{Node: n.ID, Revision: n.Revision() + 1, Because: cause, Resources: resources, AsOf: asOf(m)},
	}
}

func releaseFor(releases []events.Release, architecture string) (events.Release, bool) {
	i := slices.IndexFunc(releases, func(r events.Release) bool { return r.Architecture == architecture })
	if i < 0 {
		return events.Release{}, false
	}
	return releases[i], true
}

// fallback is the package of what the node runs now, where the mesh has it. A
// node that is declared the same version again keeps its former one.
func fallback(m *projections.Mesh, r *projections.Rollout, n *projections.Node) *events.Release {
	if n.Heard.KnownGood == r.Plan.Version && n.Declaration != nil {
		if h := n.Declaration.Host(); h != nil && h.Version == r.Plan.Version {
			return h.Fallback
		}
	}
	if n.Heard.KnownGood == "" {
		return nil
	}
	if r := m.Releases[events.ReleaseKey(n.Heard.KnownGood, n.Heard.Architecture)]; r != nil {
		return &r.Release
	}
	return nil
}

// withHost is a declaration's resources with another host version, last, or
// with none.
func withHost(d *projections.Declaration, spec *events.HostSpec) []events.Resource {
	out := []events.Resource{}
	if d != nil {
		for _, res := range d.Resources {
			if res.Type != events.ResourceHost {
				out = append(out, res)
			}
		}
	}
	if spec == nil {
		return out
	}
	return append(out, events.ResourceFromSpec(events.ResourceHost, events.HostPackage, *spec))
}

// declaredBy says whether a node still stands as a rollout declared it.
func declaredBy(n *projections.Node, r *projections.Rollout) bool {
	if n == nil || n.Declaration == nil {
		return false
	}
	switch because := n.Declaration.Because; because.Kind {
	case events.CauseBatch:
		return because.Rollout == r.ID
	case events.CauseOperator: // adds other resources and leaves the host's version
		return n.Rollout == r.ID && n.DeclaredVersion() == r.Plan.Version
	}
	return false
}

// hostBefore is what the member was declared to run before the rollout, or nil.
func hostBefore(member *projections.Member) *events.HostSpec {
	before := member.Before()
	if before == nil {
		return nil
	}
	return before.Host()
}

// recalls are the declarations that give nodes their previous one back, as the
// rollout's end or a hold intended, and that are not in the log yet.
func recalls(m *projections.Mesh, r *projections.Rollout) Decision {
	intended := r.RecallIntended()
	causeID := r.EventID
	if held := m.HeldOf(r.Plan.Releases); held != nil {
		intended = Recallable(m, r)
	}
	var d Decision
	for _, node := range intended {
		n, member := m.Nodes[node], r.Members[node]
		if member == nil || member.Outcome == projections.Decommissioned || member.Outcome == projections.Passed || !declaredBy(n, r) {
			continue
		}
		cause := events.DeclarationCause{Kind: events.CauseRecall, Rollout: r.ID, Batch: member.Batch}
		d = d.with(declare(m, n, cause, causeID, withHost(n.Declaration, hostBefore(member))))
	}
	return d
}

// Recallable are the nodes that were declared the version and have not applied
// it yet: those of the open batch, and those of earlier ones that were given up
// as silent or stuck and would install it one day with nobody watching.
func Recallable(m *projections.Mesh, r *projections.Rollout) []string {
	var out []string
	for _, b := range r.Batches {
		for _, node := range b.Nodes {
			n, member := m.Nodes[node], r.Members[node]
			if n == nil || member.Batch != b.Number {
				continue
			}
			switch member.Outcome {
			case projections.Waiting, projections.Outcome(events.Silent), projections.Outcome(events.NotApplied):
			default:
				continue
			}
			if rolledBackFrom(n, r, &b, member) != nil {
				continue
			}
			if n.Heard != nil && (n.Heard.Version == r.Plan.Version || member.Revision > 0 && n.Heard.Revision >= member.Revision) {
				continue
			}
			out = append(out, node)
		}
	}
	return out
}

// versionBefore is what a node ran before the rollout declared it anything, as
// far as it is known.
func versionBefore(n *projections.Node, r *projections.Rollout, member *projections.Member) string {
	if n.Declaration != nil {
		if h := n.Declaration.Host(); h != nil && h.Version == r.Plan.Version && h.Fallback != nil {
			return h.Fallback.Version
		}
	}
	if f := n.RolledBack; f != nil && f.Fact.From == r.Plan.Version {
		return f.Fact.To
	}
	for i := len(n.Runs) - 1; i >= 0; i-- {
		if v := n.Runs[i].Version; v != r.Plan.Version {
			return v
		}
	}
	if h := hostBefore(member); h != nil {
		return h.Version
	}
	return ""
}

// revertSpec is the host version that a revert gives a node.
func revertSpec(m *projections.Mesh, r *projections.Rollout, node string) (*events.HostSpec, error) {
	n, member := m.Nodes[node], r.Members[node]
	version := versionBefore(n, r, member)
	if version == "" || n.Heard == nil {
		return hostBefore(member), nil
	}
	rel := m.Releases[events.ReleaseKey(version, n.Heard.Architecture)]
	switch {
	case rel == nil:
		return nil, fmt.Errorf("the mesh has no package of %s for %s, which node %s ran: add it with nox-mesh release add FILE.deb", version, n.Heard.Architecture, node)
	case rel.Held != nil:
		return nil, fmt.Errorf("%s, which node %s ran, is held: lift that with nox-mesh release lift %s", version, node, version)
	}
	return &events.HostSpec{Release: rel.Release, Fallback: fallback(m, r, n), Retry: true}, nil
}

// reverts are the declarations of a revert that are not in the log yet.
func reverts(m *projections.Mesh, r *projections.Rollout) Decision {
	var d Decision
	for _, node := range r.Revert.Nodes {
		n, member := m.Nodes[node], r.Members[node]
		if member == nil || member.Outcome == projections.GivenBack || member.Outcome == projections.Decommissioned || !declaredBy(n, r) {
			continue
		}
		spec, err := revertSpec(m, r, node)
		if err != nil {
			continue // its package was there when the operator asked; it is no longer
		}
		cause := events.DeclarationCause{Kind: events.CauseRevert, Rollout: r.ID, Batch: member.Batch}
		d = d.with(declare(m, n, cause, r.EventID, withHost(n.Declaration, spec)))
	}
	return d
}
