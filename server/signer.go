package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"noxmesh/events"
	"noxmesh/projections"
)

// DeliveryKeyFile holds the key that signs declarations. The server needs it.
func DeliveryKeyFile(dataDir string) string { return filepath.Join(dataDir, "delivery.key") }

// ReleaseKeyFile is where the first start leaves the key that signs releases.
// The server does not need it there, and is safer without.
func ReleaseKeyFile(dataDir string) string { return filepath.Join(dataDir, "release.key") }

// nextKeyFile holds the delivery key that a rotation is about to put in place.
func nextKeyFile(dataDir string) string { return DeliveryKeyFile(dataDir) + ".next" }

// ReadSigningKey reads the key of a role from a file.
func ReadSigningKey(role, file string) (*events.SigningKey, error) {
	raw, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("reading the %s key: %w", role, err)
	}
	key, err := events.ParseSigningKey(role, raw)
	if err != nil {
		return nil, fmt.Errorf("reading the %s key from %s: %w", role, file, err)
	}
	return key, nil
}

// signer holds the delivery key. Whatever appends a declaration to the log of
// this server does it through [signer.seal].
type signer struct {
	dir    string
	log    *events.Log
	runner *projections.Runner
	source string
	logger zerolog.Logger
	// afterStep hears of each step of a rotation. An error ends it there, as
	// the end of the process would.
	afterStep func(step string) error

	// mu is read-locked while a declaration is written and locked while the key
	// is replaced, so that none signed by the old key follows the new one.
	mu  sync.RWMutex
	key *events.SigningKey
}

// start makes the keys of a mesh that has none, and refuses to go on without
// the delivery key that nodes trust. The log must have been read.
func (s *signer) start(ctx context.Context) error {
	for _, role := range []string{events.KeyDelivery, events.KeyRelease, events.KeyNotary} {
		if err := s.first(ctx, role); err != nil {
			return err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.settle()
}

// first makes the first key of a role. The file comes before the event: a stop
// between the two leaves a file that the next start takes.
func (s *signer) first(ctx context.Context, role string) error {
	inForce, expected := s.inForce(role)
	if inForce != "" {
		return nil
	}
	file := filepath.Join(s.dir, role+".key")
	key, err := ReadSigningKey(role, file)
	if errors.Is(err, fs.ErrNotExist) {
		key, err = makeKey(role, file)
	}
	if err != nil {
		return err
	}
	if err := s.trust(ctx, events.Rotation{Role: role, Key: key.Public}, "nox-mesh", "", expected); err != nil {
		return fmt.Errorf("recording the first %s key: %w", role, err)
	}
	s.logger.Info().Str("file", file).Msg("made the " + role + " key")
	if role == events.KeyRelease {
		s.logger.Warn().Str("file", file).
			Msg("move the release key to where releases are built: who has this server and the key can install anything (docs/security.md)")
	}
	return nil
}

func makeKey(role, file string) (*events.SigningKey, error) {
	key, secret, err := events.NewKey(role)
	if err != nil {
		return nil, err
	}
	if err := writeFile(file, secret); err != nil {
		return nil, fmt.Errorf("keeping the %s key: %w", role, err)
	}
	return key, nil
}

// inForce gives the public key of a role that signs now, and the last event on
// the role's subject.
func (s *signer) inForce(role string) (key string, seq uint64) {
	s.runner.View(func(m *projections.Mesh) { key, seq = m.Key(role), m.KeySeq[role] })
	return key, seq
}

// trust appends a key to the chain of its role, and waits until it is folded.
func (s *signer) trust(ctx context.Context, r events.Rotation, actor, cause string, expected uint64) error {
	e := events.New(r.Role, &events.KeyTrusted{Rotation: r}, events.Origin{Source: s.source, Actor: actor, Cause: cause}, time.Now())
	seq, err := s.log.Append(ctx, e, expected)
	if err != nil {
		return err
	}
	return s.runner.WaitEvent(ctx, seq)
}

// settle finds the delivery key that the log says signs now, and puts it in its
// place if a rotation stopped before it did; s.mu is locked.
func (s *signer) settle() error {
	want, _ := s.inForce(events.KeyDelivery)
	file, next := DeliveryKeyFile(s.dir), nextKeyFile(s.dir)
	key, err := ReadSigningKey(events.KeyDelivery, file)
	if err == nil && key.Public == want {
		s.key = key
		return nil
	}
	if key, nextErr := ReadSigningKey(events.KeyDelivery, next); nextErr == nil && key.Public == want {
		if err := s.promote(); err != nil {
			return err
		}
		s.key = key
		return nil
	}
	if err == nil {
		err = fmt.Errorf("%s holds another one", file)
	}
	return fmt.Errorf("the delivery key that the nodes trust, %s, is not here: %w: restore %s from the backup of the data directory. Without it the nodes take nothing from this mesh",
		want, err, file)
}

// promote makes the next delivery key the one in its place.
func (s *signer) promote() error {
	if err := os.Rename(nextKeyFile(s.dir), DeliveryKeyFile(s.dir)); err != nil {
		return fmt.Errorf("putting the new delivery key in its place: %w", err)
	}
	return syncDir(s.dir)
}

// rotate puts a new delivery key in the place of the one that signs. The new
// one is on disk before the log names it, and the old one until it does: a stop
// at any moment leaves the key that the log says. A repeated command is carried
// out once.
func (s *signer) rotate(ctx context.Context, by caller) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.settle(); err != nil {
		return err
	}
	done := false
	var expected uint64
	s.runner.View(func(m *projections.Mesh) {
		done = by.command != "" && m.Commands[by.command] != ""
		expected = m.KeySeq[events.KeyDelivery]
	})
	if done {
		return nil
	}
	// One that is there was made by a rotation whose event did not come about,
	// as far as the log has been read: it may yet.
	next, err := ReadSigningKey(events.KeyDelivery, nextKeyFile(s.dir))
	if err != nil {
		next, err = makeKey(events.KeyDelivery, nextKeyFile(s.dir))
	}
	if err != nil {
		return err
	}
	if err := s.afterStep("made"); err != nil {
		return err
	}
	r, err := events.NewRotation(s.key, next.Public)
	if err != nil {
		return err
	}
	if err := s.trust(ctx, r, by.actor, by.command, expected); err != nil {
		return fmt.Errorf("recording the new delivery key: %w", err)
	}
	if err := s.afterStep("recorded"); err != nil {
		return err
	}
	if err := s.promote(); err != nil {
		return err
	}
	s.key = next
	return s.afterStep("replaced")
}

// seal signs a declaration; other events stay as they are. It is [events.Log]'s
// Seal.
func (s *signer) seal(e *events.Event) (written func(), err error) {
	if e.Type != (*events.Declared)(nil).EventType() {
		return func() {}, nil
	}
	fact, err := e.Fact()
	if err != nil {
		return nil, err
	}
	d := fact.(*events.Declared)
	if err := s.lockKey(); err != nil {
		return nil, err
	}
	s.runner.View(func(m *projections.Mesh) { err = complete(m, d) })
	if err == nil {
		err = sign(s.key, d)
	}
	if err == nil {
		e.Data, err = json.Marshal(d)
	}
	if err != nil {
		s.mu.RUnlock()
		return nil, fmt.Errorf("signing the declaration of %s: %w", d.Node, err)
	}
	return s.mu.RUnlock, nil
}

// lockKey read-locks s.mu with the key that the log says. They differ only
// after a rotation that failed behind its event.
func (s *signer) lockKey() error {
	s.mu.RLock()
	if want, _ := s.inForce(events.KeyDelivery); s.key.Public == want {
		return nil
	}
	s.mu.RUnlock()
	s.mu.Lock()
	err := s.settle()
	s.mu.Unlock()
	if err == nil {
		s.mu.RLock()
	}
	return err
}

// complete puts into a declaration what nodes check it by: the rotations that
// lead to the keys of now, and the newest signatures of the releases it names.
func complete(m *projections.Mesh, d *events.Declared) error {
	d.Rotations = m.Rotations()
	for i, r := range d.Resources {
		if r.Type != events.ResourceHost {
			continue
		}
		var spec events.HostSpec
		if err := events.DecodeSpec(r, &spec); err != nil {
			return err
		}
		spec.Release = newestSignature(m, spec.Release)
		if spec.Fallback != nil {
			fallback := newestSignature(m, *spec.Fallback)
			spec.Fallback = &fallback
			// A node refuses what is not signed as a whole. Without the fallback
			// one that kept its package goes on.
			if m.Signed(fallback) != nil {
				spec.Fallback = nil
			}
		}
		d.Resources[i] = events.ResourceFromSpec(r.Type, r.Name, spec)
	}
	return nil
}

// newestSignature is a release with the signature it has now: it may have been
// signed anew since it was written into a plan or a declaration.
func newestSignature(m *projections.Mesh, r events.Release) events.Release {
	if now := m.Releases[r.Key()]; now != nil && now.SHA256 == r.SHA256 && now.Size == r.Size {
		r.Signature = now.Signature
	}
	return r
}

func sign(key *events.SigningKey, d *events.Declared) error {
	text, err := events.DeclarationText(d)
	if err != nil {
		return err
	}
	d.Signature, err = key.Sign(text)
	return err
}

// hostSigned refuses a host resource that nodes would refuse: its release is
// not signed by the key in force.
func hostSigned(m *projections.Mesh, r events.Resource) error {
	var spec events.HostSpec
	if err := events.DecodeSpec(r, &spec); err != nil {
		return err
	}
	if err := m.Signed(newestSignature(m, spec.Release)); err != nil {
		return fmt.Errorf("the node is declared %s, which it would refuse by the release key in force: %w: sign it with nox-mesh release add FILE.deb --sign-key FILE", spec.Version, err)
	}
	return nil
}
