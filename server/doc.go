// Package server is the control plane: the broker, who may do what on it, the
// streams that keep what happens, and what stands between nodes, operators and
// the log.
//
// Broker ([StartBroker]) is nats-server in this process. It guarantees:
//
//  1. An acknowledged write to any stream but HEARTBEATS is on the disk.
//     HEARTBEATS is written behind: the last ones may be lost with the power.
//
//  2. One server at a time uses a data directory; a second one is refused.
//
//  3. It does not start over data that it could not read back whole. A stream
//     that is on the disk and does not load is an error, never an empty stream.
//
//  4. It speaks TLS 1.3 and nothing else, but for the connection inside this
//     process. It makes its CA once, whole or not at all; one that is damaged is
//     an error, since no node trusts another.
//
// The door lets a machine in that holds an invite and proves its key, each
// invite once; gives linked nodes their next credential; and takes back those
// that were away for longer than theirs lives. Who is not let in is told why, and
// that is recorded, at most once a minute a node. The guard has the broker refuse
// the keys that the log says are not let in any more, and keeps them for the
// next start: of nodes and people that were revoked or decommissioned, and those
// that a newer one has replaced.
//
// Streams ([EnsureStreams]) are created once and afterwards only compared. A
// stream that is not what it must be is an error that names each difference:
// it may have been changed to let somebody rewrite the log, and quietly putting
// it right would hide that. An absent log beside streams that came from it is
// refused for the same reason.
//
// Identity ([LoadOrCreateIdentity]) signs credentials. What somebody may do is in
// the template of a scoped signing key, so a credential carries no rights of its
// own and changing a template changes it for all. Nobody from outside is in the
// account of the streams: nodes, people and those at the joining door have
// accounts of their own, which share with it only the subjects that they need. A
// client chooses the subject that the answer to its request goes to, no permission
// is checked for that, and in one account it could aim the broker's answers into
// the log (see roles.go). A revoked key is refused from the first moment of a
// start, and disconnected at once while the broker runs ([Broker.Revoke]).
//
// People and tools have one of three [Roles]; which commands a role may give is
// one table (people.go), and the broker enforces it. The last operator cannot be
// revoked.
//
// Packages ([ReadDeb], [CheckPackage]) come from people, so they are read with
// suspicion: a file is a release only when all of it is there and reads to its
// end, and a stored package counts only when it was read back.
//
// The notary keeps a Merkle tree over the log and signs checkpoints of it; see
// package notary. A server does not start on a log that is shorter than what it
// signed or read, or that ends otherwise. [Client.Export] and [Import] take the log
// out and bring it back under the same sequences; an import writes nothing before
// the whole file is verified, and nothing that is not the file's.
//
// Intake, API and wiring turn nodes' reports into events, answer operators, and
// start and stop all of it in order.
//
// What it does not guarantee: that a node's claims are true (only that they are
// that node's), that a node's inbox and declaration subject carry nothing but
// what the mesh sent (a receiver checks whom an event is about), or that an
// operator with a credential cannot do harm.
package server
