package simulate

import (
	"fmt"
	"slices"
	"strings"

	"noxmesh/events"
	"noxmesh/projections"
)

// TraceLine is an event as one line of a trace, what belongs to it below.
func TraceLine(rec events.Record, fact events.Fact) string {
	return fmt.Sprintf("%s %3d %s", rec.Event.Time.Format("15:04:05"), rec.Seq, Describe(rec.Event.Subject, fact))
}

const below = "\n             "

// Describe words a fact about an aggregate.
func Describe(subject string, fact events.Fact) string {
	head := subject + " " + projections.ShortType(fact.EventType())
	switch f := fact.(type) {
	case *events.RolloutStarted:
		return fmt.Sprintf("%s: %s over %d nodes, targets %v", head, f.Version, len(f.Cohort), f.Targets)
	case *events.BatchOpened:
		return fmt.Sprintf("%s: batch %d%s: %s", head, f.Batch, kindOf(f), strings.Join(sorted(f.Nodes), " "))
	case *events.BatchPassed:
		s := fmt.Sprintf("%s: batch %d: %d passed", head, f.Batch, len(f.Passed)) + failed(f.Failures)
		if len(f.Gone) > 0 {
			s += "; gone: " + strings.Join(sorted(f.Gone), " ")
		}
		return s
	case *events.RolloutHalted:
		return head + halted(f)
	case *events.RolloutPaused:
		return fmt.Sprintf("%s: by %s", head, f.Because) + because(f.Reason)
	case *events.RolloutResumed:
		s := fmt.Sprintf("%s: by %s", head, f.Because)
		if f.Mode != "" {
			s += " " + string(f.Mode)
		}
		return s + because(f.Reason)
	case *events.RolloutAborted:
		return head + because(f.Reason) + recall(f.Recall)
	case *events.RolloutReverted:
		return head + because(f.Reason) + below + "nodes: " + strings.Join(sorted(f.Nodes), " ")
	case *events.RolloutCompleted:
		return fmt.Sprintf("%s: %d passed, %d failed, tail %v", head, f.Passed, f.Failed, f.Tail)
	case *events.RolloutAmended:
		var words []string
		for _, p := range f.Passed {
			words = append(words, p.Node+" passed")
		}
		for _, x := range f.Failures {
			words = append(words, x.Node+" "+string(x.Kind))
		}
		return head + ": " + strings.Join(words, "; ")
	case *events.Declared:
		v := "-"
		if h := f.Host(); h != nil {
			v = h.Version
			if h.Retry {
				v += " (retry)"
			}
		}
		return fmt.Sprintf("%s: revision %d, host %s, %s", head, f.Revision, v, f.Because.Kind)
	case *events.ReleaseHeld:
		return head + because(f.Reason)
	case *events.NodeRolledBack:
		return fmt.Sprintf("%s: from %s to %s", head, f.From, f.To)
	case *events.NodeRefused:
		return fmt.Sprintf("%s: %s", head, f.Reason)
	}
	return head
}

func kindOf(f *events.BatchOpened) string {
	var words []string
	if f.Stage != f.Batch && !f.Tail {
		words = append(words, fmt.Sprintf("stage %d", f.Stage))
	}
	if f.Retry {
		words = append(words, "retry")
	}
	if f.Tail {
		words = append(words, "tail")
	}
	if len(words) == 0 {
		return ""
	}
	return " (" + strings.Join(words, ", ") + ")"
}

func halted(f *events.RolloutHalted) string {
	s := fmt.Sprintf(": %s: %s (undeclared %d, listened %s)", f.Diagnosis, f.Reason, f.Undeclared, f.Listened)
	for _, x := range f.Failures {
		s += fmt.Sprintf("%s%s: %s: %s", below, x.Node, x.Kind, x.Detail)
	}
	for _, t := range f.Common {
		s += fmt.Sprintf("%sin common: %s %s: %d of %d failed, %d of %d others", below, t.Attribute, t.Value, t.Failed, t.FailedOf, t.Others, t.OthersOf)
	}
	return s + recall(f.Recall)
}

func failed(failures []events.Failure) string {
	s := ""
	for _, x := range failures {
		s += fmt.Sprintf("; %s %s", x.Node, x.Kind)
	}
	return s
}

func recall(nodes []string) string {
	if len(nodes) == 0 {
		return ""
	}
	return below + "recall: " + strings.Join(sorted(nodes), " ")
}

func because(reason string) string {
	if reason == "" {
		return ""
	}
	return ": " + reason
}

func sorted(nodes []string) []string { return slices.Sorted(slices.Values(nodes)) }
