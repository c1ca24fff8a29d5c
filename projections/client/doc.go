// Package client is what a tool imports to ask a mesh and to follow it: a connection
// ([Dial]), commands ([Ask]), and watches of the fleet, the rollouts and the
// releases ([WatchFleet], [WatchRollouts], [WatchReleases]). It brings neither a
// broker nor the server with it.
//
// A watch guarantees:
//
//  1. Each entity's newest state always arrives, and the last thing that arrives
//     about an entity is what it is. That holds over broken connections and over
//     servers that are stopped, killed and started again.
//  2. States of one entity arrive in the order in which they came about. No
//     change arrives twice from one watch.
//  3. A [Token] is behind what came with it. A watch from it, in another process
//     too, hands over what changed since and nothing else.
//  4. If the mesh cannot go on from a token, a Reset comes first: what is there
//     then arrives as if the watch were new, and what does not arrive is gone.
//  5. CaughtUp comes once all has arrived that was there at the start.
//  6. A watch ends with an error: that of its context, or one that another try
//     would not mend (the credential is let in no more, say). A server that is
//     away is waited for.
//
// Do not assume:
//
//   - that each state arrives. What changes several times in a moment arrives as it
//     is then, and so does what changed while nobody watched. The log has all of
//     them: read that if you need each (nox-mesh log, command log.read).
//   - that a change arrives at once: it takes up to a second, a minute for nothing
//     but that a node was heard again, and longer while thousands change.
//   - any order between entities, or that two of them are of the same moment. EventSeq and
//     HeartbeatSeq say what each one reflects.
//   - that a deletion is of something that arrived before.
package client
