package server

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/rs/zerolog"

	"noxmesh/events"
	"noxmesh/projections"
	"noxmesh/projections/notary"
)

// restored is a data directory that holds what the backup of another one has
// besides the log.
func restored(t *testing.T, from string) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"identity", "tls"} {
		if err := os.CopyFS(filepath.Join(dir, name), os.DirFS(filepath.Join(from, name))); err != nil {
			t.Fatal(err)
		}
	}
	for _, file := range []string{DeliveryKeyFile(from), ReleaseKeyFile(from), NotaryKeyFile(from), OperatorCredsFile(from), RevokedFile(from)} {
		raw, err := os.ReadFile(file)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, filepath.Base(file)), raw, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// foldOf folds a log that is in a file.
func foldOf(t *testing.T, file string) *projections.Mesh {
	t.Helper()
	m := projections.NewMesh()
	if _, err := notary.ReadLines(file, func(msg events.Message) error {
		e, err := events.Decode(msg.Data)
		if err != nil {
			return err
		}
		return m.ApplyEvent(events.Record{Seq: msg.Seq, Event: e})
	}); err != nil {
		t.Fatal(err)
	}
	return m
}

func (w *whole) export(t *testing.T, file string) (Export, Import) {
	t.Helper()
	x, err := w.client.Export(testContext(t), file, nil)
	if err != nil {
		t.Fatal(err)
	}
	return x, Import{File: file, Checkpoint: x.Checkpoint, Key: x.Keys[0], Logger: testLog(t)}
}

// A mesh whose data directory is gone comes back from its export and its own
// files: the same log, the same fold, the same proofs; its nodes know it.
func TestExportAndImport(t *testing.T) {
	dir := t.TempDir()
	w := startServer(t, dir)
	ctx := testContext(t)
	machine := w.joined(t, "n1", nil)
	nc, err := w.link(machine)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	for _, v := range []string{"1.0.0", "1.1.0", "1.2.0"} { // the first two are not the last in REPORTS
		report(t, nc, "n1", events.ReportConfirmed, confirmed(t, uuid.NewString(), v))
	}
	w.waitFacts(t, "n1", 4)
	if _, err := w.client.Declare(ctx, DeclareRequest{Node: "n1"}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.addFor(t, "1.1.0", "amd64", false); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "log.jsonl")
	half, importHalf := w.export(t, file)
	halfFile := file + ".half"
	raw, err := os.ReadFile(file)
	if err == nil {
		err = os.WriteFile(halfFile, raw, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	importHalf.File = halfFile
	w.busy(t)

	// What an interruption leaves is cut off, and gone on from.
	if err := os.WriteFile(file, append(raw, `{"specversion":"1.0","id`...), 0o600); err != nil {
		t.Fatal(err)
	}
	x, im := w.export(t, file)
	if x.Resumed != half.Events || x.Events != half.Events+12 {
		t.Errorf("it went on at %d, and has %d; before it had %d", x.Resumed, x.Events, half.Events)
	}
	var stored bytes.Buffer
	var firstReport events.Event
	if err := w.client.ReadStream(ctx, events.StreamEvents, 1, nil, func(m events.Message) error {
		stored.Write(append(bytes.Clone(m.Data), '\n'))
		if e, err := events.Decode(m.Data); err == nil && e.Type == (*events.NodeConfirmed)(nil).EventType() && firstReport.ID == "" {
			firstReport = e
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if raw, err = os.ReadFile(file); err != nil || !bytes.Equal(raw, stored.Bytes()) {
		t.Fatal("the export is not what is stored", err)
	}
	if again, _ := w.export(t, file); again.Resumed != x.Events || again.Checkpoint != x.Checkpoint {
		t.Errorf("with nothing new: %+v", again)
	}
	w.stop(t)
	nc.Close()

	im.DataDir = restored(t, dir)
	importHalf.DataDir = im.DataDir
	if r, err := importHalf.Run(ctx); err != nil || r.Events != half.Events || r.Resumed != 0 || r.ReportsFrom != 4 || r.HeartbeatsFrom != 1 {
		t.Fatalf("%+v %v", r, err)
	}
	for _, resumed := range []int64{half.Events, x.Events} {
		if r, err := im.Run(ctx); err != nil || r.Events != x.Events || r.Resumed != resumed {
			t.Fatalf("%+v %v", r, err)
		}
	}
	w = startServer(t, im.DataDir)
	if r := w.verified(t, x.Checkpoint, half.Checkpoint); !r.OK || r.Events != x.Events {
		t.Errorf("%+v", r)
	}
	if again, _ := w.export(t, file+".again"); again.Checkpoint != x.Checkpoint {
		t.Errorf("it signs\n%s, and signed\n%s", again.Checkpoint, x.Checkpoint)
	}
	if !reflect.DeepEqual(foldOf(t, file+".again"), foldOf(t, file)) {
		t.Error("the fold is another one")
	}
	proof, err := w.client.Prove(ctx, ProveRequest{ID: firstReport.ID})
	if err != nil {
		t.Fatal(err)
	}
	p, err := notary.ParseProof([]byte(proof.Proof))
	if err == nil {
		_, err = p.Verify(x.Keys[0])
	}
	if err != nil || !bytes.Equal(p.Event, firstReport.Encode()) {
		t.Errorf("the proof of %s: %v %s", firstReport.ID, err, p.Event)
	}

	// What a node should be is there for it again.
	w.until(t, "n1 has its declaration", func() (bool, string) {
		stream, err := w.api.js.Stream(ctx, events.StreamDeclarations)
		if err != nil {
			t.Fatal(err)
		}
		msg, err := stream.GetLastMsgForSubject(ctx, events.DeclaredSubject("n1"))
		return err == nil && bytes.Contains(raw, append(msg.Data, '\n')), fmt.Sprint(err)
	})
	// A node that had joined before is let in, and heard.
	if nc, err = w.link(machine); err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	w.beat(t, nc, "n1", "1.2.0")
	report(t, nc, "n1", events.ReportConfirmed, confirmed(t, uuid.NewString(), "1.3.0"))
	facts := w.waitFacts(t, "n1", 5)
	if f, ok := facts[4].(*events.NodeConfirmed); !ok || f.Version != "1.3.0" || f.ReportSeq != 4 {
		t.Errorf("%+v", facts[4])
	}
	// Its package is not in the store; adding it again brings it and is no event.
	list, err := w.client.Releases(ctx)
	if err != nil || len(list.Releases) != 1 {
		t.Fatal(list, err)
	}
	if err := CheckPackage(ctx, w.api.js, list.Releases[0].Release); err == nil {
		t.Error("the package is there")
	}
	if r, err := w.addFor(t, "1.1.0", "amd64", false); err != nil || !r.Already || r.Signed {
		t.Error(r, err)
	}
	again, err := w.client.Releases(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := CheckPackage(ctx, w.api.js, again.Releases[0].Release); err != nil {
		t.Error(err)
	}
	if again.EventSeq != list.EventSeq {
		t.Errorf("adding it again is an event: %d", again.EventSeq)
	}
	// And it survives being stopped.
	w.stop(t)
	w = startServer(t, im.DataDir)
	if r := w.verified(t, x.Checkpoint); !r.OK {
		t.Errorf("%+v", r)
	}
}

// A recorded log comes back as it is, and the streams that its events refer to go
// on behind the highest sequence they name.
func TestImportOfARecordedLog(t *testing.T) {
	file := "../testdata/logs/0.2.jsonl"
	im := Import{File: file, DataDir: t.TempDir(), Logger: testLog(t)}
	im.Checkpoint, im.Key = signedByOther(t, file, 38)
	startMesh(t, im.DataDir).stop(t)
	for _, name := range []string{"jetstream", "lock"} {
		if err := os.RemoveAll(filepath.Join(im.DataDir, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(DeliveryKeyFile(im.DataDir), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	r, err := im.Run(testContext(t))
	if err != nil || r.Events != 38 {
		t.Fatalf("%+v %v", r, err)
	}
	// Told in another way: every number under a name that means a sequence.
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	highest := func(pattern string) (n uint64) {
		for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(string(raw), -1) {
			for _, s := range strings.Split(m[1], ",") {
				seq, err := strconv.ParseUint(s, 10, 64)
				if err != nil {
					t.Fatal(err)
				}
				n = max(n, seq)
			}
		}
		return n
	}
	heartbeat := max(highest(`"heartbeat":([0-9]+)`), highest(`"heartbeats":\[([0-9,]+)\]`), highest(`"presence":\[([0-9,]+)\]`))
	if heartbeat == 0 || r.HeartbeatsFrom != heartbeat+1 || r.ReportsFrom != highest(`"report_seq":([0-9]+)`)+1 {
		t.Errorf("%+v; heartbeat %d is named", r, heartbeat)
	}
	m := startMesh(t, im.DataDir)
	lines := bytes.Split(bytes.TrimSpace(raw), []byte("\n"))
	for i, msg := range readAll(t, m, events.StreamEvents) {
		if msg.Seq != uint64(i+1) || !bytes.Equal(msg.Data, lines[i]) {
			t.Errorf("event %d is %s", i+1, msg.Data)
		}
	}
	if ack, err := m.js.Publish(testContext(t), events.HeartbeatSubject("x"), nil); err != nil || ack.Sequence != r.HeartbeatsFrom {
		t.Error(ack, err)
	}
	if ack, err := m.js.Publish(testContext(t), events.ReportSubject("x", "confirmed"), nil); err != nil || ack.Sequence != r.ReportsFrom {
		t.Error(ack, err)
	}
}

// signedByOther is a checkpoint of the first events of a file, by a key of the
// test's own.
func signedByOther(t *testing.T, file string, size int64) (signed, key string) {
	t.Helper()
	k, _, err := events.NewKey(events.KeyNotary)
	if err != nil {
		t.Fatal(err)
	}
	h, err := notary.OpenHashes(filepath.Join(t.TempDir(), "hashes"))
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	if _, err := notary.ReadLines(file, func(m events.Message) error { return h.Append(m.Data) }); err != nil {
		t.Fatal(err)
	}
	c, err := h.At(size)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := c.Sign(k)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw), k.Public
}

// What is wrong is refused before anything is written, and said in words.
func TestImportIsRefused(t *testing.T) {
	dir := t.TempDir()
	w := startServer(t, dir)
	w.busy(t)
	file := filepath.Join(t.TempDir(), "log.jsonl")
	_, good := w.export(t, file)
	w.busy(t)
	_, more := w.export(t, file+".more")
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	running := good
	running.DataDir = dir
	if _, err := running.Run(testContext(t)); err == nil || !strings.Contains(err.Error(), "in use by another server") && !strings.Contains(err.Error(), "take a newer export") {
		t.Error("while the server runs:", err)
	}
	w.stop(t)
	write := func(name string, raw []byte) string {
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, raw, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	lines := bytes.SplitAfter(raw, []byte("\n"))
	other, otherKey := signedByOther(t, file, 3)
	for _, tt := range []struct {
		name string
		im   func(im *Import)
		want string
	}{
		{"changed", func(im *Import) { im.File = write("x", bytes.Replace(raw, []byte("reason 2"), []byte("reason 7"), 1)) }, "does not fit its checkpoint"},
		{"short", func(im *Import) { im.File = write("x", bytes.Join(lines[:5], nil)) }, "the log ends at event 5, and had 16 when it was signed"},
		{"torn", func(im *Import) { im.File = write("x", raw[:len(raw)-3]) }, "the last line is cut off"},
		{"longer than what is signed", func(im *Import) { im.File = more.File }, "its checkpoint vouches for 16: give the export again"},
		{"other key", func(im *Import) { im.Checkpoint = other }, "it is not signed by the notary's key"},
		{"another log's checkpoint", func(im *Import) { im.Checkpoint, im.Key = other, otherKey }, "vouches for 3"},
		{"nothing restored", func(im *Import) { im.DataDir = t.TempDir() }, "restore them from the backup first"},
		{"another log is there", func(im *Import) {
			im.DataDir = t.TempDir()
			startServer(t, im.DataDir).stop(t)
			if err := os.RemoveAll(NotaryDir(im.DataDir)); err != nil {
				t.Fatal(err)
			}
		}, "is not empty, and not the beginning of"},
		{"older than what was signed", func(im *Import) {
			if err := os.CopyFS(NotaryDir(im.DataDir), os.DirFS(NotaryDir(dir))); err != nil {
				t.Fatal(err)
			}
		}, "take a newer export"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			im := good
			im.DataDir = restored(t, dir)
			tt.im(&im)
			_, err := im.Run(testContext(t))
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("it says %v, want %q", err, tt.want)
			}
		})
	}
}

// An import that is stopped at any moment goes on.
func TestImportIsCutOff(t *testing.T) {
	dir := t.TempDir()
	w := startServer(t, dir)
	for range 3 {
		w.busy(t)
	}
	file := filepath.Join(t.TempDir(), "log.jsonl")
	x, im := w.export(t, file)
	w.stop(t)
	im.DataDir = restored(t, dir)
	for _, after := range []int64{1, 2, 9, 30} {
		ctx, cancel := context.WithCancel(testContext(t))
		im.hand = func(seq int64) {
			if seq == after {
				cancel()
			}
		}
		_, err := im.Run(ctx)
		cancel()
		if !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "give the import again") {
			t.Fatal(err)
		}
	}
	im.hand = nil
	if r, err := im.Run(testContext(t)); err != nil || r.Resumed == 0 || r.Resumed >= x.Events {
		t.Fatalf("%+v %v", r, err)
	}
	w = startServer(t, im.DataDir)
	if r := w.verified(t, x.Checkpoint); !r.OK || r.Events != x.Events {
		t.Errorf("%+v", r)
	}
}

// envImport tells this program to import, in a process of its own that is killed
// at an event, and to test nothing.
const envImport = "NOX_MESH_TEST_IMPORT"

type importChild struct {
	File, Checkpoint, Key, DataDir string
	KillAt                         int64
}

func TestMain(m *testing.M) {
	raw := os.Getenv(envImport)
	if raw == "" {
		os.Exit(m.Run())
	}
	var c importChild
	err := json.Unmarshal([]byte(raw), &c)
	if err == nil {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		_, err = Import{
			File: c.File, Checkpoint: c.Checkpoint, Key: c.Key, DataDir: c.DataDir, Logger: zerolog.Nop(),
			hand: func(seq int64) {
				if seq == c.KillAt {
					_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
				}
			},
		}.Run(ctx)
	}
	fmt.Println("was not killed:", err)
	os.Exit(1)
}

// An import whose process is killed goes on, too, whatever it had written by then.
func TestImportIsKilled(t *testing.T) {
	dir := t.TempDir()
	w := startServer(t, dir)
	w.busy(t)
	file := filepath.Join(t.TempDir(), "log.jsonl")
	x, im := w.export(t, file)
	w.stop(t)
	im.DataDir = restored(t, dir)
	for _, at := range []int64{1, 5, x.Events} {
		raw, err := json.Marshal(importChild{im.File, im.Checkpoint, im.Key, im.DataDir, at})
		if err != nil {
			t.Fatal(err)
		}
		child := exec.CommandContext(testContext(t), os.Args[0])
		child.Env = append(os.Environ(), envImport+"="+string(raw))
		out, err := child.CombinedOutput()
		var end *exec.ExitError
		if !errors.As(err, &end) || end.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
			t.Fatalf("at event %d it ends with %v:\n%s", at, err, out)
		}
	}
	if r, err := im.Run(testContext(t)); err != nil || r.Events != x.Events {
		t.Fatalf("%+v %v", r, err)
	}
	w = startServer(t, im.DataDir)
	if r := w.verified(t, x.Checkpoint); !r.OK || r.Events != x.Events {
		t.Errorf("%+v", r)
	}
}

// An export is refused where it would not be one of this log.
func TestExportIsRefused(t *testing.T) {
	w := startServer(t, t.TempDir())
	w.busy(t)
	file := filepath.Join(t.TempDir(), "log.jsonl")
	w.export(t, file)
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		raw  []byte
		want string
	}{
		"changed":   {bytes.Replace(raw, []byte("reason 2"), []byte("reason 7"), 1), "does not hold the first 16 events of this log"},
		"too long":  {append(bytes.Clone(raw), raw...), "has 32 events and the log 16"},
		"no export": {[]byte("something else\n"), "does not hold the first 1 events of this log"},
	} {
		if err := os.WriteFile(file, tt.raw, 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := w.client.Export(testContext(t), file, nil)
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: it says %v, want %q", name, err, tt.want)
		}
		if after, err := os.ReadFile(file); err != nil || !bytes.Equal(after, tt.raw) {
			t.Errorf("%s: the file was changed (%v)", name, err)
		}
	}
}

// Each fact that names sequences of other streams is known to.
func TestReferences(t *testing.T) {
	at := events.Position{Event: 1, Heartbeat: 7}
	seen := events.Evidence{Heartbeats: []uint64{5, 9}}
	receipt := events.Receipt{ReportSeq: 4}
	for _, tt := range []struct {
		fact events.Fact
		want references
	}{
		{&events.BatchOpened{Presence: []uint64{3, 8, 2}, AsOf: at}, references{heartbeat: 8}},
		{&events.BatchPassed{Passed: []events.NodePassed{{Evidence: seen}}, AsOf: at}, references{heartbeat: 9}},
		{&events.RolloutHalted{Evidence: seen, AsOf: at}, references{heartbeat: 9}},
		{&events.ReleaseHeld{Evidence: seen}, references{heartbeat: 9}},
		{&events.RolloutCompleted{AsOf: at}, references{heartbeat: 7}},
		{&events.NodeConfirmed{Receipt: receipt}, references{report: 4}},
		{&events.NodeRolledBack{Receipt: receipt}, references{report: 4}},
		{&events.UserRevoked{}, references{}},
	} {
		e := events.New("x", tt.fact, events.Origin{Source: "s", Actor: "a"}, time.Now())
		var r references
		r.of(e)
		if r != tt.want {
			raw, err := json.Marshal(tt.fact)
			t.Error(fmt.Sprintf("%T %s: %+v, want %+v", tt.fact, raw, r, tt.want), err)
		}
	}
}
