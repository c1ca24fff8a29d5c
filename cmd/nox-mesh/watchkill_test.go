package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"noxmesh/events"
	"noxmesh/nodeagent/simnode"
	"noxmesh/projections"
	"noxmesh/projections/client"
	"noxmesh/server"
)

// tool keeps what a bucket says, as a tool would: it stops from time to time and
// goes on in a new process, of which only token and state are left.
type tool struct {
	bucket string

	mu     sync.Mutex
	conn   *client.Conn
	state  map[string]string
	token  client.Token
	starts int
}

func (w *tool) run(ctx context.Context, c *crashRun) error {
	const changesEach = 7
	for ctx.Err() == nil {
		conn, err := client.Dial("tls://"+c.listen, server.OperatorCredsFile(filepath.Join(c.dir, "server")), server.CAFile(filepath.Join(c.dir, "server")))
		if err != nil {
			continue // the server is down just now
		}
		w.mu.Lock()
		w.conn = conn
		w.starts++
		token := w.token
		w.mu.Unlock()
		n := 0
		for ch, err := range client.Watch[json.RawMessage](ctx, conn, w.bucket, token) {
			if ctx.Err() != nil {
				break
			}
			if err != nil {
				conn.Close()
				return err
			}
			w.take(ch)
			if n++; n == changesEach {
				break
			}
		}
		conn.Close()
	}
	return nil
}

func (w *tool) take(ch client.Change[json.RawMessage]) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.token = ch.Token
	switch {
	case ch.Reset:
		clear(w.state)
	case ch.Key == "":
	case ch.Value == nil:
		delete(w.state, ch.Key)
	default:
		w.state[ch.Key] = string(*ch.Value)
	}
}

// drop breaks the connection; the watch makes it again.
func (w *tool) drop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.conn != nil {
		_ = w.conn.NATS().ForceReconnect()
	}
}

// TestWatchMissesNothing: while two rollouts go over a fleet, the server is killed
// and started again, and the connections of the watchers break, over and over. In
// the end each watcher holds exactly what the mesh says.
func TestWatchMissesNothing(t *testing.T) {
	if testing.Short() {
		t.Skip("takes half a minute")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	c := &crashRun{t: t, dir: t.TempDir()}
	c.chooseAddress()
	c.serve(0)
	defer func() { _ = c.server.Process.Kill(); <-c.exited }()
	c.client = c.dial()
	defer c.client.Close()

	tools := map[string]*tool{}
	watching, stop := context.WithCancel(ctx)
	var all sync.WaitGroup
	defer all.Wait()
	defer stop()
	for _, bucket := range projections.Buckets {
		w := &tool{bucket: bucket, state: map[string]string{}}
		tools[bucket] = w
		all.Go(func() {
			if err := w.run(watching, c); err != nil {
				t.Errorf("watching %s: %v", bucket, err)
			}
		})
	}
	written := make(chan error, 1)
	machines := make(chan *simnode.Machine, 3)
	go func() { written <- watchStory(ctx, c, machines) }()
	tick := time.NewTicker(300 * time.Millisecond)
	defer tick.Stop()
	kills := 0
	for i, more := 1, true; more; i++ {
		select {
		case m := <-machines:
			all.Go(func() {
				if err := m.Run(watching); err != nil {
					t.Error(err)
				}
			})
		case err := <-written:
			if err != nil {
				t.Fatal(err)
			}
			more = false
		case <-tick.C:
			for _, w := range tools {
				w.drop()
			}
			if kills < 4 && i%10 == 0 {
				kills++
				_ = c.server.Process.Kill()
				<-c.exited
				c.serve(0)
			}
		}
	}
	var last error
	c.wait(ctx, "the watchers hold what the mesh says", func(ctx context.Context) (bool, error) {
		for _, bucket := range projections.Buckets {
			want, err := saysNow(ctx, c.client, bucket)
			if err != nil {
				return false, err
			}
			w := tools[bucket]
			w.mu.Lock()
			got := map[string]string{}
			for key, v := range w.state {
				got[key] = withoutHeard(v)
			}
			w.mu.Unlock()
			if !maps.Equal(got, want) {
				last = fmt.Errorf("%s holds\n%v\nand the mesh says\n%v", bucket, got, want)
				return false, last
			}
		}
		return true, nil
	})
	for bucket, w := range tools {
		w.mu.Lock()
		t.Logf("%s: %d keys, %d processes", bucket, len(w.state), w.starts)
		if w.starts < 2 {
			t.Errorf("%s was watched by one process", bucket)
		}
		w.mu.Unlock()
	}
	if kills < 2 {
		t.Errorf("the server was killed %d times", kills)
	}
}

// watchStory has three machines, of which one leaves, a rollout that is completed
// and one that halts, with declarations and holds all the while.
func watchStory(ctx context.Context, c *crashRun, machines chan<- *simnode.Machine) error {
	key, err := server.ReadSigningKey(events.KeyRelease, server.ReleaseKeyFile(filepath.Join(c.dir, "server")))
	if err != nil {
		return err
	}
	var first []byte
	for _, v := range []string{"1.0.0", "1.1.0", "1.2.0"} {
		path := filepath.Join(c.dir, events.PackageFile(v, "amd64"))
		f, err := os.Create(path)
		if err != nil {
			return err
		}
		err = errors.Join(simnode.WriteDeb(f, events.HostPackage, v, "amd64", []byte(v)), f.Close())
		if err == nil {
			_, err = c.client.AddRelease(ctx, path, key, false)
		}
		if err != nil {
			return err
		}
		if first == nil {
			if first, err = os.ReadFile(path); err != nil {
				return err
			}
		}
	}
	r, err := c.client.Invite(ctx, server.InviteRequest{Nodes: []string{"a", "b", "c", "gone"}})
	if err != nil {
		return err
	}
	for _, inv := range r.Invites[:3] {
		machines <- c.machine(inv.Node, inv.Token, first)
	}
	if err := patiently(ctx, func() error { return joinNode(ctx, c.client, "gone", filepath.Join(c.dir, "gone")) }); err != nil {
		return err
	}
	content := 0
	write := func() error {
		content++
		spec := fmt.Appendf(nil, `{"mode":"0600","content":"%d"}`, content)
		_, declared := c.client.Declare(ctx, server.DeclareRequest{Node: "gone", Resources: []events.Resource{
			{Type: events.ResourceFile, Name: filepath.Join(c.dir, "file"), Spec: spec}}})
		_, held := c.client.Hold(ctx, "1.0.0", fmt.Sprint("for the ", content, "th time"))
		_, lifted := c.client.Lift(ctx, "1.0.0", "")
		return errors.Join(declared, held, lifted)
	}
	until := func(ok func() (bool, error)) error {
		return patiently(ctx, func() error {
			if err := write(); err != nil {
				return err
			}
			yes, err := ok()
			if err == nil && !yes {
				err = errors.New("it is not so yet")
			}
			return err
		})
	}
	if err := until(func() (bool, error) {
		f, err := c.client.Fleet(ctx)
		n := 0
		for _, v := range f.Nodes {
			if v.Running != "" {
				n++
			}
		}
		return n == 3, err
	}); err != nil {
		return err
	}
	for _, v := range []string{"1.1.0", "1.2.0"} {
		policy := events.Policy{Batches: []string{"2", "100%"}, Window: events.Duration(20 * time.Second),
			Soak: events.Duration(300 * time.Millisecond), Presence: events.Duration(15 * time.Second)}
		if _, err := c.client.StartRollout(ctx, server.StartRequest{Version: v, Policy: policy, Seed: 7}); err != nil {
			return err
		}
		if err := until(func() (bool, error) {
			s, err := c.client.Rollout(ctx, "latest")
			return err == nil && s.State != projections.Running && s.Counts[projections.Waiting] == 0, err
		}); err != nil {
			return err
		}
	}
	_, err = c.client.Decommission(ctx, server.DecommissionRequest{Node: "gone"})
	return err
}

// patiently tries until something is done or ctx ends.
func patiently(ctx context.Context, do func() error) error {
	for {
		err := do()
		if err == nil {
			return nil
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", ctx.Err(), err)
		}
	}
}

// saysNow is what a bucket should hold, by the commands that people give.
func saysNow(ctx context.Context, c *server.Client, bucket string) (map[string]string, error) {
	out := map[string]string{}
	put := func(key string, v any) error {
		raw, err := json.Marshal(v)
		out[key] = withoutHeard(string(raw))
		return err
	}
	switch bucket {
	case projections.BucketFleet:
		f, err := c.Fleet(ctx)
		for _, n := range f.Nodes {
			err = errors.Join(err, put(n.Node, n))
		}
		return out, err
	case projections.BucketRollouts:
		list, err := c.Rollouts(ctx)
		for _, s := range list.Rollouts {
			err = errors.Join(err, put(s.ID, s.RolloutView))
		}
		return out, err
	}
	list, err := c.Releases(ctx)
	for _, v := range list.Releases {
		err = errors.Join(err, put(v.Key(), v))
	}
	return out, err
}

// withoutHeard takes out of a node's view when it was heard last, which may be a
// minute old.
func withoutHeard(view string) string {
	before, after, ok := strings.Cut(view, `"last_heard":"`)
	if !ok {
		return view
	}
	_, after, _ = strings.Cut(after, `",`)
	return before + after
}
