// Package eventstest helps to test what writes or reads the log: a tool, or a
// part of the mesh.
//
// [NewLog] gives a real log, on a broker inside of the test. A [Watcher] reads a
// log; [Expect] waits for events in it, which may have others between them, and
// [ExpectExactly] for these and no others:
//
//	w := eventstest.NewWatcher(t, log, events.ReadOptions{})
//	... what is tested ...
//	if err := eventstest.Expect(w,
//		eventstest.Type[*events.RolloutStarted](),
//		eventstest.Match(func(f *events.BatchOpened) error { ... }),
//		eventstest.Type[*events.RolloutCompleted](),
//	); err != nil {
//		t.Fatal(err)
//	}
//
// A wait ends after [Watcher.Timeout], and the error shows what was seen instead.
// Each event is seen once: the next call goes on where the last one ended.
package eventstest
