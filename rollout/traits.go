package rollout

import (
	"cmp"
	"slices"

	"noxmesh/events"
	"noxmesh/projections"
)

const (
	// traitSignificance is how unlikely by chance something must be to be called
	// common to the failed. Many attributes are looked at, so it is a hint.
	traitSignificance = 0.05
	maxTraits         = 5
)

// Traits are what the failed nodes have in common more often than the others
// that were told the same, the most telling first: what is unlikely by chance,
// or what all of the failed have and none of the others.
func Traits(m *projections.Mesh, r *projections.Rollout, failures []events.Failure) []events.Trait {
	failed := map[string]bool{}
	for _, f := range failures {
		failed[f.Node] = true
	}
	type key struct{ attribute, value string }
	in, out := map[key]int{}, map[key]int{}
	nFailed, nOthers := 0, 0
	for id, member := range r.Members {
		n := m.Nodes[id]
		if n == nil || member.Batch <= r.Accepted || member.Outcome == projections.Decommissioned {
			continue
		}
		counts := out
		if failed[id] || member.Outcome.Failed() {
			counts = in
			nFailed++
		} else {
			nOthers++
		}
		for a, v := range attributes(n, r, member) {
			counts[key{a, v}]++
		}
	}
	var traits []events.Trait
	for k, x := range in {
		t := events.Trait{Attribute: k.attribute, Value: k.value, Failed: x, FailedOf: nFailed, Others: out[k], OthersOf: nOthers}
		t.P = hypergeometricTail(x, nFailed+nOthers, x+t.Others, nFailed)
		if t.P < traitSignificance || x == nFailed && t.Others == 0 && nOthers > 0 {
			traits = append(traits, t)
		}
	}
	slices.SortFunc(traits, func(a, b events.Trait) int {
		return cmp.Or(cmp.Compare(a.P, b.P), cmp.Compare(rank(a.Attribute), rank(b.Attribute)),
			cmp.Compare(a.Attribute, b.Attribute), cmp.Compare(a.Value, b.Value))
	})
	return traits[:min(len(traits), maxTraits)]
}

// rank puts what a release is most often broken by first among equals.
func rank(attribute string) int {
	if i := slices.Index([]string{"architecture", "os", "kernel", "from"}, attribute); i >= 0 {
		return i
	}
	return 4
}

// attributes are what is known of a machine; "from" is the version before.
func attributes(n *projections.Node, r *projections.Rollout, member *projections.Member) map[string]string {
	out := map[string]string{}
	for k, v := range n.Labels {
		out[k] = v
	}
	if h := n.Heard; h != nil {
		out["architecture"], out["os"], out["kernel"] = h.Architecture, h.OS, h.Kernel
	}
	out["from"] = versionBefore(n, r, member)
	for k, v := range out {
		if v == "" {
			delete(out, k)
		}
	}
	return out
}
