package eventstest_test

import (
	"fmt"
	"testing"

	"noxmesh/events"
	"noxmesh/events/eventstest"
)

// A tool that holds a release as soon as a rollout of it halts would be tested like this;
// the test stands for the tool.
func Example() {
	test := func(t *testing.T) {
		log := eventstest.NewLog(t)
		w := eventstest.NewWatcher(t, log.Log, events.ReadOptions{})

		log.Write(t, "r1", &events.RolloutHalted{Reason: "2 of 2 rolled back", Diagnosis: events.DiagnosisRelease})
		log.Write(t, "1_1_0_amd64", &events.ReleaseHeld{Reason: "rollout r1 halted"})

		if err := eventstest.Expect(w,
			eventstest.Type[*events.RolloutHalted](),
			eventstest.Match(func(f *events.ReleaseHeld) error {
				if f.Reason != "rollout r1 halted" {
					return fmt.Errorf("the reason is %q", f.Reason)
				}
				return nil
			}),
		); err != nil {
			t.Error(err)
		}
	}
	_ = test // func TestHoldsWhatHalts(t *testing.T) in yours
	// Output:
}
