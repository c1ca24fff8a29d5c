// Package lab boots real machines for tests: Debian with its own systemd, dpkg
// and journal, in containers of systemd-nspawn on this machine.
//
// A [Lab] has a base root for each Debian release it is asked for, made once
// with debootstrap. A [Machine] is an overlay over one, so a new one costs a
// second to make and boot and keeps only what it changed.
//
// It guarantees:
//
//  1. Nothing stays behind but the base roots, however the process ends: Ctrl-C,
//     a panic, a test's timeout, kill -9. Mounts are in a mount namespace of the
//     lab's own and processes of a machine in a process namespace of the
//     machine's own, so the kernel ends them with the lab; a small shell, the
//     reaper, outlives it to delete the directories. What even the reaper could
//     not delete (the power went), the next lab does.
//  2. Labs may run at the same time. Each holds a lock on a directory of its own
//     and never touches one that is locked.
//  3. [Machine.Kill] ends all of a machine's processes at one moment, as a power
//     cut does; [Machine.Boot] then starts it on the disk that it left.
//  4. Files are read and written from the outside, through the disk: it works
//     with the machine off, and never through a link that leads out of it.
//  5. Every wait is bounded and says at its end what it still waited for.
//
// It does not guarantee what the machine's kernel would: machines share the
// kernel, the clock and, unless asked, the network of this one. A power cut
// loses no written data, as if all had been synced; nothing is torn.
//
// It needs root, Debian, systemd-nspawn, debootstrap and dpkg-deb ([Prepare]
// installs what is missing), and keeps the base roots in [DefaultDir]. The
// first lab downloads about 60 MB from the mirror that apt uses here.
package lab
