// Package rollout decides how a release reaches a fleet, batch by batch.
//
//	             +---------- batch passed, nodes left ----------+
//	             v                                              |
//	started -> running -> batch open -> every node judged ------+--> completed
//	                          |
//	                          +--> more failures than tolerated --> halted --> aborted
//
// [Decide] is a pure function of the folded log and the time. The [Stager] is
// the thin process around it: it appends what Decide wants, with the sequence
// that Decide saw, and decides again when somebody was faster.
//
// Guarantees, in every interleaving of servers, crashes and messages:
//
//  1. Nodes that are declared and not yet judged never exceed the open batch.
//  2. Nothing but recalls is declared after a halt.
//  3. A batch opens only after the last one passed.
//  4. A release that never starts exposes exactly the first batch.
//  5. A batch's nodes are in the log before their declarations are; missing
//     declarations are made up for, and none is made twice.
//  6. Windows count listening time: while the mesh was down, they stand still.
//
// What it does not do: act on a node. Nothing here dials anything.
package rollout
