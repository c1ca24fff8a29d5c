package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// DefaultDir is where base roots are kept and labs work, unless the environment
// names another directory in NOX_MESH_LAB_DIR. It must be on a real disk: not
// on an overlay, so not in a container's own file system.
const DefaultDir = "/var/cache/nox-mesh-lab"

// slotPrefix begins the names of the directories in which labs work. The rest
// is a number, which also keeps the networks of two labs apart.
const (
	slotPrefix = "lab-"
	slots      = 128
)

func baseDir() string {
	if dir := os.Getenv("NOX_MESH_LAB_DIR"); dir != "" {
		return dir
	}
	return DefaultDir
}

// Lab is a place for machines.
type Lab struct {
	base    string // base roots, and the directories of labs
	dir     string // this lab's own
	slot    int
	begun   time.Time
	ns      *namespace
	reaper  *reaper
	lock    *os.File
	cgroups []string

	say    sync.Mutex
	out    io.Writer
	mu     sync.Mutex
	closed bool
	ends   []func() // of machines and processes, run by Close
	number int      // machines so far
	once   sync.Once
	err    error // of Close
}

// New makes a lab. What happens is told on out, a line at a time. From here on
// SIGINT, SIGTERM and SIGHUP close the lab and end the process.
func New(out io.Writer) (_ *Lab, err error) {
	l := &Lab{base: baseDir(), out: out, begun: time.Now()}
	// The kernel's list of an overlay's layers, and shell scripts, split at these.
	if !filepath.IsAbs(l.base) || strings.ContainsAny(l.base, ",: \\\n") {
		return nil, fmt.Errorf("NOX_MESH_LAB_DIR is %q: give an absolute path of plain letters", l.base)
	}
	if err := os.MkdirAll(l.base, 0o755); err != nil {
		return nil, err
	}
	if err := sweep(l.base); err != nil {
		return nil, err
	}
	if err := l.takeSlot(); err != nil {
		return nil, err
	}
	// From here on there is something to clean up.
	if l.reaper, err = startReaper(l.dir, l.lock); err != nil {
		return nil, errors.Join(err, os.Remove(l.dir), l.lock.Close())
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, l.Close())
		}
	}()
	l.closeOnSignal()
	parents, err := cgroups()
	if err != nil {
		return nil, err
	}
	name := "nox-mesh-" + filepath.Base(l.dir)
	var list []string
	for _, p := range parents {
		list = append(list, filepath.Join(p, name))
	}
	if err := os.WriteFile(filepath.Join(l.dir, "cgroups"), []byte(strings.Join(list, "\n")+"\n"), 0o644); err != nil {
		return nil, err
	}
	if l.cgroups, err = makeCgroups(parents, name); err != nil {
		return nil, err
	}
	if l.ns, err = newNamespace(); err != nil {
		return nil, err
	}
	return l, nil
}

// takeSlot makes and locks a directory that no other lab has.
func (l *Lab) takeSlot() error {
	for l.slot = range slots {
		l.dir = filepath.Join(l.base, slotPrefix+strconv.Itoa(l.slot))
		if err := os.Mkdir(l.dir, 0o755); errors.Is(err, os.ErrExist) {
			continue
		} else if err != nil {
			return err
		}
		lock, taken, err := lockDir(l.dir)
		if taken || errors.Is(err, os.ErrNotExist) {
			continue // another lab's sweep was faster
		}
		l.lock = lock
		return err
	}
	return fmt.Errorf("%d labs work in %s already: wait for one to end", slots, l.base)
}

func (l *Lab) closeOnSignal() {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	l.atEnd(func() { signal.Stop(signals) })
	go func() {
		s := <-signals
		l.Say("lab", "%s: ending all machines and cleaning up", s)
		if err := l.Close(); err != nil {
			fmt.Fprintln(os.Stderr, "lab:", err)
		}
		os.Exit(130)
	}()
}

// Say tells what happens, with the seconds since the lab began.
func (l *Lab) Say(who, format string, args ...any) {
	l.say.Lock()
	defer l.say.Unlock()
	fmt.Fprintf(l.out, "%6.1fs  %-8s %s\n", time.Since(l.begun).Seconds(), who, fmt.Sprintf(format, args...))
}

// Dir makes a directory for files that are gone with the lab.
func (l *Lab) Dir(name string) (string, error) {
	dir := filepath.Join(l.dir, "files", name)
	return dir, os.MkdirAll(dir, 0o755)
}

// errClosed: the lab was closed under a call, most likely by a signal.
var errClosed = errors.New("the lab is closed")

// atEnd runs f when the lab closes, the last first.
func (l *Lab) atEnd(f func()) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closed {
		l.ends = append(l.ends, f)
	}
	return !l.closed
}

// Start starts a program of this machine's. It is killed when the lab ends, so
// one that must end in its own way is ended before.
func (l *Lab) Start(cmd *exec.Cmd) error { return l.start(cmd, l.ns.start) }

func (l *Lab) start(cmd *exec.Cmd, how func(*exec.Cmd) error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return errClosed
	}
	if err := how(cmd); err != nil {
		return fmt.Errorf("starting %s: %w", filepath.Base(cmd.Path), err)
	}
	l.ends = append(l.ends, func() { _ = cmd.Process.Kill() })
	return nil
}

// run runs a program apart from all others to its end.
func (l *Lab) run(ctx context.Context, log io.Writer, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stdout, cmd.Stderr = log, log
	if err := l.start(cmd, l.ns.startApart); err != nil {
		return err
	}
	return cmd.Wait()
}

// Close ends all machines and programs at once and deletes everything but the
// base roots. It may be called again, also at the same time.
func (l *Lab) Close() error {
	l.once.Do(func() {
		l.mu.Lock()
		l.closed = true
		ends := l.ends
		l.mu.Unlock()
		for i := range ends {
			ends[len(ends)-1-i]()
		}
		if l.ns != nil {
			l.ns.end()
		}
		l.err = errors.Join(l.reaper.finish(), l.lock.Close())
	})
	return l.err
}
