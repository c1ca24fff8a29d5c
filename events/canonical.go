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
	rest := raw
	// text takes a string without escapes behind the text that must come first.
	text := func(before string) []byte {
		if !bytes.HasPrefix(rest, []byte(before)) {
			rest = nil
			return nil
		}
		rest = rest[len(before):]
		for i, c := range rest {
			switch {
			case c == '"':
				v := rest[:i]
				rest = rest[i:]
				return v
			case c < ' ' || c == '\\' || c > '~':
				rest = nil
				return nil
			}
		}
		rest = nil
		return nil
	}
	version := text(`{"specversion":"`)
	id := text(`","id":"`)
	typ := text(`","type":"`)
	source := text(`","source":"`)
	subject := text(`","subject":"`)
	at := text(`","time":"`)
	actor := text(`","actor":"`)
	cause := text(`","cause":"`)
	const data = `","data":`
	known, isKnown := typeNames[string(typ)]
	if string(version) != SpecVersion || !isKnown || len(id) == 0 || len(source) == 0 || len(subject) == 0 || len(actor) == 0 ||
		!bytes.HasPrefix(rest, []byte(data+"{")) || !bytes.HasSuffix(rest, []byte("}}")) {
		return Event{}, false
	}
	var t time.Time
	if t.UnmarshalText(at) != nil || t.IsZero() {
		return Event{}, false
	}
	return Event{
		SpecVersion: SpecVersion, ID: string(id), Type: known, Source: string(source), Subject: string(subject),
		Time: t, Actor: string(actor), Cause: string(cause), Data: json.RawMessage(rest[len(data) : len(rest)-1]),
	}, true
}

// typeNames are the types that this program knows, each as the one string that
// all its events share.
var typeNames = map[string]string{}
