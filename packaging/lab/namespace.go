package lab

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
)

// namespace is one thread of this process in a mount namespace of its own.
// Mounts made on it are seen by what it starts and by nobody else, and they
// are gone when the thread and all that it started have ended. What it starts
// gets SIGKILL when the thread ends, which is at the latest with the process.
type namespace struct {
	calls chan func()
	once  sync.Once
}

func newNamespace() (*namespace, error) {
	n := &namespace{calls: make(chan func())}
	ready := make(chan error)
	go ownThread(func() {
		err := syscall.Unshare(syscall.CLONE_NEWNS)
		if err == nil {
			err = syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, "")
		}
		ready <- err
		if err != nil {
			return
		}
		for call := range n.calls {
			call()
		}
	})
	if err := <-ready; err != nil {
		return nil, fmt.Errorf("making a mount namespace: %w", err)
	}
	return n, nil
}

// ownThread runs f on a thread that ends with it. The main thread would not
// end, so that one is left to others.
func ownThread(f func()) {
	runtime.LockOSThread() // and never unlock: the thread is not fit for other goroutines
	if syscall.Gettid() != os.Getpid() {
		f()
		return
	}
	locked := make(chan struct{})
	go func() {
		runtime.LockOSThread()
		close(locked)
		f()
	}()
	<-locked
	runtime.UnlockOSThread()
}

// do runs f on the thread.
func (n *namespace) do(f func() error) error {
	done := make(chan error, 1)
	n.calls <- func() { done <- f() }
	return <-done
}

// start starts a command that dies with the lab.
func (n *namespace) start(cmd *exec.Cmd) error {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	cmd.SysProcAttr.Setsid = true // Ctrl-C is for the lab, which then ends this in its own way
	return n.do(cmd.Start)
}

// startApart starts a command as the first process of a process namespace,
// with a mount namespace of its own: when it ends, the kernel ends all that it
// started.
func (n *namespace) startApart(cmd *exec.Cmd) error {
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS}
	return n.start(cmd)
}

// end ends the thread, and with it what it started.
func (n *namespace) end() { n.once.Do(func() { close(n.calls) }) }
