package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"noxmesh/events"
	"noxmesh/projections"
	"noxmesh/projections/notary"
)

// verified has the log verified by the checkpoints that the server kept, and by
// more of them.
func (w *whole) verified(t *testing.T, more ...string) notary.Report {
	t.Helper()
	kept, keys, err := w.client.Checkpoints(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range kept {
		more = append(more, k.Checkpoint)
	}
	r, err := notary.Verify(notary.Verification{
		Key: keys[0], Checkpoints: more, Stored: w.client.StoredHashes(testContext(t)),
		Read: func(from uint64, fn func(events.Message) error) error {
			return w.client.ReadStream(testContext(t), events.StreamEvents, from, nil, fn)
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// busy lets some things happen that are alike, and gives how many events there are.
func (w *whole) busy(t *testing.T) int64 {
	t.Helper()
	for i := range 6 {
		name := fmt.Sprint("person", i%2)
		if _, err := w.client.AddUser(testContext(t), UserAddRequest{User: name, Role: RoleViewer}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.client.RevokeUser(testContext(t), name, fmt.Sprint("reason ", i)); err != nil {
			t.Fatal(err)
		}
	}
	signed, err := w.client.Checkpoint(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	c, err := notary.OpenCheckpoint([]byte(signed.Checkpoint), signed.Keys...)
	if err != nil {
		t.Fatal(err)
	}
	return c.Size
}

// ruined is a mesh that was busy and stopped, and whose file of the log was then
// changed.
func ruined(t *testing.T, reindexed bool, fn func([]record) []record) (dir string, size int64) {
	t.Helper()
	dir = t.TempDir()
	w := startServer(t, dir)
	size = w.busy(t)
	if r := w.verified(t); !r.OK || r.Events != size || r.Proven != size {
		t.Fatalf("before anything was done: %+v", r)
	}
	w.stop(t)
	tamper(t, dir, reindexed, fn)
	return dir, size
}

// warnings is a log that can be waited on.
type warnings struct {
	mu   sync.Mutex
	text bytes.Buffer
	came chan struct{}
}

func (w *warnings) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	close(w.came)
	w.came = make(chan struct{})
	return w.text.Write(p)
}

func (w *warnings) wait(t *testing.T, part string) {
	t.Helper()
	deadline := time.After(patience)
	for {
		w.mu.Lock()
		text, came := w.text.String(), w.came
		w.mu.Unlock()
		if strings.Contains(text, part) {
			return
		}
		select {
		case <-came:
		case <-deadline:
			t.Fatalf("%q is not in the log:\n%s", part, text)
		}
	}
}

// What was changed in the file of the broker, with checksums that are right, is
// found, and the first event that does not fit named.
func TestTheBrokersFileIsChanged(t *testing.T) {
	reason := func(r record, n int) bool { return strings.Contains(string(r.data), fmt.Sprintf(`"reason %d"`, n)) }
	for _, tt := range []struct {
		name  string
		first int64 // the first that does not fit; counted from the end if negative
		now   string
		fn    func([]record) []record
	}{
		{"a letter", 0, `"reasom":"reason 2"`, func(rs []record) []record {
			i := slices.IndexFunc(rs, func(r record) bool { return reason(r, 2) })
			rs[i].data = bytes.Replace(rs[i].data, []byte("reason"), []byte("reasom"), 1)
			return rs
		}},
		{"two swapped", 0, `"reason 4"`, func(rs []record) []record {
			i := slices.IndexFunc(rs, func(r record) bool { return reason(r, 2) })
			j := slices.IndexFunc(rs, func(r record) bool { return reason(r, 4) })
			rs[i].data, rs[j].data = rs[j].data, rs[i].data
			return rs
		}},
		{"the subject", 0, `"reason 2"`, func(rs []record) []record {
			i := slices.IndexFunc(rs, func(r record) bool { return reason(r, 2) })
			rs[i].subject += "x"
			return rs
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var first int64
			dir, size := ruined(t, true, func(rs []record) []record {
				first = int64(slices.IndexFunc(rs, func(r record) bool { return reason(r, 2) })) + 1
				return tt.fn(rs)
			})
			heard := &warnings{came: make(chan struct{})}
			s, err := Start(testContext(t), Config{DataDir: dir, Listen: "127.0.0.1:0", Logger: zerolog.New(heard).Level(zerolog.ErrorLevel)})
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := s.Stop(); err != nil {
					t.Error(err)
				}
			}()
			client, err := Dial(s.URL(), OperatorCredsFile(dir), CAFile(dir))
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close()
			r := (&whole{client: client}).verified(t)
			if r.OK || r.Fault.Seq != first || r.Fault.UpTo != first || !strings.Contains(r.Now, tt.now) || r.Proven != size {
				t.Errorf("event %d was changed: %+v %+v", first, r, r.Fault)
			}
			if tt.name == "the subject" {
				return // the bytes are those that were signed
			}
			// The server says so itself, and proves nothing that is not so.
			heard.wait(t, fmt.Sprintf(`"event":%d`, first))
			if _, _, changed := s.notary.standing(); changed != first {
				t.Errorf("the metrics say that event %d was changed", changed)
			}
			if _, err := client.Prove(testContext(t), ProveRequest{Seq: uint64(first)}); err == nil || !strings.Contains(err.Error(), "the log was changed") {
				t.Error("it is proven:", err)
			}
			if _, err := client.Prove(testContext(t), ProveRequest{Seq: uint64(first) - 1}); err != nil {
				t.Error("the one before it:", err)
			}
		})
	}
}

// A log that has less than what was signed is not started on, and nothing is
// appended to it.
func TestTheBrokersFileLacksSomething(t *testing.T) {
	for _, tt := range []struct {
		name string
		want string
		fn   func([]record) []record
	}{
		{"the tail", "it ends at event 12, and had 16 on", func(rs []record) []record { return rs[:12] }},
		{"one in between", "event 7 is missing, and 1 in all\nnothing was changed", func(rs []record) []record { return slices.Delete(rs, 6, 7) }},
		{"one, closed up", "it ends at event 15, and had 16 on", func(rs []record) []record {
			rs = slices.Delete(rs, 6, 7)
			for i := range rs {
				rs[i].seq = uint64(i + 1)
			}
			return rs
		}},
		{"a right checksum", "it ends at event 6, and had 16 on", func(rs []record) []record {
			rs[6].sum = make([]byte, 8)
			return rs
		}},
		{"the first", "it begins with event 2", func(rs []record) []record { return rs[1:] }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir, size := ruined(t, true, tt.fn)
			if size != 16 {
				t.Fatal("the mesh has", size, "events; the cases count on 16")
			}
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			s, err := Start(ctx, Config{DataDir: dir, Listen: "127.0.0.1:0", Logger: testLog(t)})
			if err == nil {
				t.Fatal("it starts; stopping it:", s.Stop())
			}
			if !strings.Contains(err.Error(), tt.want) {
				t.Errorf("it does not say %q", tt.want)
			}
			if !errors.Is(err, errNotTheLog) || !strings.Contains(err.Error(), "docs/operations.md") || !strings.Contains(err.Error(), NotaryDir(dir)) {
				t.Error("it does not say what to do")
			}
			// It was not made worse.
			tamper(t, dir, false, func(rs []record) []record {
				if int64(len(rs)) >= size {
					t.Errorf("there are %d events now", len(rs))
				}
				return rs
			})
		})
	}
}

// A record whose checksum is wrong is one that the broker does not hand over, and
// without a look at all records it does not know. The server does not start, or, if
// it had folded that event before, says so.
func TestTheBrokersFileHasAWrongChecksum(t *testing.T) {
	dir, _ := ruined(t, false, func(rs []record) []record {
		rs[6].sum = make([]byte, 8)
		return rs
	})
	heard := &warnings{came: make(chan struct{})}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	s, err := Start(ctx, Config{DataDir: dir, Listen: "127.0.0.1:0", Logger: zerolog.New(heard).Level(zerolog.ErrorLevel)})
	if err != nil {
		if !errors.Is(err, projections.ErrGap) || !strings.Contains(err.Error(), "event 8 follows 6\nnothing was changed") {
			t.Error(err)
		}
		return
	}
	heard.wait(t, `"event":7`)
	client, err := Dial(s.URL(), OperatorCredsFile(dir), CAFile(dir))
	if err != nil {
		t.Fatal(err)
	}
	if r := (&whole{client: client}).verified(t); r.OK || r.Fault.Seq != 7 || !strings.Contains(r.Fault.Reason, "it is missing: event 8 follows event 6") {
		t.Errorf("%+v %+v", r, r.Fault)
	}
	client.Close()
	if err := s.Stop(); err != nil {
		t.Error(err)
	}
}

// Knowingly, a mesh goes on without what is gone.
func TestLossIsAccepted(t *testing.T) {
	dir, _ := ruined(t, true, func(rs []record) []record { return rs[:12] })
	kept, err := notary.OpenKept(filepath.Join(NotaryDir(dir), "checkpoints"))
	if err == nil {
		err = errors.Join(os.RemoveAll(NotaryDir(dir)), os.RemoveAll(snapshotDir(dir)))
	}
	if err != nil {
		t.Fatal(err)
	}
	w := startServer(t, dir)
	if r := w.verified(t); !r.OK || r.Events != 12 {
		t.Errorf("%+v", r)
	}
	// A checkpoint of before shows it all the same.
	if r := w.verified(t, kept.Last().Checkpoint); r.OK || r.Fault.UpTo != 13 || !strings.Contains(r.Fault.Reason, "the log ends at event 12, and had 16") {
		t.Errorf("%+v %+v", r, r.Fault)
	}
}

// The file of hashes is a cache: without it, or with another one, the server comes
// to the same tree, or says that the log was changed.
func TestHashesAreACache(t *testing.T) {
	dir := t.TempDir()
	w := startServer(t, dir)
	size := w.busy(t)
	before, err := w.client.Checkpoint(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	w.stop(t)
	file := filepath.Join(NotaryDir(dir), "hashes")
	whole, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string][]byte{
		"gone": nil, "cut": whole[:len(whole)/2+5], "zeros behind": append(bytes.Clone(whole), make([]byte, 32*5)...),
		"damaged": append(bytes.Repeat([]byte{7}, 64), whole[64:]...),
	} {
		t.Run(name, func(t *testing.T) {
			if err := os.WriteFile(file, content, 0o600); err != nil {
				t.Fatal(err)
			}
			if name == "zeros behind" { // more leaves than events: those were lost
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				defer cancel()
				_, err := Start(ctx, Config{DataDir: dir, Listen: "127.0.0.1:0", Logger: testLog(t)})
				if !errors.Is(err, errNotTheLog) {
					t.Fatal(err)
				}
				return
			}
			w := startServer(t, dir)
			defer w.stop(t)
			after, err := w.client.Checkpoint(testContext(t))
			if err != nil || after.Checkpoint != before.Checkpoint {
				t.Errorf("it signs\n%s, and signed\n%s %v", after.Checkpoint, before.Checkpoint, err)
			}
		})
	}
	t.Run("gone, and the log changed", func(t *testing.T) {
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
		tamper(t, dir, true, func(rs []record) []record {
			rs[8].data = bytes.Replace(rs[8].data, []byte("person"), []byte("nobody"), 1)
			return rs
		})
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		_, err := Start(ctx, Config{DataDir: dir, Listen: "127.0.0.1:0", Logger: testLog(t)})
		if !errors.Is(err, errNotTheLog) || !strings.Contains(err.Error(), fmt.Sprintf("to %d hold the first that does not fit", size)) {
			t.Fatal(err)
		}
	})
}

// What came after the last checkpoint is not proven, but the server had read it: it
// does not start on another end of the log.
func TestTheTailBehindTheLastCheckpoint(t *testing.T) {
	unsigned := func(t *testing.T, fn func([]record) []record) error {
		dir, _ := ruined(t, true, fn)
		file := filepath.Join(NotaryDir(dir), "checkpoints")
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		first, _, _ := bytes.Cut(raw, []byte("\n"))
		if err := os.WriteFile(file, append(first, '\n'), 0o600); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		s, err := Start(ctx, Config{DataDir: dir, Listen: "127.0.0.1:0", Logger: testLog(t)})
		if err == nil {
			err = s.Stop()
		}
		return err
	}
	if err := unsigned(t, func(rs []record) []record { return rs }); err != nil {
		t.Error("nothing was changed:", err)
	}
	if err := unsigned(t, func(rs []record) []record { return rs[:12] }); !errors.Is(err, errNotTheLog) || !strings.Contains(err.Error(), "it ends at event 12, and the server had read up to 16") {
		t.Error("cut:", err)
	}
	if err := unsigned(t, func(rs []record) []record {
		rs[12].data = bytes.Replace(rs[12].data, []byte("viewer"), []byte("veiwer"), 1)
		return rs
	}); !errors.Is(err, errNotTheLog) || !strings.Contains(err.Error(), "event 13 is not what the server had read") {
		t.Error("changed:", err)
	}
}

// Checkpoints by another key are not taken for the mesh's own.
func TestForgedCheckpoints(t *testing.T) {
	dir := t.TempDir()
	w := startServer(t, dir)
	file := filepath.Join(t.TempDir(), "log.jsonl")
	x, _ := w.export(t, file)
	w.stop(t)
	kept, err := notary.OpenKept(filepath.Join(NotaryDir(dir), "checkpoints"))
	if err != nil {
		t.Fatal(err)
	}
	forged, _ := signedByOther(t, file, x.Events)
	if err := kept.Append(notary.KeptCheckpoint{Signed: time.Now(), Checkpoint: forged}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if _, err := Start(ctx, Config{DataDir: dir, Listen: "127.0.0.1:0", Logger: testLog(t)}); !errors.Is(err, notary.ErrNotSigned) || !strings.Contains(err.Error(), NotaryDir(dir)) {
		t.Error(err)
	}
}

// A mesh of before there was a notary has its key from the next start on, and all
// of its log in the tree.
func TestNotaryComesToAnOldMesh(t *testing.T) {
	dir, _ := ruined(t, true, func(rs []record) []record {
		rs = slices.DeleteFunc(rs, func(r record) bool {
			return r.subject == events.EventSubject(events.AggregateKey, events.KeyNotary)
		})
		for i := range rs {
			rs[i].seq = uint64(i + 1)
		}
		return rs
	})
	// Nor were there snapshots.
	if err := errors.Join(os.RemoveAll(NotaryDir(dir)), os.Remove(NotaryKeyFile(dir)), os.RemoveAll(snapshotDir(dir))); err != nil {
		t.Fatal(err)
	}
	w := startServer(t, dir)
	if r := w.verified(t); !r.OK || r.Events != 16 || r.Proven != 16 {
		t.Errorf("%+v", r)
	}
	list, err := w.client.Keys(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	if last := list.Keys[len(list.Keys)-1]; last.Role != events.KeyNotary || !last.InForce {
		t.Errorf("%+v", list.Keys)
	}
}

// A mesh that lost the notary's key goes on, and says that it signs nothing.
func TestNotaryKeyIsLost(t *testing.T) {
	dir := t.TempDir()
	w := startServer(t, dir)
	size := w.busy(t)
	signed, err := w.client.Checkpoint(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	w.stop(t)
	key, err := os.ReadFile(NotaryKeyFile(dir))
	if err == nil {
		err = os.Remove(NotaryKeyFile(dir))
	}
	if err != nil {
		t.Fatal(err)
	}
	w = startServer(t, dir)
	if _, err := w.client.Checkpoint(testContext(t)); err == nil || !strings.Contains(err.Error(), "restore notary.key") {
		t.Error(err)
	}
	if r := w.verified(t); !r.OK || r.Proven != size {
		t.Errorf("%+v", r)
	}
	w.stop(t)
	if err := os.WriteFile(NotaryKeyFile(dir), key, 0o600); err != nil {
		t.Fatal(err)
	}
	w = startServer(t, dir)
	if again, err := w.client.Checkpoint(testContext(t)); err != nil || again.Checkpoint != signed.Checkpoint {
		t.Errorf("%v %v", again, err)
	}
}
