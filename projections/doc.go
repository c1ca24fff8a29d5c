// Package projections folds the log into what people and the stager look at.
//
// [Mesh] is the whole state: the fleet, the rollouts, the releases, and when
// the mesh was listening. It is a pure fold of two streams: [Mesh.ApplyEvent]
// takes EVENTS, [Mesh.ApplyHeartbeat] takes HEARTBEATS. Neither does I/O nor
// reads a clock. [Index] is a fold of EVENTS by which events are found: guarantees
// 1 and 3 are its as well.
//
// Guarantees:
//
//  1. Applying a record twice is the same as applying it once.
//  2. The two streams may be interleaved in any way: the state depends on what
//     was applied, not on which stream was read first.
//  3. Events must come without a gap; a gap is [ErrGap], an integrity alarm.
//  4. What a node sends never makes a fold fail: a heartbeat that does not read
//     is counted against the node that sent it.
//
// [Runner] feeds a Mesh and an [Index] from the broker and hands them out for reading. It
// writes a snapshot of both from time to time and goes on from it at its next
// start. A snapshot saves time and nothing else: without it, or if it is damaged
// or of other streams, the streams are read from their beginning, and if the log
// lacks what is in it, that is [ErrTruncated], an alarm. What another [Version] of
// the folds made is shown until this one has made its own beside it.
package projections
