package events

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	jsonv2 "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/uuid"
)

// SpecVersion is the CloudEvents version every event carries.
const SpecVersion = "1.0"

// Event is one immutable fact. It is a CloudEvents 1.0 object with two
// extension attributes, actor and cause.
type Event struct {
	SpecVersion string `json:"specversion"`
	// ID is a UUIDv7, or a name-based UUID where one intent must lead to one
	// event however often it is carried out (see [DerivedID]).
	ID string `json:"id"`
	// Type is mesh.<aggregate>.<fact>.v<n>.
	Type string `json:"type"`
	// Source names the program that wrote the event.
	Source string `json:"source"`
	// Subject is the aggregate's own id: a node, a rollout or a release key.
	Subject string `json:"subject"`
	// Time is the mesh's clock, in UTC. It informs; sequences decide.
	Time time.Time `json:"time"`
	// Actor is who made it happen: an operator's name, "stager" or "intake".
	Actor string `json:"actor"`
	// Cause is the id of the event, command or report that led to this one.
	Cause string          `json:"cause"`
	Data  json.RawMessage `json:"data"`
}

// Origin says who writes an event and why; it fills source, actor and cause.
type Origin struct {
	Source, Actor, Cause string
}

// New makes an event about one aggregate. The data's type decides the event's
// type. The id is a fresh UUIDv7.
func New(subject string, data Fact, o Origin, now time.Time) Event {
	return NewWithID(newID(), subject, data, o, now)
}

// NewWithID is [New] with a given id, for events that repeat an intent.
func NewWithID(id, subject string, data Fact, o Origin, now time.Time) Event {
	raw, err := json.Marshal(data)
	if err != nil {
		// Facts are plain structs of strings, numbers and times: they marshal.
		panic(fmt.Sprintf("events: %T does not marshal: %v", data, err))
	}
	return Event{
		SpecVersion: SpecVersion,
		ID:          id,
		Type:        data.EventType(),
		Source:      o.Source,
		Subject:     subject,
		Time:        now.UTC().Truncate(time.Microsecond),
		Actor:       o.Actor,
		Cause:       o.Cause,
		Data:        raw,
	}
}

// idSpace is the name space of derived ids.
var idSpace = uuid.MustParse("6f1d3c52-0e5e-4b7c-9a41-0d2f6a6c0059")

// DerivedID is the id of an event that follows from an intent: the same parts
// give the same id, so a repeated effect is recognised as the same one.
func DerivedID(parts ...string) string {
	raw, _ := json.Marshal(parts) // unambiguous: ["a","bc"] is not ["ab","c"]
	return uuid.NewSHA1(idSpace, raw).String()
}

func newID() string {
	id, err := uuid.NewV7()
	if err != nil {
		panic(fmt.Sprintf("events: no randomness for an id: %v", err))
	}
	return id.String()
}

// ErrMalformed is wrapped by every error of [Decode].
var ErrMalformed = errors.New("malformed event")

// Encode gives the bytes of one message.
func (e Event) Encode() []byte {
	raw, err := json.Marshal(e)
	if err != nil {
		panic(fmt.Sprintf("events: event %s does not marshal: %v", e.ID, err))
	}
	return raw
}

// asEver reads what the first versions read and wrote into logs that must fold for
// ever: a name twice in what an operator gave, of which the last one counts, and
// text that is no Unicode.
var asEver = jsonv2.JoinOptions(jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))

// span is where a value is in what is decoded.
type span struct{ from, to int64 }

func (s *span) UnmarshalJSONFrom(d *jsontext.Decoder) error {
	v, err := d.ReadValue()
	s.to = d.InputOffset()
	s.from = s.to - int64(len(v))
	return err
}

// Decode reads one message. Unknown attributes are kept out of the way, not
// refused: they may be a newer writer's.
func Decode(raw []byte) (Event, error) {
	e, err := decode(raw)
	e.Data = bytes.Clone(e.Data)
	return e, err
}

// decode is [Decode] without a copy: the event's data is a part of raw, which must
// not change any more.
func decode(raw []byte) (Event, error) {
	var in struct {
		Event
		Data span `json:"data"`
	}
	if err := jsonv2.Unmarshal(raw, &in, asEver); err != nil {
		return Event{}, fmt.Errorf("%w: %v", ErrMalformed, err)
	}
	e := in.Event
	e.Data = json.RawMessage(raw[in.Data.from:in.Data.to:in.Data.to])
	for _, a := range []struct{ name, value string }{
		{"id", e.ID}, {"type", e.Type}, {"source", e.Source}, {"subject", e.Subject}, {"actor", e.Actor},
	} {
		if a.value == "" {
			return Event{}, fmt.Errorf("%w: attribute %q is missing", ErrMalformed, a.name)
		}
	}
	if e.SpecVersion != SpecVersion {
		return Event{}, fmt.Errorf("%w: specversion is %q, want %q", ErrMalformed, e.SpecVersion, SpecVersion)
	}
	if e.Time.IsZero() {
		return Event{}, fmt.Errorf("%w: attribute %q is missing", ErrMalformed, "time")
	}
	if d := bytes.TrimSpace(e.Data); len(d) == 0 || d[0] != '{' {
		return Event{}, fmt.Errorf("%w: data is not a JSON object", ErrMalformed)
	}
	return e, nil
}

// ErrUnknownType is returned by [Event.Fact] for a type this program does not
// know, which is what a newer writer's event looks like.
var ErrUnknownType = errors.New("unknown event type")

// Fact decodes the event's data into the type that belongs to it. Data of a type
// that is no longer written comes as the one that took its place.
func (e Event) Fact() (Fact, error) {
	make, ok := factTypes[e.Type]
	if !ok {
		return nil, fmt.Errorf("event %s: %w %q", e.ID, ErrUnknownType, e.Type)
	}
	f := make()
	if err := jsonv2.Unmarshal(e.Data, f, asEver); err != nil {
		return nil, fmt.Errorf("event %s: %w: data of %s: %v", e.ID, ErrMalformed, e.Type, err)
	}
	if old, ok := f.(upcaster); ok {
		return old.upcast(), nil
	}
	return f, nil
}

// Subject of the stream that the event belongs on. It follows from the type
// and the aggregate's id.
func (e Event) StreamSubject() (string, error) {
	f, ok := factTypes[e.Type]
	if !ok {
		return "", fmt.Errorf("event %s: %w %q", e.ID, ErrUnknownType, e.Type)
	}
	return EventSubject(f().aggregate(), e.Subject), nil
}
