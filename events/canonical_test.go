package events

import (
	"bytes"
	"os"
	"path/filepath"
	"reflect"
	"testing"
)

// logs gives every recorded event there is.
func logs(t testing.TB) (out [][]byte) {
	t.Helper()
	paths, err := filepath.Glob("../testdata/logs/*.jsonl")
	if err != nil || len(paths) == 0 {
		t.Fatalf("recorded logs: %v, %v", paths, err)
	}
	for _, path := range paths {
		raw, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, bytes.Split(bytes.TrimSpace(raw), []byte{'\n'})...)
	}
	return out
}

// TestCanonicalIsUsed: what the mesh writes is read the quick way, and reads as
// it does the long way.
func TestCanonicalIsUsed(t *testing.T) {
	for _, raw := range logs(t) {
		quick, ok := canonical(raw)
		if !ok {
			t.Errorf("not read the quick way: %s", raw)
			continue
		}
		long, err := Decode(raw)
		if err != nil || !reflect.DeepEqual(quick, long) {
			t.Errorf("read as %+v, want %+v, %v", quick, long, err)
		}
	}
}

// FuzzCanonical: a message gives the same record, or an error, whichever way it
// is read.
func FuzzCanonical(f *testing.F) {
	for _, raw := range logs(f) {
		f.Add(raw)
	}
	for _, odd := range []string{
		`{"specversion":"1.0","id":"i","type":"mesh.user.revoked.v1","source":"s","subject":"a","time":"2026-11-29T12:00:00Z","actor":"o","cause":"","data":{},"data":{"reason":"x"}}`,
		`{"specversion":"1.0","id":"i","type":"mesh.user.revoked.v1","source":"s","subject":"a","time":"2026-11-29T12:00:00Z","actor":"o","cause":"c","data":{}}}`,
		`{"specversion":"1.0","id":"i","type":"mesh.user.revoked.v1","source":"s","subject":"a","time":"0001-01-01T00:00:00Z","actor":"o","cause":"c","data":{}}`,
		`{"specversion":"1.0","id":"i\u0041","type":"mesh.user.revoked.v1","source":"s","subject":"a","time":"2026-11-29T12:00:00+02:00","actor":"o","cause":"c","data":{"a":"}}"}}`,
		`{"specversion":"1.0","id":"i","type":"mesh.user.vanished.v1","source":"s","subject":"a","time":"2026-11-29T12:00:00Z","actor":"o","cause":"c","data":{"x":1 2}}`,
	} {
		f.Add([]byte(odd))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		got, gotErr := decodeRecord(Message{Seq: 7, Data: raw})
		want := Record{Seq: 7}
		var wantErr error
		if want.Event, wantErr = Decode(raw); wantErr == nil {
			if _, known := factTypes[want.Event.Type]; known {
				want.fact, wantErr = want.Event.Fact()
			}
		}
		if (gotErr == nil) != (wantErr == nil) {
			t.Fatalf("it gives %v, want %v", gotErr, wantErr)
		}
		if gotErr == nil && !reflect.DeepEqual(got, want) {
			t.Fatalf("it gives\n%+v, want\n%+v", got, want)
		}
	})
}
