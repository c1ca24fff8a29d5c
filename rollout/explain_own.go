package rollout

import (
	"fmt"
	"strings"
	"time"

	"noxmesh/events"
)

// own tells of the rollout's own events after the first.
func (t *teller) own(rec events.Record, fact events.Fact) *Step {
	by := rec.Event.Actor
	switch f := fact.(type) {
	case *events.BatchOpened:
		return t.opened(rec, f)
	case *events.BatchPassed:
		text := fmt.Sprintf("Batch %d passed: %d of %s heard confirmed on %s, and their processes kept beating for %s.", f.Batch,
			len(f.Passed), count(len(f.Passed)+len(f.Failures)+len(f.Gone), "node"), t.plan.Version, t.plan.Policy.Soak)
		if len(f.Failures) > 0 {
			text += fmt.Sprintf(" %d failed, which is tolerated.", len(f.Failures))
		}
		if len(f.Gone) > 0 {
			text += fmt.Sprintf(" %s left the fleet meanwhile.", names(f.Gone))
		}
		return t.step(rec, text+control(f.Control), append(t.failures(f.Failures), passed(f.Passed)...)...)
	case *events.RolloutHalted:
		return t.halted(rec, f)
	case *events.RolloutPaused:
		if f.Because == events.ByLink {
			return t.step(rec, fmt.Sprintf("The rollout paused by itself: %s. Windows stand still from then on, and it goes on when the nodes are back.", f.Reason))
		}
		return t.step(rec, fmt.Sprintf("%s paused the rollout%s. No batch is opened meanwhile.", by, colon(f.Reason)))
	case *events.RolloutResumed:
		switch {
		case f.Because == events.ByLink:
			return t.step(rec, fmt.Sprintf("The rollout went on by itself%s.", colon(f.Reason)))
		case f.Mode == events.ResumeRetry:
			return t.step(rec, fmt.Sprintf("%s resumed the rollout%s. The nodes that failed try %s once more.", by, colon(f.Reason), t.plan.Version))
		case f.Mode == events.ResumeLeaveOut:
			return t.step(rec, fmt.Sprintf("%s resumed the rollout%s. The nodes that failed are left out and keep what they run.", by, colon(f.Reason)))
		}
		return t.step(rec, fmt.Sprintf("%s resumed the rollout%s.", by, colon(f.Reason)))
	case *events.RolloutAborted:
		text := fmt.Sprintf("%s aborted the rollout%s. Nodes keep what they run.", by, colon(f.Reason))
		if len(f.Recall) > 0 {
			text += fmt.Sprintf(" %s had not applied it and are told what they had before.", names(f.Recall))
		}
		return t.step(rec, text)
	case *events.RolloutReverted:
		return t.step(rec, fmt.Sprintf("%s reverted the rollout%s. %s to get back what they had before: %s.", by, colon(f.Reason), count(len(f.Nodes), "node"), names(f.Nodes)))
	case *events.RolloutCompleted:
		text := fmt.Sprintf("The rollout completed: %d passed, %d failed.", f.Passed, f.Failed)
		if len(f.Tail) > 0 {
			text += fmt.Sprintf(" %s not heard in time: %s. Each is told when it is next heard, and watched by itself.", count(len(f.Tail), "node"), names(f.Tail))
		}
		return t.step(rec, text)
	case *events.RolloutAmended:
		return t.step(rec, fmt.Sprintf("Late evidence: %d passed, %d failed after their batch was closed.", len(f.Passed), len(f.Failures)),
			append(t.failures(f.Failures), passed(f.Passed)...)...)
	}
	return t.step(rec, strings.TrimPrefix(rec.Event.Type, "mesh."))
}

func (t *teller) opened(rec events.Record, f *events.BatchOpened) *Step {
	what := fmt.Sprintf("Batch %d", f.Batch)
	switch {
	case f.Tail:
		what = fmt.Sprintf("Batch %d, of the tail,", f.Batch)
	case f.Retry:
		what = fmt.Sprintf("Batch %d, with nodes that try once more,", f.Batch)
	case f.Stage == 1 || f.Stage == 0 && f.Batch == 1:
		what = fmt.Sprintf("Batch %d, the canaries,", f.Batch)
	}
	text := fmt.Sprintf("%s was opened with %s: %s.", what, count(len(f.Nodes), "node"), names(f.Nodes))
	if len(f.Presence) > 0 {
		text += fmt.Sprintf(" Each was heard in the %s before: %s.", t.plan.Policy.Presence, beats(f.Presence))
	}
	return t.step(rec, text)
}

func (t *teller) halted(rec events.Record, f *events.RolloutHalted) *Step {
	text := "The rollout halted"
	if f.Listened > 0 {
		text += fmt.Sprintf(" after %s of listening to batch %d", round(time.Duration(f.Listened)), f.Batch)
	}
	text += fmt.Sprintf(": %s.", f.Reason)
	if len(f.Failures) > 0 || f.Diagnosis == events.DiagnosisLink { // a hold needs no diagnosis
		text += fmt.Sprintf(" The diagnosis is %s: %s.", f.Diagnosis, means[f.Diagnosis])
	}
	if len(f.Passed) > 0 {
		text += fmt.Sprintf(" %d of the batch had passed by then.", len(f.Passed))
	}
	text += control(f.Control)
	for _, c := range f.Common {
		text += fmt.Sprintf(" In common: %s %s is what %d of %d that failed have, and %d of %d others.", c.Attribute, c.Value, c.Failed, c.FailedOf, c.Others, c.OthersOf)
	}
	if len(f.Recall) > 0 {
		text += fmt.Sprintf(" To be recalled, since they have not applied it: %s.", names(f.Recall))
	}
	if f.Undeclared > 0 {
		text += fmt.Sprintf(" Spared, since they never heard of it: %s.", count(f.Undeclared, "node"))
	}
	return t.step(rec, text, append(t.failures(f.Failures), passed(f.Passed)...)...)
}

// means says what a diagnosis claims.
var means = map[events.Diagnosis]string{
	events.DiagnosisRelease:      "more nodes fail on it than machines do by themselves",
	events.DiagnosisMachine:      "it runs well elsewhere, so it is the machines that failed",
	events.DiagnosisLink:         "nodes that were told nothing fell silent too, so it is the way to them",
	events.DiagnosisInconclusive: "too little is known to tell a bad machine from a bad release",
}

// control tells what became of the nodes that were told nothing.
func control(c events.Control) string {
	switch {
	case c.Nodes == 0:
		return ""
	case c.Nodes == 1:
		return fmt.Sprintf(" The 1 node that was told nothing meanwhile %s.", []string{"did not fall silent", "fell silent"}[min(c.Silent, 1)])
	case c.Silent == 0:
		return fmt.Sprintf(" Of %s that were told nothing meanwhile none fell silent.", count(c.Nodes, "node"))
	}
	return fmt.Sprintf(" Of %s that were told nothing meanwhile %d fell silent.", count(c.Nodes, "node"), c.Silent)
}

// failures tells of each failed node, what shows it, and when that was.
func (t *teller) failures(list []events.Failure) (out []string) {
	for i, f := range list {
		if i == 2*few && len(list) > 2*few+1 {
			return append(out, fmt.Sprintf("and %d more that failed", len(list)-i))
		}
		line := fmt.Sprintf("%s failed, %s: %s", f.Node, strings.ReplaceAll(string(f.Kind), "-", " "), f.Detail)
		var shown []string
		for _, seq := range f.Evidence.Events {
			text := fmt.Sprintf("event %d", seq)
			if at, ok := t.at[seq]; ok {
				if d, ok := t.told[f.Node]; ok {
					text += fmt.Sprintf(", %s after it was told", round(at.Sub(d.at)))
				}
			}
			shown = append(shown, text)
		}
		if len(f.Evidence.Heartbeats) > 0 {
			shown = append(shown, beats(f.Evidence.Heartbeats))
		}
		if len(shown) > 0 {
			line += " (" + strings.Join(shown, "; ") + ")"
		}
		out = append(out, line)
	}
	return out
}

func passed(list []events.NodePassed) (out []string) {
	for i, p := range list {
		if i == few && len(list) > few+1 {
			return append(out, fmt.Sprintf("and %d more that passed", len(list)-i))
		}
		line := p.Node + " passed"
		if len(p.Evidence.Heartbeats) > 0 {
			line += " (" + beats(p.Evidence.Heartbeats) + ")"
		}
		out = append(out, line)
	}
	return out
}

// names lists nodes as far as they are few.
func names(list []string) string {
	if len(list) <= few+1 {
		return and(list)
	}
	return fmt.Sprintf("%s and %d more", strings.Join(list[:few], ", "), len(list)-few)
}

// beats lists heartbeats by number as far as they are few.
func beats(seqs []uint64) string {
	var words []string
	for _, seq := range seqs {
		words = append(words, fmt.Sprint(seq))
	}
	if len(words) == 1 {
		return "heartbeat " + words[0]
	}
	if len(words) > few+1 {
		return fmt.Sprintf("heartbeats %s and %d more", strings.Join(words[:few], ", "), len(words)-few)
	}
	return "heartbeats " + and(words)
}

func numbers(list []int) string {
	var words []string
	for _, n := range list {
		words = append(words, fmt.Sprint(n))
	}
	return strings.Join(words, ", then ")
}

func and(words []string) string {
	switch n := len(words); n {
	case 0:
		return "none"
	case 1:
		return words[0]
	default:
		return strings.Join(words[:n-1], ", ") + " and " + words[n-1]
	}
}

func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

func colon(reason string) string {
	if reason == "" {
		return ""
	}
	return ": " + reason
}
