// Package rollout decides how a release reaches a fleet, batch by batch.
//
//	           pause, or the link is away
//	running  <---------------------------->  paused
//	   |         resume, or it is back          |
//	   |                                        |
//	   +-------> halted (on evidence) <---------+
//	   |            |        |        |
//	   |            |        |        +--> reverted
//	   |            |        +-----------> aborted
//	   |            +--> running (resumed: the failed retry, or are left out)
//	   v
//	completed (the tail is declared as it is heard again)
//
// docs/stager.md says by which tests it judges, and why those.
//
// [Decide] is a pure function of the folded log and the time. The [Stager] is
// the thin process around it: it appends what Decide wants, with the sequence
// that Decide saw, and decides again when somebody was faster.
//
// Guarantees, in every interleaving of servers, crashes and messages:
//
//  1. Nodes that are declared and not yet judged never exceed the open batch;
//     of the tail, one at a time for every twenty that passed, and one at least.
//  2. Nothing is opened after a halt until an operator resumes it. Nothing but
//     recalls and reverts is declared, either, by a server that has read the halt.
//     What one that lags still declares of a batch opened before is taken back.
//  3. A batch opens only after the last one passed, with at least one node of its
//     stage, or after its halt was resumed.
//  4. A release that never starts exposes exactly the first batch.
//  5. A batch's nodes are in the log before their declarations are; missing
//     declarations are made up for, and none is made twice.
//  6. Windows count listening time: while the mesh was down, or the link was
//     away, they stand still.
//  7. Every member of a cohort has one outcome, so counts add up at each event.
//  8. Nothing of a held release is opened.
//
// What it does not do: act on a node. Nothing here dials anything.
package rollout
