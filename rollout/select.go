package rollout

import (
	"sort"
	"strings"

	"k8s.io/apimachinery/pkg/labels"

	"noxmesh/projections"
)

// ParseSelector reads a label selector as Kubernetes has it: site=ams,
// os!=windows, site in (ams,fra), site notin (nyc), gpu, !gpu. Empty selects
// all.
func ParseSelector(s string) (labels.Selector, error) {
	sel, err := labels.Parse(s)
	if err != nil {
		return nil, refuse("selector %q does not read: %v. Give one like site=ams,os!=windows or 'site in (ams,fra),!gpu'", s, err)
	}
	return sel, nil
}

// selectable are the labels that a selector sees: the operator's, and below
// them what the node says of itself.
func selectable(n *projections.Node) labels.Set {
	out := labels.Set{"node": n.ID}
	if h := n.Heard; h != nil {
		out["arch"], out["kernel"], out["version"] = h.Architecture, h.Kernel, h.Version
		if words := strings.Fields(h.OS); len(words) > 0 {
			out["os"] = strings.ToLower(words[0])
		}
	}
	for k, v := range n.Labels {
		out[k] = v
	}
	return out
}

// selectNodes gives the enrolled nodes that match, sorted.
func selectNodes(m *projections.Mesh, sel labels.Selector) []string {
	var out []string
	for id, n := range m.Nodes {
		if n.EnrolledSeq != 0 && sel.Matches(selectable(n)) {
			out = append(out, id)
		}
	}
	sort.Strings(out)
	return out
}
