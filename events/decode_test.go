package events_test

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"noxmesh/events"
)

func whole() []byte {
	return events.NewWithID("id", "a", &events.Declared{Node: "a", Revision: 1}, origin, time.Unix(1, 0)).Encode()
}

func TestDecode(t *testing.T) {
	e, err := events.Decode(whole())
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(e.Encode(), whole()) {
		t.Errorf("%s was decoded and encoded to\n%s", whole(), e.Encode())
	}
	newer := bytes.Replace(whole(), []byte(`{"specversion"`), []byte(`{"traceparent":"x","specversion"`), 1)
	if _, err := events.Decode(newer); err != nil {
		t.Error("an attribute of a newer writer:", err)
	}
	replace := func(old, new string) []byte {
		raw := bytes.Replace(whole(), []byte(old), []byte(new), 1)
		if bytes.Equal(raw, whole()) {
			t.Fatalf("%s is not in %s", old, raw)
		}
		return raw
	}
	for name, raw := range map[string][]byte{
		"nothing":              nil,
		"blank":                []byte("  \n"),
		"null":                 []byte("null"),
		"a number":             []byte("1"),
		"a list":               []byte("[]"),
		"an empty object":      []byte("{}"),
		"an acknowledgement":   []byte(`{"stream":"HEARTBEATS","seq":1}`),
		"binary":               {0, 1, 2, 0xff},
		"half":                 whole()[:len(whole())/2],
		"two":                  append(whole(), whole()...),
		"no id":                replace(`"id":"id"`, `"id":""`),
		"no type":              replace(`"type":"mesh.declaration.declared.v1"`, `"type":""`),
		"no source":            replace(`"source":"test"`, `"source":""`),
		"no subject":           replace(`"subject":"a"`, `"subject":""`),
		"no actor":             replace(`"actor":"test"`, `"actor":""`),
		"id is a number":       replace(`"id":"id"`, `"id":1`),
		"other specversion":    replace(`"specversion":"1.0"`, `"specversion":"0.3"`),
		"no time":              replace(`"time":"1970-01-01T00:00:01Z",`, ``),
		"time is none":         replace(`"time":"1970-01-01T00:00:01Z"`, `"time":"yesterday"`),
		"data is null":         []byte(strings.Replace(string(whole()), `"data":{`, `"data":null,"x":{`, 1)),
		"data is a list":       []byte(strings.Replace(string(whole()), `"data":{`, `"data":[],"x":{`, 1)),
		"data is text":         []byte(strings.Replace(string(whole()), `"data":{`, `"data":"{}","x":{`, 1)),
		"data is not there":    []byte(strings.Replace(string(whole()), `"data":{`, `"x":{`, 1)),
		"deep beyond measure":  []byte(strings.Repeat(`{"a":`, 20000)),
		"lists beyond measure": []byte(strings.Repeat(`[`, 20000)),
	} {
		if e, err := events.Decode(raw); !errors.Is(err, events.ErrMalformed) || !reflect.DeepEqual(e, events.Event{}) {
			t.Errorf("%s: %+v %v, want that it is malformed", name, e, err)
		}
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(whole())
	f.Add([]byte(`{}`))
	f.Add([]byte(`{"specversion":"1.0","id":"1","type":"mesh.node.rolled-back.v1","source":"s","subject":"a","time":"2026-01-01T00:00:00Z","actor":"a","data":{"from":"1","to":"2"}}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		e, err := events.Decode(raw)
		if err != nil {
			if !errors.Is(err, events.ErrMalformed) {
				t.Errorf("%v does not say that it is malformed", err)
			}
			return
		}
		again, err := events.Decode(e.Encode())
		if err != nil || !bytes.Equal(e.Encode(), again.Encode()) {
			t.Errorf("%s\nread and written gives\n%s, %v", e.Encode(), again.Encode(), err)
		}
		if fact, err := e.Fact(); err == nil && fact.EventType() != e.Type {
			t.Errorf("type %q gave a fact of type %q", e.Type, fact.EventType())
		}
	})
}

func FuzzDecodeReport(f *testing.F) {
	for _, r := range []events.ReportFact{
		&events.NodeConfirmed{Version: "1.0", StartID: "s"},
		&events.NodeRolledBack{From: "2.0", To: "1.0", Journal: []string{"a line"}},
		&events.NodeRefused{Version: "2.0", Reason: "a reason"},
		&events.NodeFailedToApply{Resource: "file/x", Error: "no space"},
	} {
		report := events.NewReport("id", time.Unix(1, 0), r)
		f.Add(r.ReportKind(), fmt.Appendf(nil, `{"id":%q,"at":"2026-01-01T00:00:00Z","data":%s}`, report.ID, report.Data))
	}
	f.Add("unknown", []byte("{}"))
	f.Fuzz(func(t *testing.T, kind string, raw []byte) {
		r, fact, err := events.DecodeReport(kind, raw)
		if err != nil {
			// It goes into the record as it is.
			if s := err.Error(); len(s) > 400 || !utf8.ValidString(s) || strings.ContainsAny(s, "\n\x00") {
				t.Errorf("the reason is not fit for the record: %q", s)
			}
			return
		}
		if fact.ReportKind() != kind || r.ID == "" {
			t.Errorf("kind %q gave %+v %+v", kind, r, fact)
		}
		// What was accepted must be an event that reads back.
		e := events.New("a", fact, origin, time.Unix(1, 0))
		if _, err := events.Decode(e.Encode()); err != nil {
			t.Error(err)
		}
	})
}

func FuzzDecodeHeartbeat(f *testing.F) {
	f.Add([]byte(`{"at":"2026-01-01T00:00:00Z","start_id":"s","version":"1.0","known_good":"1.0","revision":1,"architecture":"amd64","problems":["a"]}`))
	f.Add([]byte(`{}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		h, err := events.DecodeHeartbeat(raw)
		if err != nil {
			return
		}
		if h.StartID == "" || events.CheckVersion(h.Version) != nil || len(h.Problems) > 20 {
			t.Errorf("%+v passed", h)
		}
		for _, s := range append(h.Problems, h.Architecture, h.OS, h.Kernel) {
			if len(s) > 300 || !utf8.ValidString(s) || strings.ContainsAny(s, "\n\x00\x1b") {
				t.Errorf("%q is not fit to be shown", s)
			}
		}
	})
}
