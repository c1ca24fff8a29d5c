package rollout

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"noxmesh/events"
)

// part is one thing that a fact says. Wording is none: only what counts is
// compared.
type part struct {
	name string
	says []string // in order
}

// partsOf takes a decision apart.
func partsOf(fact events.Fact) []part {
	one := func(name string, v any) part { return part{name, []string{fmt.Sprint(v)}} }
	switch f := fact.(type) {
	case *events.BatchOpened:
		return []part{one("batch", f.Batch), one("stage", f.Stage), {"nodes", f.Nodes}, {"presence", numerals(f.Presence)},
			one("retry", f.Retry), one("tail", f.Tail)}
	case *events.BatchPassed:
		return []part{one("batch", f.Batch), {"passed", passedSay(f.Passed)}, {"failed", failuresSay(f.Failures)},
			{"gone", f.Gone}, {"control", controlSays(f.Control)}}
	case *events.RolloutHalted:
		return []part{one("batch", f.Batch), one("diagnosis", f.Diagnosis), {"failed", failuresSay(f.Failures)},
			{"passed", passedSay(f.Passed)}, {"recall", f.Recall}, one("undeclared", f.Undeclared), one("listened", f.Listened),
			{"control", controlSays(f.Control)}, {"in common", traitsSay(f.Common)}, {"evidence", evidenceSays(f.Evidence)}}
	case *events.RolloutPaused:
		return []part{one("because", f.Because), {"control", controlSays(f.Control)}}
	case *events.RolloutResumed:
		return []part{one("because", f.Because), {"control", controlSays(f.Control)}}
	case *events.RolloutCompleted:
		return []part{one("passed", f.Passed), one("failed", f.Failed), {"tail", f.Tail}}
	case *events.RolloutAmended:
		return []part{{"passed", passedSay(f.Passed)}, {"failed", failuresSay(f.Failures)}}
	case *events.Declared:
		return []part{one("node", f.Node), one("revision", f.Revision), one("because", fmt.Sprint(f.Because.Kind, " ", f.Because.Rollout, " ", f.Because.Batch)),
			{"resources", resourcesSay(f.Resources)}}
	case *events.ReleaseHeld:
		return []part{one("rollout", f.Rollout), {"evidence", evidenceSays(f.Evidence)}}
	}
	return nil
}

func numerals(list []uint64) (out []string) {
	for _, n := range list {
		out = append(out, fmt.Sprint(n))
	}
	return out
}

func evidenceSays(e events.Evidence) (out []string) {
	for _, n := range e.Heartbeats {
		out = append(out, fmt.Sprintf("heartbeat %d", n))
	}
	for _, n := range e.Events {
		out = append(out, fmt.Sprintf("event %d", n))
	}
	return out
}

func passedSay(list []events.NodePassed) (out []string) {
	for _, p := range list {
		out = append(out, fmt.Sprintf("%s by start %s (%s)", p.Node, p.StartID, strings.Join(evidenceSays(p.Evidence), ", ")))
	}
	return out
}

func failuresSay(list []events.Failure) (out []string) {
	for _, f := range list {
		out = append(out, fmt.Sprintf("%s %s (%s)", f.Node, f.Kind, orElse(strings.Join(evidenceSays(f.Evidence), ", "), "nothing cited")))
	}
	return out
}

func controlSays(c events.Control) []string {
	says := fmt.Sprintf("%d of %d silent", c.Silent, c.Nodes)
	if !c.Since.IsZero() {
		says += " since " + c.Since.UTC().Format(time.RFC3339Nano)
	}
	return []string{says}
}

func traitsSay(list []events.Trait) (out []string) {
	for _, t := range list {
		out = append(out, fmt.Sprintf("%s=%s: %d of %d failed, %d of %d others", t.Attribute, t.Value, t.Failed, t.FailedOf, t.Others, t.OthersOf))
	}
	return out
}

// resourcesSay gives what is declared, without the signatures that are added
// when a declaration is written.
func resourcesSay(list []events.Resource) (out []string) {
	for _, r := range list {
		spec := []byte(r.Spec)
		var host events.HostSpec
		var flat bytes.Buffer
		switch {
		case r.Type == events.ResourceHost && json.Unmarshal(r.Spec, &host) == nil:
			host.Signature = ""
			if host.Fallback != nil {
				unsigned := *host.Fallback
				unsigned.Signature = ""
				host.Fallback = &unsigned
			}
			spec, _ = json.Marshal(host) // strings and numbers
		case json.Compact(&flat, r.Spec) == nil:
			spec = flat.Bytes()
		}
		out = append(out, r.String()+" "+string(spec))
	}
	return out
}

// differences words what two decisions do not have in common, of each side;
// both are empty if they are the same.
func differences(recorded, wanted events.Fact) (string, string) {
	var is, want []string
	have := partsOf(recorded)
	for i, w := range partsOf(wanted) {
		h := have[i]
		if slices.Equal(h.says, w.says) {
			continue
		}
		more, less := without(h.says, w.says), without(w.says, h.says)
		if len(more)+len(less) == 0 {
			is, want = append(is, w.name+" in another order: "+some(h.says)), append(want, w.name+": "+some(w.says))
			continue
		}
		is, want = append(is, w.name+": "+some(more)), append(want, w.name+": "+some(less))
	}
	return strings.Join(is, "; "), strings.Join(want, "; ")
}

func without(list, others []string) (out []string) {
	there := map[string]bool{}
	for _, s := range others {
		there[s] = true
	}
	for _, s := range list {
		if !there[s] {
			out = append(out, s)
		}
	}
	return out
}

// mostSome is how many of a list a finding names.
const mostSome = 5

func some(list []string) string {
	switch {
	case len(list) == 0:
		return "none"
	case len(list) > mostSome:
		return fmt.Sprintf("%s and %d more", strings.Join(list[:mostSome], ", "), len(list)-mostSome)
	}
	return strings.Join(list, ", ")
}

// brief words a decision in a few words.
func brief(fact events.Fact) string {
	switch f := fact.(type) {
	case *events.BatchOpened:
		return fmt.Sprintf("batch %d opened: %s", f.Batch, some(f.Nodes))
	case *events.BatchPassed:
		return fmt.Sprintf("batch %d passed, %d passed and %d failed", f.Batch, len(f.Passed), len(f.Failures))
	case *events.RolloutHalted:
		return fmt.Sprintf("halted, %s: %s", f.Diagnosis, f.Reason)
	case *events.RolloutPaused:
		return fmt.Sprintf("paused by %s", f.Because)
	case *events.RolloutResumed:
		return fmt.Sprintf("resumed by %s", f.Because)
	case *events.RolloutCompleted:
		return fmt.Sprintf("completed, %d passed, %d failed, %d absent", f.Passed, f.Failed, len(f.Tail))
	case *events.RolloutAmended:
		return fmt.Sprintf("late evidence, %d passed and %d failed", len(f.Passed), len(f.Failures))
	case *events.Declared:
		version := "no version"
		if h := f.Host(); h != nil {
			version = h.Version
		}
		return fmt.Sprintf("%s declared %s (%s)", f.Node, version, f.Because.Kind)
	case *events.ReleaseHeld:
		return "release held: " + f.Reason
	}
	return fact.EventType()
}

// aggregateOf is the word for what an event type is about.
func aggregateOf(typ string) string {
	word, _, _ := strings.Cut(strings.TrimPrefix(typ, "mesh."), ".")
	return word
}
