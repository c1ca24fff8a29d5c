// Package simulate plays rollouts in virtual time.
//
// A [World] is a mesh and its fleet without a network: a clock that only moves
// when told to, the log with its expected sequences, the stream of heartbeats,
// one or more servers, and nodes that are small state machines. What folds and
// decides in it is the product's own code: package projections and
// [rollout.Plan] and [rollout.Decide]. Nothing of the stager is done again
// here, and it learns nothing but what nodes would have sent.
//
// Guarantees:
//
//  1. The same seed gives the same trace.
//  2. After every event the [Laws] are checked, from the records alone.
//  3. The log refuses what does not follow the sequence it expects, so two
//     servers in one world race as two real ones would.
//
// The fleet of [Run]: 60% amd64, 30% arm64, 10% riscv64; five sites; three
// operating systems with their kernels; 30% laptops. A node beats every 30 s at
// a phase of its own, a server pulses every 10 s. Installs take a log-normal
// time, half of them more than 20 s (sigma 0.7, at most 5 min). A node that
// loses its link in the middle of one starts it anew on return. A version that
// crashes is given up after about 10 s, and one such machine in ten never comes
// back.
//
// Leaving: where a world says that m of the fleet leaves in a window of 10 min,
// a laptop that is there leaves at a rate of 3m a window and a server at m/7,
// so that 30% of laptops and 70% of servers make m. The time until a node
// leaves is exponential. A laptop stays away for a log-normal time with a
// median of 2 h, a server with a median of 5 min (reboots and maintenance);
// sigma is 1 in both. Half of the laptops slept and go on with the same
// process, everything else starts anew. The fleet has lived like that for two
// days when the rollout starts, and the mesh has heard the last 24 hours
// (an hour in the chaos, where every start of a server reads it again).
//
// What is simpler than life: messages between a node and the mesh take no
// time unless a world says so, a package is never damaged, and a node's link
// is either there or not.
package simulate
