// Package simnode is a simulated machine for the demo and for tests.
//
// What runs on it is the real agent of package nodeagent: its state directory,
// link, fetching, checks, confirmation, reports and refusals are the product's
// own. Three things are replaced, since they need root and a machine:
//
//   - the package manager: "installing" notes the version that the package's
//     control file names, and runs nothing out of it;
//   - the service manager: [Machine.Run] starts the installed version, gives up
//     after three failed starts, and starts again what exits;
//   - the rollback script, which does here in Go what packaging/ does in sh, on
//     the same files.
//
// A version that [Config.Crashes] names dies before it does anything. Every
// other version behaves as the agent compiled into this program.
package simnode
