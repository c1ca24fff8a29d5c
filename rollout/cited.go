package rollout

import "noxmesh/events"

// Cite is what one part of a decision rests on.
type Cite struct {
	Node string `json:"node,omitempty"` // empty: the decision as a whole
	// Says is what is concluded from it.
	Says string `json:"says"`
	events.Evidence
}

// Cited gives what a decision rests on, in its own order; nothing for facts that
// are no decisions.
func Cited(fact events.Fact) []Cite {
	switch f := fact.(type) {
	case *events.BatchOpened:
		var out []Cite
		for i, node := range f.Nodes {
			if i < len(f.Presence) {
				out = append(out, Cite{node, "present", events.Evidence{Heartbeats: f.Presence[i : i+1]}})
			}
		}
		return out
	case *events.BatchPassed:
		return append(citedFailures(f.Failures), citedPassed(f.Passed)...)
	case *events.RolloutHalted:
		return append(append(citedWhole(f.Evidence), citedFailures(f.Failures)...), citedPassed(f.Passed)...)
	case *events.RolloutAmended:
		return append(citedFailures(f.Failures), citedPassed(f.Passed)...)
	case *events.ReleaseHeld:
		return citedWhole(f.Evidence)
	}
	return nil
}

func citedWhole(e events.Evidence) []Cite {
	if len(e.Heartbeats)+len(e.Events) == 0 {
		return nil
	}
	return []Cite{{"", "why", e}}
}

func citedFailures(list []events.Failure) (out []Cite) {
	for _, f := range list {
		out = append(out, Cite{f.Node, string(f.Kind), f.Evidence})
	}
	return out
}

func citedPassed(list []events.NodePassed) (out []Cite) {
	for _, p := range list {
		out = append(out, Cite{p.Node, "passed", p.Evidence})
	}
	return out
}
