package events

import (
	"bytes"
	"encoding/json"
	"time"
)

// Reading the whole log is what a start without a snapshot, a rebuild and an
// audit do, and taking events apart is most of that work. Events as [Event.Encode]
// writes them have one form, which is taken apart here without a general decoder;
// everything else is left to [Decode].

// canonical decodes an event that has exactly the form that Encode writes. It
// leaves the data unread: it is JSON only if the fact decodes. ok is false if the
// event has another form, or may have.
func canonical(raw []byte) (e Event, ok bool) {
	at := 0
	// text finds a string without escapes behind the text that must come first.
	text := func(before string) (v [2]int) {
		if !bytes.HasPrefix(raw[at:], []byte(before)) {
			at = len(raw)
			return v
		}
		at += len(before)
		v[0] = at
		for ; at < len(raw); at++ {
			switch c := raw[at]; {
			case c == '"':
				v[1] = at
				return v
			case c < ' ' || c == '\\' || c > '~':
				at = len(raw)
				return [2]int{}
			}
		}
		return [2]int{}
	}
	version := text(`{"specversion":"`)
	id := text(`","id":"`)
	typ := text(`","type":"`)
	source := text(`","source":"`)
	subject := text(`","subject":"`)
	stamp := text(`","time":"`)
	actor := text(`","actor":"`)
	cause := text(`","cause":"`)
	const data = `","data":`
	if !bytes.HasPrefix(raw[at:], []byte(data+"{")) || !bytes.HasSuffix(raw, []byte("}}")) {
		return Event{}, false
	}
	known, isKnown := typeNames[string(raw[typ[0]:typ[1]])]
	var t time.Time
	if !isKnown || !stampForm(raw[stamp[0]:stamp[1]]) || t.UnmarshalText(raw[stamp[0]:stamp[1]]) != nil || t.IsZero() {
		return Event{}, false
	}
	// One string for all of them: most live as long as each other.
	head := string(raw[:at])
	e = Event{
		SpecVersion: SpecVersion, ID: head[id[0]:id[1]], Type: known, Source: head[source[0]:source[1]], Subject: head[subject[0]:subject[1]],
		Time: t, Actor: head[actor[0]:actor[1]], Cause: head[cause[0]:cause[1]], Data: json.RawMessage(raw[at+len(data) : len(raw)-1]),
	}
	if head[version[0]:version[1]] != SpecVersion || e.ID == "" || e.Source == "" || e.Subject == "" || e.Actor == "" {
		return Event{}, false
	}
	return e, true
}

// stampForm says whether a time is written as Encode writes it, in UTC. The standard
// library reads more than that.
func stampForm(b []byte) bool {
	const form = "0000-00-00T00:00:00"
	if len(b) <= len(form) || b[len(b)-1] != 'Z' {
		return false
	}
	for i, c := range b[:len(b)-1] {
		digit := '0' <= c && c <= '9'
		switch {
		case i < len(form) && form[i] != '0':
			if c != form[i] {
				return false
			}
		case i == len(form):
			if c != '.' {
				return false
			}
		case !digit:
			return false
		}
	}
	return true
}

// typeNames are the types that this program knows, each as the one string that
// all its events share.
var typeNames = map[string]string{}
