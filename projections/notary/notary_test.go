package notary

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/mod/sumdb/tlog"
	"pgregory.net/rapid"

	"noxmesh/events"
)

// someLog makes a log whose first event is the notary's key.
func someLog(n int) (*events.SigningKey, []events.Message) {
	key, _, err := events.NewKey(events.KeyNotary)
	if err != nil {
		panic(err)
	}
	at := time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)
	var log []events.Message
	for i := range n {
		var e events.Event
		switch origin := (events.Origin{Source: "nox-mesh/test", Actor: "op"}); {
		case i == 0:
			e = events.New(events.KeyNotary, &events.KeyTrusted{Rotation: events.Rotation{Role: events.KeyNotary, Key: key.Public}}, origin, at)
		case i%3 == 0:
			e = events.New("op", &events.UserAdded{Role: "viewer", PublicKey: fmt.Sprint("U", i)}, origin, at)
		default:
			e = events.New(fmt.Sprintf("n%d", i%5), &events.NodeRevoked{Reason: fmt.Sprint("reason ", i)}, origin, at)
		}
		subject, err := Subject(e)
		if err != nil {
			panic(err)
		}
		log = append(log, events.Message{Seq: uint64(i + 1), Subject: subject, Data: e.Encode()})
	}
	return key, log
}

// fatals is what testing and rapid have in common.
type fatals interface {
	Helper()
	Fatal(args ...any)
}

func hashesOf(t fatals, path string, log []events.Message) *Hashes {
	t.Helper()
	h, err := OpenHashes(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range log[h.Size():] {
		if err := h.Append(m.Data); err != nil {
			t.Fatal(err)
		}
	}
	return h
}

func auditOf(t fatals, path string, log []events.Message) *Audit {
	t.Helper()
	a, err := NewAudit(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range log {
		if err := a.Add(m); err != nil {
			t.Fatal(err)
		}
	}
	return a
}

// Whatever is done to one place of a log that was signed is found, and the first
// event that does not fit is named.
func TestTamperingIsFound(t *testing.T) {
	dir := t.TempDir()
	n := 0
	rapid.Check(t, func(t *rapid.T) {
		n++
		size := rapid.IntRange(2, 70).Draw(t, "size")
		key, log := someLog(size)
		before := hashesOf(t, filepath.Join(dir, fmt.Sprint(n, "-hashes")), log)
		defer before.Close()
		var checkpoints []Checkpoint
		for at := int64(1); at <= int64(size); at++ {
			if at == int64(size) || rapid.IntRange(0, 5).Draw(t, "signed") == 0 {
				c, err := before.At(at)
				if err != nil {
					t.Fatal(err)
				}
				signed, err := c.Sign(key)
				if err != nil {
					t.Fatal(err)
				}
				if c, err = OpenCheckpoint(signed, key.Public); err != nil {
					t.Fatal(err)
				}
				checkpoints = append(checkpoints, c)
			}
		}
		log = slices.Clone(log)
		at := rapid.IntRange(0, size-1).Draw(t, "at")
		what := rapid.SampledFrom([]string{"nothing", "more", "flip", "drop", "close up", "swap", "cut", "subject"}).Draw(t, "what")
		switch what {
		case "nothing":
			at = -1
		case "more":
			_, other := someLog(3)
			for _, m := range other {
				m.Seq += uint64(size)
				log = append(log, m)
			}
			at = -1
		case "flip":
			log[at].Data = bytes.Clone(log[at].Data)
			log[at].Data[rapid.IntRange(0, len(log[at].Data)-1).Draw(t, "byte")] ^= 1 << rapid.IntRange(0, 7).Draw(t, "bit")
		case "drop":
			log = slices.Delete(log, at, at+1)
		case "close up":
			log = slices.Delete(log, at, at+1)
			for i := at; i < len(log); i++ {
				log[i].Seq--
			}
		case "swap":
			other := rapid.IntRange(0, size-1).Filter(func(i int) bool { return i != at }).Draw(t, "other")
			log[at].Data, log[other].Data = log[other].Data, log[at].Data
			log[at].Subject, log[other].Subject = log[other].Subject, log[at].Subject
			at = min(at, other)
		case "cut":
			log = log[:at]
		case "subject":
			log[at].Subject += "x"
		}
		a := auditOf(t, filepath.Join(dir, fmt.Sprint(n, "-audit")), log)
		defer a.Close()
		f, err := a.Compare(checkpoints, before)
		if err != nil {
			t.Fatal(err)
		}
		switch {
		case at < 0 && f != nil:
			t.Fatalf("nothing was changed, and it says %+v", f)
		case at >= 0 && (f == nil || f.Seq != int64(at+1) || f.UpTo != f.Seq):
			t.Fatalf("%s at event %d: it says %+v", what, at+1, f)
		}
		// Without the notary's hashes it is between two checkpoints.
		f, err = a.Compare(checkpoints, nil)
		if err != nil {
			t.Fatal(err)
		}
		if at >= 0 && (f == nil || f.Seq > int64(at+1) || f.UpTo < int64(at+1)) {
			t.Fatalf("%s at event %d: without hashes it says %+v", what, at+1, f)
		}
		for _, c := range checkpoints {
			if at >= 0 && f.Seq <= c.Size && c.Size < f.UpTo {
				t.Fatalf("the checkpoint of %d tells more than %+v", c.Size, f)
			}
		}
	})
}

// Hashes that were changed as well lead nobody astray: the place is told less
// exactly, the fault is found.
func TestTheNotarysHashesAreNotBelieved(t *testing.T) {
	_, log := someLog(40)
	before := hashesOf(t, filepath.Join(t.TempDir(), "hashes"), log)
	defer before.Close()
	c, err := before.At(40)
	if err != nil {
		t.Fatal(err)
	}
	log[17].Data = bytes.Replace(log[17].Data, []byte("reason"), []byte("season"), 1)
	log[17].Data = bytes.Replace(log[17].Data, []byte(`"viewer"`), []byte(`"auditor"`), 1)
	forged := hashesOf(t, filepath.Join(t.TempDir(), "hashes"), log)
	defer forged.Close()
	a := auditOf(t, filepath.Join(t.TempDir(), "audit"), log)
	defer a.Close()
	for name, stored := range map[string]tlog.HashReader{
		"of the changed log": forged,
		// The top is as it was signed, so that only what is below it can tell.
		"of the changed log, below the top": tlog.HashReaderFunc(func(indexes []int64) ([]tlog.Hash, error) {
			if indexes[0] == tlog.StoredHashIndex(5, 0) {
				return before.ReadHashes(indexes)
			}
			return forged.ReadHashes(indexes)
		}),
	} {
		f, err := a.Compare([]Checkpoint{c}, stored)
		if err != nil || f == nil || f.Seq != 1 || f.UpTo != 40 {
			t.Errorf("hashes %s: %+v %v", name, f, err)
		}
	}
}

// A key of the notary leads to those that were signed by it, one by the other, and
// to no other.
func TestKeysFollow(t *testing.T) {
	var keys []*events.SigningKey
	for range 4 {
		k, _, err := events.NewKey(events.KeyNotary)
		if err != nil {
			t.Fatal(err)
		}
		keys = append(keys, k)
	}
	var log []events.Message
	trust := func(r events.Rotation) {
		e := events.New(events.KeyNotary, &events.KeyTrusted{Rotation: r}, events.Origin{Source: "s", Actor: "a"}, time.Unix(0, 0))
		log = append(log, events.Message{Seq: uint64(len(log) + 1), Subject: events.EventSubject(events.AggregateKey, events.KeyNotary), Data: e.Encode()})
	}
	second, err := events.NewRotation(keys[0], keys[1].Public)
	if err != nil {
		t.Fatal(err)
	}
	foreign, err := events.NewRotation(keys[3], keys[2].Public)
	if err != nil {
		t.Fatal(err)
	}
	trust(events.Rotation{Role: events.KeyNotary, Key: keys[0].Public})
	trust(events.Rotation{Role: events.KeyNotary, Key: keys[3].Public})
	trust(foreign)
	trust(second)
	a := auditOf(t, filepath.Join(t.TempDir(), "audit"), log)
	defer a.Close()
	for i, want := range [][]string{{keys[0].Public, keys[1].Public}, {keys[1].Public}, {keys[2].Public}, {keys[3].Public}} {
		if got := a.Keys(keys[i].Public); !slices.Equal(got, want) {
			t.Errorf("key %d leads to %v, want %v", i, got, want)
		}
	}
}

// A file of hashes that ends at any byte opens, and what is made up from the log
// gives the same tree.
func TestHashesAfterACrash(t *testing.T) {
	_, log := someLog(21)
	path := filepath.Join(t.TempDir(), "hashes")
	h := hashesOf(t, path, log)
	want, err := h.At(21)
	if err := errors.Join(err, h.Close()); err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if int64(len(whole)) != tlog.StoredHashCount(21)*tlog.HashSize {
		t.Fatalf("the file has %d bytes", len(whole))
	}
	for end := range len(whole) + 1 {
		if err := os.WriteFile(path, whole[:end], 0o600); err != nil {
			t.Fatal(err)
		}
		h, err := OpenHashes(path)
		if err != nil {
			t.Fatal(err)
		}
		n := h.Size()
		if tlog.StoredHashCount(n)*tlog.HashSize > int64(end) || n < 21 && tlog.StoredHashCount(n+1)*tlog.HashSize <= int64(end) {
			t.Fatalf("%d bytes open with %d leaves", end, n)
		}
		if err := h.Close(); err != nil {
			t.Fatal(err)
		}
		h = hashesOf(t, path, log)
		if got, err := h.At(21); err != nil || got != want {
			t.Fatalf("cut at %d it is %v, want %v (%v)", end, got, want, err)
		}
		if err := h.Close(); err != nil {
			t.Fatal(err)
		}
		if again, err := os.ReadFile(path); err != nil || !bytes.Equal(again, whole) {
			t.Fatalf("cut at %d the file is another one (%v)", end, err)
		}
	}
}

// The layout's counts are tlog's, for any number of leaves.
func TestWholeLeaves(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.Int64Range(0, 1<<40).Draw(t, "n")
		if storedCount(n) != tlog.StoredHashCount(n) {
			t.Fatalf("%d leaves have %d hashes, want %d", n, storedCount(n), tlog.StoredHashCount(n))
		}
		if got := wholeLeaves(storedCount(n)); got != n {
			t.Fatalf("%d hashes are %d leaves, want %d", storedCount(n), got, n)
		}
		if got := wholeLeaves(storedCount(n+1) - 1); got != n {
			t.Fatalf("%d hashes are %d leaves, want %d", storedCount(n+1)-1, got, n)
		}
	})
}

func TestKeptAfterACrash(t *testing.T) {
	key, log := someLog(9)
	dir := t.TempDir()
	h := hashesOf(t, filepath.Join(dir, "hashes"), log)
	defer h.Close()
	path := filepath.Join(dir, "kept", "checkpoints")
	k, err := OpenKept(path)
	if err != nil {
		t.Fatal(err)
	}
	var ends []int64
	var kept []KeptCheckpoint
	for size := int64(2); size <= 9; size += 3 {
		c, err := h.At(size)
		if err != nil {
			t.Fatal(err)
		}
		signed, err := c.Sign(key)
		if err != nil {
			t.Fatal(err)
		}
		one := KeptCheckpoint{Signed: time.Unix(size, 0).UTC(), Checkpoint: string(signed)}
		if err := k.Append(one); err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		kept, ends = append(kept, one), append(ends, info.Size())
	}
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for end := range len(whole) + 1 {
		if err := os.WriteFile(path, whole[:end], 0o600); err != nil {
			t.Fatal(err)
		}
		k, err := OpenKept(path)
		if err != nil {
			t.Fatalf("cut at %d: %v", end, err)
		}
		n, _ := slices.BinarySearch(ends, int64(end+1))
		got, err := k.List(0, 10)
		if err != nil || !slices.Equal(got, kept[:n]) {
			t.Fatalf("cut at %d there are %d: %v", end, len(got), err)
		}
		if n < len(kept) {
			if err := k.Append(kept[n]); err != nil {
				t.Fatal(err)
			}
			if got, err := k.List(2, 10); err != nil || len(got) != n || n > 0 && got[n-1] != kept[n] || *k.Last() != kept[n] {
				t.Fatalf("cut at %d and appended to there are %v: %v", end, got, err)
			}
		}
	}
	// What is wrong otherwise is not passed over.
	if err := os.WriteFile(path, append([]byte("x\n"), whole...), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenKept(path); err == nil {
		t.Error("a damaged file opens")
	}
}

func TestProofs(t *testing.T) {
	key, log := someLog(23)
	other, _, err := events.NewKey(events.KeyNotary)
	if err != nil {
		t.Fatal(err)
	}
	h := hashesOf(t, filepath.Join(t.TempDir(), "hashes"), log)
	defer h.Close()
	for size := int64(1); size <= 23; size++ {
		c, err := h.At(size)
		if err != nil {
			t.Fatal(err)
		}
		signed, err := c.Sign(key)
		if err != nil {
			t.Fatal(err)
		}
		for i := range size {
			hashes, err := tlog.ProveRecord(size, i, h)
			if err != nil {
				t.Fatal(err)
			}
			raw := Proof{Index: i, Event: log[i].Data, Hashes: hashes, Checkpoint: signed}.Encode()
			p, err := ParseProof(raw)
			if err != nil {
				t.Fatal(err)
			}
			if got, err := p.Verify(key.Public); err != nil || got != c || !bytes.Equal(p.Event, log[i].Data) {
				t.Fatalf("event %d of %d: %v %v", i+1, size, got, err)
			}
			if _, err := p.Verify(other.Public); !errors.Is(err, ErrNotSigned) {
				t.Fatal("another key's:", err)
			}
			beyond := p
			beyond.Index += size
			if _, err := beyond.Verify(key.Public); err == nil {
				t.Fatalf("event %d of %d is proven", beyond.Index+1, size)
			}
			p.Event = log[(i+1)%23].Data
			if _, err := p.Verify(key.Public); err == nil {
				t.Fatalf("another event is proven to be event %d of %d", i+1, size)
			}
			if size != 20 || i != 7 {
				continue
			}
			// No change of a single byte leaves a proof of something else.
			for at := range raw {
				changed := bytes.Clone(raw)
				changed[at] ^= 1
				p, err := ParseProof(changed)
				if err == nil {
					_, err = p.Verify(key.Public)
				}
				if err == nil && (p.Index != i || !bytes.Equal(p.Event, log[i].Data)) {
					t.Fatalf("with byte %d changed it proves event %d", at, p.Index+1)
				}
			}
		}
	}
}

func TestCheckpointsAreSignedNotes(t *testing.T) {
	key, log := someLog(4)
	h := hashesOf(t, filepath.Join(t.TempDir(), "hashes"), log)
	defer h.Close()
	c, err := h.At(4)
	if err != nil {
		t.Fatal(err)
	}
	signed, err := c.Sign(key)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := OpenCheckpoint(append(signed, "\u2014 witness.example AAAAAAAA\n"...), key.Public); err != nil {
		t.Error("with a witness's signature:", err)
	}
	for at := range signed {
		changed := bytes.Clone(signed)
		changed[at] ^= 2
		if got, err := OpenCheckpoint(changed, key.Public); err == nil && got != c {
			t.Errorf("byte %d changed: %+v", at, got)
		}
	}
	for _, text := range []string{"", "o\n4\n", "o\n04\n" + c.Root.String() + "\n", "o\n0\n" + c.Root.String() + "\n", "o\n4\nAAAA\n", "\n4\n" + c.Root.String() + "\n"} {
		line, err := key.Sign(text)
		if err != nil {
			continue
		}
		if got, err := OpenCheckpoint([]byte(text+"\n"+line+"\n"), key.Public); err == nil {
			t.Errorf("%q is a checkpoint: %+v", text, got)
		}
	}
}
