package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"time"

	"github.com/rs/zerolog"
	"github.com/spf13/cobra"

	"noxmesh/events"
	"noxmesh/nodeagent"
	"noxmesh/nodeagent/simnode"
	"noxmesh/projections"
	"noxmesh/rollout"
	"noxmesh/server"
)

// The versions of the demo's story.
const (
	demoFirst = "1.0.0" // what the machines run
	demoGood  = "1.1.0"
	demoBad   = "1.2.0" // crashes on start
)

// demoTimeout bounds the demo; it takes a third of it.
const demoTimeout = 55 * time.Second

func newDemo() *cobra.Command {
	var (
		asJSON  bool
		verbose bool
		nodes   int
	)
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "See the whole loop on this machine: a good release, then a broken one",
		Long: `Run a mesh and simulated nodes in this process and tell what happens: 1.1.0
reaches all nodes; 1.2.0 crashes on start, and stops after two. Nothing is
installed, nothing is left behind.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if nodes < 3 || nodes > 200 {
				return fmt.Errorf("%d nodes: the demo takes 3 to 200", nodes)
			}
			ctx, cancel := context.WithTimeoutCause(cmd.Context(), demoTimeout,
				fmt.Errorf("the demo did not end within %s: this machine may be too slow for %d nodes, try fewer with --nodes", demoTimeout, nodes))
			defer cancel()
			d := &demo{out: cmd.OutOrStdout(), nodes: nodes, begun: time.Now(), logger: zerolog.Nop()}
			if asJSON {
				d.out = io.Discard
			}
			if verbose {
				d.logger = zerolog.New(zerolog.ConsoleWriter{Out: os.Stderr, NoColor: true}).With().Timestamp().Logger()
			}
			result, err := d.run(ctx)
			if err != nil {
				if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) {
					err = errors.Join(cause, err)
				}
				return err
			}
			if asJSON {
				if err := printJSON(cmd.OutOrStdout(), result); err != nil {
					return err
				}
			}
			return result.check(nodes)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object at the end and no story")
	cmd.Flags().IntVar(&nodes, "nodes", 12, "how many simulated nodes")
	cmd.Flags().BoolVar(&verbose, "verbose", false, "print the programs' own logs to standard error")
	return cmd
}

// demoResult is what --json prints.
type demoResult struct {
	Good demoGoodResult `json:"good"`
	Bad  demoBadResult  `json:"bad"`
}

type demoGoodResult struct {
	Version   string            `json:"version"`
	State     projections.State `json:"state"`
	Declared  int               `json:"declared"`
	Confirmed int               `json:"confirmed"`
}

type demoBadResult struct {
	Version    string            `json:"version"`
	State      projections.State `json:"state"`
	Reason     string            `json:"reason"`
	Declared   int               `json:"declared"`
	RolledBack int               `json:"rolled_back"`
	Untouched  int               `json:"untouched"`
}

// check makes a demo that went another way fail: it is also a test.
func (r demoResult) check(nodes int) error {
	switch {
	case r.Good.State != projections.Completed || r.Good.Confirmed != nodes:
		return fmt.Errorf("the good release ended %s with %d of %d nodes confirmed", r.Good.State, r.Good.Confirmed, nodes)
	case r.Bad.State != projections.Halted || r.Bad.Declared != 2 || r.Bad.RolledBack != 2 || r.Bad.Untouched != nodes-2:
		return fmt.Errorf("the broken release ended %s with %d nodes declared, %d rolled back, %d untouched", r.Bad.State, r.Bad.Declared, r.Bad.RolledBack, r.Bad.Untouched)
	}
	return nil
}

type demo struct {
	out    io.Writer
	nodes  int
	begun  time.Time
	logger zerolog.Logger
	mu     sync.Mutex
}

// say prints a line of the story, with the seconds since the demo began.
func (d *demo) say(who, format string, args ...any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	fmt.Fprintf(d.out, "%5.1fs  %-8s %s\n", time.Since(d.begun).Seconds(), who, fmt.Sprintf(format, args...))
}

func (d *demo) headline(format string, args ...any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	fmt.Fprintf(d.out, "\n"+format+"\n", args...)
}

func (d *demo) run(ctx context.Context) (result demoResult, err error) {
	dir, err := os.MkdirTemp("", "nox-mesh-demo-")
	if err != nil {
		return result, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()

	d.headline(`nox-mesh demo: %d nodes run %s. %s reaches all of them; %s is broken and stops after two.
Real here: the broker with its streams, the log, the stager, each node's agent and its link.
Simulated: the package manager and the service manager of each node, and time is
compressed: heartbeats every %s instead of 15s, a window of %s instead of 10m.`,
		d.nodes, demoFirst, demoGood, demoBad, demoTimings.Heartbeat, demoPolicy.Window)

	data := filepath.Join(dir, "server")
	s, err := server.Start(ctx, server.Config{DataDir: data, Listen: "127.0.0.1:0", PulseInterval: 300 * time.Millisecond, Logger: d.logger})
	if err != nil {
		return result, err
	}
	defer func() { err = errors.Join(err, s.Err(), s.Stop()) }()
	c, err := server.Dial(s.URL(), server.OperatorCredsFile(data), server.CAFile(data))
	if err != nil {
		return result, err
	}
	defer c.Close()

	d.headline("The mesh starts; three releases are added and %d nodes join.", d.nodes)
	key, err := server.ReadSigningKey(events.KeyRelease, server.ReleaseKeyFile(data))
	if err != nil {
		return result, err
	}
	first, err := d.addReleases(ctx, c, dir, key)
	if err != nil {
		return result, err
	}
	stop, err := d.startNodes(ctx, c, dir, first)
	defer func() { err = errors.Join(err, stop()) }()
	if err != nil {
		return result, err
	}
	if err := d.until(ctx, c, "all nodes are heard", func(n projections.NodeView) bool { return n.LastHeard != nil }); err != nil {
		return result, err
	}
	d.say("mesh", "all %d nodes are heard, running %s", d.nodes, demoFirst)

	d.headline("A good release: nox-mesh rollout start %s", demoGood)
	good, err := d.rollOut(ctx, c, demoGood)
	if err != nil {
		return result, err
	}
	result.Good = demoGoodResult{Version: good.Version, State: good.State, Declared: good.Declared, Confirmed: good.Counts[projections.Passed]}

	d.headline("A broken release: nox-mesh rollout start %s", demoBad)
	bad, err := d.rollOut(ctx, c, demoBad)
	if err != nil {
		return result, err
	}
	if bad.State == projections.Halted {
		// The halt came with the first report. Both canaries come back by themselves.
		bad, err = d.settled(ctx, c, bad.ID)
		if err != nil {
			return result, err
		}
	}
	result.Bad = demoBadResult{
		Version: bad.Version, State: bad.State, Reason: bad.Reason, Declared: bad.Declared,
		RolledBack: bad.Counts[projections.Outcome(events.RolledBack)], Untouched: bad.Counts[projections.Undeclared],
	}
	d.headline("The report that the person on call finds: nox-mesh rollout status %s\n", bad.ID)
	printStatus(d.out, bad)
	fleet, err := c.Fleet(ctx)
	if err != nil {
		return result, err
	}
	on := map[string]int{}
	for _, n := range fleet.Nodes {
		on[n.Running]++
	}
	d.headline("All %d nodes run again: %d on %s, %d on %s. The bad release cost two nodes a restart.",
		d.nodes, on[demoGood], demoGood, on[demoBad], demoBad)
	return result, nil
}

var (
	demoTimings = nodeagent.Timings{Heartbeat: 300 * time.Millisecond}
	demoPolicy  = events.Policy{
		Batches: []string{"2", "25%", "100%"},
		Window:  events.Duration(15 * time.Second), Soak: events.Duration(time.Second), Presence: events.Duration(2 * time.Second),
	}
)

// addReleases makes the packages and brings them; it gives the first one's file.
func (d *demo) addReleases(ctx context.Context, c *server.Client, dir string, key *events.SigningKey) ([]byte, error) {
	var first []byte
	for _, v := range []string{demoFirst, demoGood, demoBad} {
		path := filepath.Join(dir, events.PackageFile(v, nodeagent.DebianArchitecture(runtime.GOARCH)))
		f, err := os.Create(path)
		if err != nil {
			return nil, err
		}
		err = simnode.WriteDeb(f, events.HostPackage, v, nodeagent.DebianArchitecture(runtime.GOARCH), []byte("simulated "+v+"\n"))
		if err := errors.Join(err, f.Close()); err != nil {
			return nil, err
		}
		r, err := c.AddRelease(ctx, path, key, false)
		if err != nil {
			return nil, err
		}
		d.say("mesh", "release %s added, sha256 %.12s...", v, r.Release.SHA256)
		if first == nil {
			if first, err = os.ReadFile(path); err != nil {
				return nil, err
			}
		}
	}
	return first, nil
}

// startNodes invites the nodes and starts their machines, which join. The function returned
// stops them; it is never nil.
func (d *demo) startNodes(ctx context.Context, c *server.Client, dir string, first []byte) (stop func() error, err error) {
	ctx, cancel := context.WithCancel(ctx)
	var (
		machines sync.WaitGroup
		mu       sync.Mutex
		failed   error
	)
	stop = func() error {
		cancel()
		machines.Wait()
		return failed
	}
	sites := []string{"ams", "fra", "lon"}
	for i := range d.nodes {
		name := fmt.Sprintf("node-%02d", i+1)
		r, err := c.Invite(ctx, server.InviteRequest{Nodes: []string{name}, Labels: map[string]string{"site": sites[i%len(sites)]}})
		if err != nil {
			return stop, err
		}
		disk := filepath.Join(dir, name)
		if err := os.Mkdir(disk, 0o700); err != nil {
			return stop, err
		}
		quiet := true // the first start of each machine is not news
		m, err := simnode.New(simnode.Config{
			Dir: disk, Token: r.Invites[0].Token, Version: demoFirst, Package: first,
			Timings: demoTimings, RestartDelay: time.Second, InstallDelay: 200 * time.Millisecond,
			Crashes: func(v string) bool { return v == demoBad },
			Logger:  d.logger.With().Str("node", name).Logger(),
			Event: func(line string) {
				if !quiet {
					d.say(name, "%s", line)
				} else if line == "version "+demoFirst+" is confirmed" {
					quiet = false
				}
			},
		})
		if err != nil {
			return stop, err
		}
		machines.Go(func() {
			if err := m.Run(ctx); err != nil {
				mu.Lock()
				failed = errors.Join(failed, err)
				mu.Unlock()
			}
		})
	}
	return stop, nil
}

// rollOut starts a rollout and follows it until it ends.
func (d *demo) rollOut(ctx context.Context, c *server.Client, version string) (*rollout.Status, error) {
	s, err := c.StartRollout(ctx, server.StartRequest{Version: version, Policy: demoPolicy})
	if err != nil {
		return nil, err
	}
	watching, stop := context.WithCancel(ctx)
	defer stop()
	go d.sayWhoFallsSilent(watching, c, version)
	err = c.ReadLog(ctx, server.LogRequest{Rollout: s.ID}, true,
		func(rec events.Record) error {
			fact, err := rec.Event.Fact()
			if err != nil {
				return err
			}
			switch f := fact.(type) {
			case *events.RolloutStarted:
				d.say("mesh", "rollout %s of %s over %d nodes in batches %v", s.ID, version, len(f.Cohort), f.Policy.Batches)
			case *events.BatchOpened:
				d.say("mesh", "batch %d is declared: %s", f.Batch, cut(fmt.Sprint(f.Nodes), 70))
			case *events.BatchPassed:
				d.say("mesh", "batch %d passed: all %d heard on %s", f.Batch, len(f.Passed), version)
			case *events.RolloutHalted:
				d.say("mesh", "HALTED: %s", f.Reason)
				return errEnded
			case *events.RolloutCompleted:
				d.say("mesh", "COMPLETED: %d nodes confirmed on %s", f.Passed, version)
				return errEnded
			}
			return nil
		})
	if !errors.Is(err, errEnded) {
		return nil, err
	}
	return c.Rollout(ctx, s.ID)
}

// sayWhoFallsSilent tells what the mesh sees of a node that crashes: nothing.
func (d *demo) sayWhoFallsSilent(ctx context.Context, c *server.Client, version string) {
	const long = 4 // heartbeats
	silent := map[string]bool{}
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		f, err := c.Fleet(ctx)
		if err != nil {
			return // the story goes on without it
		}
		for _, n := range f.Nodes {
			if n.Declared == version && n.LastHeard != nil && time.Since(*n.LastHeard) > long*demoTimings.Heartbeat && !silent[n.Node] {
				silent[n.Node] = true
				d.say("mesh", "%s has fallen silent after it was told to run %s", n.Node, version)
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

var errEnded = errors.New("ended")

// settled waits until every canary has said what became of it.
func (d *demo) settled(ctx context.Context, c *server.Client, id string) (*rollout.Status, error) {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		s, err := c.Rollout(ctx, id)
		if err != nil {
			return nil, err
		}
		if s.Counts[projections.Outcome(events.RolledBack)] == s.Declared {
			return s, d.until(ctx, c, "the canaries are back", func(n projections.NodeView) bool { return n.Running == demoGood })
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil, fmt.Errorf("waiting for the canaries' reports: %w", ctx.Err())
		}
	}
}

// until waits for something to be true of every node.
func (d *demo) until(ctx context.Context, c *server.Client, what string, ok func(projections.NodeView) bool) error {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		f, err := c.Fleet(ctx)
		if err != nil {
			return err
		}
		yes := 0
		for _, n := range f.Nodes {
			if ok(n) {
				yes++
			}
		}
		if yes == d.nodes {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("waiting until %s (%d of %d): %w", what, yes, d.nodes, ctx.Err())
		}
	}
}
