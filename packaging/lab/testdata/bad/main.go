// Command bad is a host that goes wrong in the way that its version names after
// the "+": 2.0.0+hang hangs. One with no such way just ends with status 1.
package main

import (
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"
	"time"
	"unsafe"
)

var version string // set by the linker

const state = "/var/lib/mesh-host"

func main() {
	_, way, _ := strings.Cut(version, "+")
	fmt.Fprintf(os.Stderr, "nox-mesh-host: version %s is broken on purpose\n", version)
	switch way {
	case "segfault":
		segfault()
	case "unconfirmed": // ready, never confirmed, and gone after a minute
		tell("READY=1")
		end := time.After(time.Minute)
		for tick := time.NewTicker(5 * time.Second); ; {
			select {
			case <-tick.C:
				tell("WATCHDOG=1")
				continue
			case <-end:
			}
			break
		}
	case "hang":
		select {
		case <-time.After(time.Hour): // a bare select would end as a deadlock
		}
	case "exit0":
		tell("READY=1")
		os.Exit(0)
	case "memory":
		allocate()
	case "late": // time for a test to meddle before the first crash
		<-time.After(8 * time.Second)
	case "fill":
		fill()
	case "spoil": // the former version cannot use the state directory any more
		_ = os.Remove(state + "/lock")
		_ = os.MkdirAll(state+"/lock/in-the-way", 0o755)
	}
	os.Exit(1)
}

func tell(what string) {
	c, err := net.Dial("unixgram", os.Getenv("NOTIFY_SOCKET"))
	if err == nil {
		_, err = c.Write([]byte(what))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "nox-mesh-host:", err)
	}
}

// segfault dies of a real one: Go's own handler of the signal is taken away
// first, which would end the process with status 2.
func segfault() {
	var byDefault [8]uintptr
	_, _, _ = syscall.RawSyscall6(syscall.SYS_RT_SIGACTION, uintptr(syscall.SIGSEGV), uintptr(unsafe.Pointer(&byDefault)), 0, 8, 0, 0)
	var nowhere *int
	*nowhere = 1
}

// allocate takes 2 GiB, which the test has forbidden the machine. Where nobody
// enforces that, it does to itself what the kernel would do.
func allocate() {
	var held [][]byte
	for range 128 {
		b := make([]byte, 16<<20)
		for i := 0; i < len(b); i += 4096 {
			b[i] = 1
		}
		held = append(held, b)
	}
	fmt.Fprintf(os.Stderr, "nox-mesh-host: nobody stops %d MiB: killing myself\n", len(held)*16)
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
}

// fill fills the file system of the state directory.
func fill() {
	f, err := os.Create(state + "/junk")
	block := make([]byte, 64<<10)
	for err == nil {
		_, err = f.Write(block)
	}
	for block = block[:1]; ; {
		if _, err := f.Write(block); err != nil {
			break
		}
	}
	fmt.Fprintln(os.Stderr, "nox-mesh-host:", err)
}
