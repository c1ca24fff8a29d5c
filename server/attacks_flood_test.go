package server

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"noxmesh/events"
)

// floods come last: they are many messages.
func (a *arena) floods(t *testing.T) []attack {
	const beats, reports = 20_000, 2_000
	// Together they send some 200 MiB.
	pad := func(good string, size int) []byte {
		return []byte(strings.Replace(good, "{", `{"pad":"`+strings.Repeat("x", size)+`",`, 1))
	}
	beat := pad(goodBeat, 4<<10)
	by := func(why string) hurdle { return hurdle{why, "^bounded$"} }
	flood := func(t *testing.T, u *user, subject string, n int, payload func(i int) []byte) <-chan error {
		done := make(chan error, 1)
		go func() {
			var err error
			for i := 0; i < n && err == nil; i++ {
				err = u.Publish(subject, payload(i))
			}
			done <- errors.Join(err, u.FlushWithContext(testContext(t)))
		}()
		return done
	}
	// meanwhile another node's report is recorded, within seconds.
	meanwhile := func(t *testing.T, id string) {
		begun := time.Now()
		a.settle(t, id)
		if took := time.Since(begun); took > 10*time.Second {
			t.Errorf("another node's report took %s", took)
		}
	}
	memory := func() uint64 {
		var s runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&s)
		return s.HeapAlloc
	}
	var before uint64
	return []attack{
		{"node", fmt.Sprintf("sends %d heartbeats at once", beats), by("the stream: 1,000 of a node are kept; others are heard meanwhile"), func(t *testing.T) error {
			before = memory()
			u := a.online(t, a.join(t, "flood"))
			subject := events.HeartbeatSubject("flood")
			done := flood(t, u, subject, beats, func(int) []byte { return beat })
			meanwhile(t, "while heartbeats flood")
			if err := <-done; err != nil {
				t.Fatal(err)
			}
			return a.kept(t, u, subject, events.StreamHeartbeats, 1000)
		}},
		{"node", fmt.Sprintf("sends %d reports at once", reports), by("the intake's allowance of 50; others are heard meanwhile"), func(t *testing.T) error {
			u := a.online(t, a.join(t, "flood2"))
			subject := events.ReportSubject("flood2", events.ReportConfirmed)
			done := flood(t, u, subject, reports, func(i int) []byte { return pad(string(confirmed(t, fmt.Sprint("f", i), "1.0.0")), 60<<10) })
			meanwhile(t, "while reports flood")
			if err := <-done; err != nil {
				t.Fatal(err)
			}
			if met := a.kept(t, u, subject, events.StreamReports, 256); met == nil {
				return nil
			}
			a.settle(t, "after the flood of reports")
			n := 0
			for _, f := range factsAbout[events.Fact](t, a.whole, "flood2") {
				if _, ok := f.(*events.NodeConfirmed); ok {
					n++
				}
			}
			a.expect(&events.NodeConfirmed{}, n)
			if n == 0 || n > reportBurst {
				t.Logf("%d events came of it", n)
				return nil
			}
			return errors.New("bounded")
		}},
		{"node", "asks for 2000 credentials at once", by("the door: an answer costs little; others are answered meanwhile"), func(t *testing.T) error {
			done := flood(t, a.self, events.RenewSubject("self"), 2000, func(int) []byte { return nil })
			begun := time.Now()
			if _, err := a.other.RequestWithContext(testContext(t), events.RenewSubject("other"), nil); err != nil {
				t.Fatal(err)
			}
			if took := time.Since(begun); took > 10*time.Second {
				t.Logf("another node's took %s", took)
				return nil
			}
			if err := <-done; err != nil {
				t.Fatal(err)
			}
			return errors.New("bounded")
		}},
		{"node", "fills the server's log with requests that want no answer", fewLines, func(t *testing.T) error {
			return a.quiet(t, func() {
				if err := <-flood(t, a.self, events.RenewSubject("self"), 500, func(int) []byte { return nil }); err != nil {
					t.Fatal(err)
				}
				// It is answered after those.
				if _, err := a.self.RequestWithContext(testContext(t), events.RenewSubject("self"), nil); err != nil {
					t.Fatal(err)
				}
			})
		}},
		{"node", "fills the server's memory with all that", by("what is kept of a node is bounded"), func(t *testing.T) error {
			after := memory()
			t.Logf("%d MiB are in use, %d MiB were before", after>>20, before>>20)
			if after > before+160<<20 {
				return nil
			}
			return errors.New("bounded")
		}},
	}
}

var fewLines = hurdle{"the server: it says the same once in a while only", "^few lines$"}

// quiet says "few lines" if an attempt leads to no more than a few in the
// server's log.
func (a *arena) quiet(t *testing.T, attempt func()) error {
	t.Helper()
	before := a.lines.Load()
	attempt()
	if n := a.lines.Load() - before; n > 50 {
		t.Logf("there are %d new lines", n)
		return nil
	}
	return errors.New("few lines")
}

// kept says "bounded" if no more than most messages are kept on a subject, once
// all that u has sent is stored.
func (a *arena) kept(t *testing.T, u *user, subject, stream string, most uint64) error {
	t.Helper()
	if _, err := u.RequestWithContext(testContext(t), subject, []byte("fence")); err != nil {
		t.Fatal(err)
	}
	s, err := a.m.js.Stream(testContext(t), stream)
	if err != nil {
		t.Fatal(err)
	}
	info, err := s.Info(testContext(t), jetstream.WithSubjectFilter(subject))
	if err != nil {
		t.Fatal(err)
	}
	if n := info.State.Subjects[subject]; n == 0 || n > most {
		t.Logf("%d messages are kept on %s", n, subject)
		return nil
	}
	return errors.New("bounded")
}
