// Package events defines what happens in a mesh and the log that keeps it.
//
// An [Event] is a CloudEvents 1.0 JSON object in structured mode, one a
// message, so that a raw view of the stream and an exported line are complete.
// Facts are in the past tense and their data types are in facts.go. Fields are
// only ever added; a change of meaning is a new version of the type.
//
// The package guarantees:
//
//  1. [Decode] never panics, and returns an event only if it is whole: all
//     attributes present, a known shape, data that is a JSON object.
//  2. [Log.Append] writes an event once or not at all. It carries the sequence
//     the writer expects to be the last on the event's subject, so of two
//     writers who decided on the same state one gets [ErrConflict]. After a
//     timeout it looks at the log before it tries again.
//  3. Every event of one aggregate is on one subject, so its order is total.
//
// It does not guarantee that an event's time orders it: sequence numbers do.
// Messages of nodes (heartbeats and reports) are claims, not events; their
// types are in messages.go, and the mesh turns the ones it accepts into events.
package events
