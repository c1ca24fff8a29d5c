// Package notary keeps a Merkle tree (RFC 6962, as golang.org/x/mod/sumdb/tlog
// computes it) over the log, and signed checkpoints of it, so that nobody can
// change, remove or reorder what happened without being found out.
//
// Leaf i, counted from 0, is the data, byte for byte, of the message of EVENTS
// with sequence i+1. A [Checkpoint] is a C2SP tlog-checkpoint: origin, size and
// root of the tree as a signed note. A [Proof] is a C2SP tlog-proof: one event,
// its way to the root, and a checkpoint; it needs no mesh to be checked.
//
// The package guarantees:
//
//  1. A log that verifies against a checkpoint has the bytes, and the order, that
//     were signed: any change, hole, swap or cut below its size is found, and with
//     the notary's hashes the first event that does not fit is named.
//  2. [Hashes] is a cache of the log: cut off at any byte it opens with the whole
//     leaves before it, and the rest is made up from the log. Nothing rests on it
//     that was not compared with the root of a checkpoint.
//  3. [Kept] holds each checkpoint that was signed, the newest last; a torn last
//     line is cut off, since whoever asked for it had no answer.
//
// It does not guarantee anything against whoever holds the notary's key: they can
// sign another history. That is why checkpoints are kept elsewhere too
// (docs/operations.md). What came after the last checkpoint is not proven at all.
//
// A server compares at its start the log's end with what it signed and what it had
// read, and does not start on a log that is shorter or differs there: whatever it
// appended would make the damage harder to see. The old bytes it reads again in
// the background, after its start and once a day, and says what does not fit as an
// error; then it goes on. Stopping would repair nothing and take the mesh away,
// and its tree, and so each later checkpoint, still has the hashes of what was
// there before: the damage stays provable, with `nox-mesh log verify`.
package notary
