// Package nodeagent is the host: the part of the mesh that runs on a node.
//
// [Agent.Run] goes one way: load the cached declaration, make one full
// reconcile (offline too), confirm, be ready, open the link, send heartbeats,
// and then follow new declarations until it is told to stop or has installed
// another version of itself.
//
// [Join] comes before it, once: it trades a token for the node's identity.
//
// It guarantees:
//
//  1. Nothing in the state directory, in a declaration or from the broker ends
//     the process. What does not read is set aside as NAME.corrupt or ignored,
//     and shown as a problem.
//  2. Being ready and confirmed never waits for the link, and a resource that
//     fails never stops the others nor the confirmation.
//  3. A declaration is on disk before it is acted on, and its revision only
//     ever rises.
//  4. No other version of the host is installed unless the package of the
//     running, confirmed one is on the machine and whole; and none that this
//     machine rolled back from, unless a later declaration says retry.
//  5. The process may stop between any two steps of a confirmation or an
//     upgrade: the next start comes to the same end.
//  6. A confirmed version leaves on the machine all that its rollback needs:
//     package, scripts and units, where no later package writes. Whether they
//     would do is rehearsed once a day.
//  7. A report is on disk until the broker has acknowledged it. It may be sent
//     twice, then with the same id.
//  8. Once keys are pinned, nothing is acted on but what they signed for this
//     node, and nothing older than what was verified. Keys that a later
//     declaration introduces take the place of the pinned ones for good.
//  9. The machine's key is made here and its seed never leaves. The link is TLS
//     with the mesh that the machine joined, and no other. A join that is cut
//     off leaves the old identity whole, or the new one.
//  10. The machine's clock does not decide whether its credentials are good.
//
// It does not guarantee that a confirmed version works well, only that it
// started and got through a reconcile. It does not recover a version that does
// not start: the service manager does, with the script in packaging/, which
// shares nothing with this package but the state directory. When known-good
// cannot be read there is no going back, whatever packages are retained: the
// record (section 4) wants no guess at a version. Without pinned keys (a machine
// from before there were any) it does not check who wrote a declaration, and
// says so.
package nodeagent
