package nodeagent

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"github.com/rs/zerolog"

	"noxmesh/events"
)

// PackageManager installs a package file.
type PackageManager interface {
	// Install returns when the package is installed or could not be. It must
	// survive the end of the host, which may come at any moment.
	Install(ctx context.Context, file string) error
	// Simulate does all of Install that changes nothing, and says what the
	// package is. The error is [ErrBusy] when it is no finding.
	Simulate(ctx context.Context, file string) (PackageID, error)
	// Mend installs the file if the host's package is half-installed, and says
	// whether it was. The error is [ErrBusy] while somebody else is at work. It
	// survives the end of the host as Install does.
	Mend(ctx context.Context, file string) (mended bool, err error)
}

// PackageID is what a package says that it is.
type PackageID struct{ Name, Version, Architecture string }

// ErrBusy: somebody else uses the package manager; ask again later.
var ErrBusy = errors.New("the package manager is in use by somebody else")

// Supervisor is the service manager that starts the host.
type Supervisor interface {
	// ResetFailed forgets former starts, so that a new version gets all of its
	// own tries.
	ResetFailed(ctx context.Context) error
	// AdoptKit reads changed unit files and starts what looks after upgrades.
	AdoptKit(ctx context.Context) error
}

// Exit is why [Agent.Run] ended.
type Exit int

const (
	// ExitStopped: the context ended.
	ExitStopped Exit = iota
	// ExitUpgraded: another version is installed; the service manager starts it.
	ExitUpgraded
)

// Config is what an [Agent] needs.
type Config struct {
	StateDir  string
	URL       string // of the broker; empty: no link
	CredsFile string // the node's name is in it; renewed before it expires
	// DoorFile is the credential for coming back after CredsFile has expired;
	// empty: there is no way back.
	DoorFile string
	// CAFile holds the CA of the mesh; empty: the link is not encrypted, which
	// is for tests only.
	CAFile string
	// PinsFile holds the keys that declarations and releases are verified by,
	// see [events.Pins]; empty: nothing is verified.
	PinsFile     string
	Version      string // of this program
	Architecture string // Debian's name for it; the machine's if empty
	// PinFile is the apt pin that the rollback script writes; empty: none.
	PinFile string
	// KitDir holds the rescue kit of this version, UnitDir is where its units
	// go; empty, or not there: none.
	KitDir  string
	UnitDir string
	Timings Timings

	Packages   PackageManager
	Supervisor Supervisor
	// FreeSpace gives the free bytes of the file system a directory is on.
	FreeSpace func(dir string) (int64, error)

	Logger zerolog.Logger
	// Ready is called once, after the first full reconcile and its confirmation.
	Ready func()
	// Status hears a line for the service manager to show.
	Status func(line string)
	// Watchdog is called every WatchdogEvery while the agent is not stuck.
	Watchdog      func()
	WatchdogEvery time.Duration

	// afterStep is called after each durable step of a confirmation or an
	// upgrade. An error ends the agent there, as a power cut would.
	afterStep func(step string) error
}

// fill checks the configuration and sets the defaults.
func (c *Config) fill() error {
	if err := events.CheckVersion(c.Version); err != nil {
		return err
	}
	if c.StateDir == "" || c.Packages == nil || c.Supervisor == nil {
		return errors.New("agent: a state directory, a package manager and a supervisor are needed")
	}
	// dpkg is told of files in it, and runs in another directory.
	dir, err := filepath.Abs(c.StateDir)
	if err != nil {
		return fmt.Errorf("state directory: %w", err)
	}
	c.StateDir = dir
	if c.Architecture == "" {
		c.Architecture = DebianArchitecture(runtime.GOARCH)
	}
	if c.FreeSpace == nil {
		c.FreeSpace = freeSpace
	}
	for _, f := range []*func(){&c.Ready, &c.Watchdog} {
		if *f == nil {
			*f = func() {}
		}
	}
	if c.Status == nil {
		c.Status = func(string) {}
	}
	if c.WatchdogEvery <= 0 {
		c.WatchdogEvery = time.Minute
	}
	if c.afterStep == nil {
		c.afterStep = func(string) error { return nil }
	}
	return c.Timings.fill()
}

// Timings of an agent; a zero means the default.
type Timings struct {
	Heartbeat    time.Duration // between heartbeats, ±10 %; 15 s
	Refresh      time.Duration // between looks at the own declaration, ±10 %; 5 min
	Recheck      time.Duration // between full reconciles without a cause, ±10 %; 15 min
	RetryLeast   time.Duration // first pause after a failure, doubling; 5 s
	RetryMost    time.Duration // 10 min
	Reconnect    time.Duration // first pause before a new connection, doubling; 1 s
	ReconnectMax time.Duration // 1 min
	Refused      time.Duration // first pause after the mesh said no, doubling; 1 min
	RefusedMax   time.Duration // 1 h
	RenewFirst   time.Duration // from the first link to the first renewal, at most; 1 min
	Request      time.Duration // one request to the broker; 20 s
	Fetch        time.Duration // one package; 30 min
	Install      time.Duration // one try to install; 10 min
	Reconcile    time.Duration // one reconcile with all that it does; 1 h
	Drill        time.Duration // between drills, ±10 %; 24 h
	DrillFirst   time.Duration // from the start to the first drill, ±10 %; 1 min
	Simulate     time.Duration // one simulated installation; 2 min
}

func (t *Timings) fill() error {
	for _, f := range []struct {
		name string
		d    *time.Duration
		def  time.Duration
	}{
		{"heartbeat", &t.Heartbeat, 15 * time.Second},
		{"refresh", &t.Refresh, 5 * time.Minute},
		{"recheck", &t.Recheck, 15 * time.Minute},
		{"retry", &t.RetryLeast, 5 * time.Second},
		{"retry limit", &t.RetryMost, 10 * time.Minute},
		{"reconnect", &t.Reconnect, time.Second},
		{"reconnect limit", &t.ReconnectMax, time.Minute},
		{"refused", &t.Refused, time.Minute},
		{"refused limit", &t.RefusedMax, time.Hour},
		{"first renewal", &t.RenewFirst, time.Minute},
		{"request", &t.Request, 20 * time.Second},
		{"fetch", &t.Fetch, 30 * time.Minute},
		{"install", &t.Install, 10 * time.Minute},
		{"reconcile", &t.Reconcile, time.Hour},
		{"drill", &t.Drill, 24 * time.Hour},
		{"first drill", &t.DrillFirst, time.Minute},
		{"simulated installation", &t.Simulate, 2 * time.Minute},
	} {
		if *f.d == 0 {
			*f.d = f.def
		}
		if *f.d < 0 {
			return fmt.Errorf("the %s time is negative", f.name)
		}
	}
	return nil
}

// DebianArchitecture is Debian's name for one of Go's architectures.
func DebianArchitecture(goarch string) string {
	names := map[string]string{"386": "i386", "arm": "armhf", "ppc64le": "ppc64el", "mips64le": "mips64el"}
	if name, ok := names[goarch]; ok {
		return name
	}
	return goarch
}

func freeSpace(dir string) (int64, error) {
	var fs syscall.Statfs_t
	if err := syscall.Statfs(dir, &fs); err != nil {
		return 0, err
	}
	return int64(fs.Bavail) * int64(fs.Bsize), nil
}
