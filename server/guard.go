package server

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"noxmesh/projections"
)

// guard has the broker refuse the keys that the log says are not let in any
// more. The log alone decides; the file in the data directory has the same, so
// that a starting broker refuses them before the log is read.
type guard struct {
	file   string
	broker *Broker
	runner *projections.Runner
	logger zerolog.Logger

	mu      sync.Mutex
	seq     uint64 // [projections.Mesh.AccessSeq] that is applied
	applied RevokedKeys
}

// RevokedFile is where a server keeps the keys that it lets in no more.
func RevokedFile(dataDir string) string { return filepath.Join(dataDir, "revoked.json") }

// loadRevoked reads the keys that were revoked when the server stopped. Without
// the file they are refused as soon as the log is read.
func loadRevoked(dataDir string, logger zerolog.Logger) RevokedKeys {
	var keys RevokedKeys
	raw, err := os.ReadFile(RevokedFile(dataDir))
	if errors.Is(err, fs.ErrNotExist) {
		return keys
	}
	if err == nil {
		err = json.Unmarshal(raw, &keys)
	}
	if err != nil {
		logger.Warn().Err(err).Str("file", RevokedFile(dataDir)).Msg("the revoked keys do not read: they are refused once the log is read")
		return RevokedKeys{}
	}
	return keys
}

// run applies each change until ctx ends.
func (g *guard) run(ctx context.Context) error {
	for {
		changed := g.runner.Changed()
		if err := g.apply(); err != nil {
			return err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// apply brings the broker to what the fold says, and returns when whoever is
// revoked is disconnected.
func (g *guard) apply() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	var (
		keys RevokedKeys
		seq  uint64
	)
	g.runner.View(func(m *projections.Mesh) {
		if seq = m.AccessSeq; seq != g.seq {
			keys = revokedKeys(m, g.applied, time.Now().UTC())
		}
	})
	if seq == g.seq {
		return nil
	}
	if g.seq != 0 && keys.equal(g.applied) { // a machine joined under a new name, say
		g.seq = seq
		return nil
	}
	if err := g.broker.Revoke(keys); err != nil {
		return err
	}
	raw, err := json.MarshalIndent(keys, "", "  ")
	if err == nil {
		err = writeFile(g.file, append(raw, '\n'))
	}
	if err != nil {
		g.logger.Error().Err(err).Msg("the revoked keys could not be kept for the next start, which refuses them once it has read the log")
	}
	g.seq, g.applied = seq, keys
	return nil
}

func (k RevokedKeys) equal(other RevokedKeys) bool {
	same := func(a, b time.Time) bool { return a.Equal(b) }
	return maps.EqualFunc(k.Nodes, other.Nodes, same) && maps.EqualFunc(k.Door, other.Door, same) && maps.EqualFunc(k.People, other.People, same)
}

// revokedKeys are the keys that are not let in any more: those that a machine
// joined with before, those of nodes that were revoked or decommissioned, and
// all of revoked people. A node's key is shut out at the door, too, once its
// holder was told there. Keys that were revoked before keep their time.
func revokedKeys(m *projections.Mesh, before RevokedKeys, now time.Time) RevokedKeys {
	keys := RevokedKeys{Nodes: map[string]time.Time{}, Door: map[string]time.Time{}, People: map[string]time.Time{}}
	add := func(to, old map[string]time.Time, list ...string) {
		for _, key := range list {
			to[key] = now
			if at, ok := old[key]; ok {
				to[key] = at
			}
		}
	}
	for _, n := range m.Nodes {
		add(keys.Nodes, before.Nodes, n.FormerKeys...)
		if n.Revoked && n.PublicKey != "" {
			add(keys.Nodes, before.Nodes, n.PublicKey)
		}
		add(keys.Door, before.Door, n.Told...)
	}
	for _, u := range m.Users {
		add(keys.People, before.People, u.Former...)
		if u.Revoked {
			add(keys.People, before.People, u.PublicKey)
		}
	}
	return keys
}
