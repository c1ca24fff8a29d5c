package server

import (
	"context"
	"errors"
	"fmt"

	"noxmesh/events"
	"noxmesh/projections"
)

const (
	cmdKeyList   = "key.list"
	cmdKeyRotate = "key.rotate"
)

// KeyList is the signing keys of all roles, each role's oldest first.
type KeyList struct {
	Keys     []KeyView `json:"keys"`
	EventSeq uint64    `json:"event_seq"`
}

// KeyView is one signing key.
type KeyView struct {
	Role    string `json:"role"`
	Key     string `json:"key"`      // public
	InForce bool   `json:"in_force"` // it signs now
}

// KeyRotateRequest puts another key in the place of one.
type KeyRotateRequest struct {
	Role string `json:"role"`
	// Rotation is signed by the release key in force; the delivery key's is the
	// server's own to make.
	Rotation *events.Rotation `json:"rotation,omitempty"`
	// Releases are known ones, signed anew by the new release key.
	Releases []events.Release `json:"releases,omitempty"`
}

// KeyRotateReply tells what signs now.
type KeyRotateReply struct {
	Key string `json:"key"` // public
	// Unsigned are releases that the key in force has not signed.
	Unsigned []events.Release `json:"unsigned,omitempty"`
	Signed   int              `json:"signed"` // releases signed anew
}

func (a *api) listKeys(context.Context, caller, struct{}) (out KeyList, err error) {
	a.runner.View(func(m *projections.Mesh) {
		out.EventSeq = m.EventSeq
		out.Keys = []KeyView{}
		for _, role := range []string{events.KeyDelivery, events.KeyRelease, events.KeyNotary} {
			for _, r := range m.Keys[role] {
				out.Keys = append(out.Keys, KeyView{Role: role, Key: r.Key, InForce: r.Key == m.Key(role)})
			}
		}
	})
	return out, nil
}

func (a *api) rotateKey(ctx context.Context, by caller, q KeyRotateRequest) (out KeyRotateReply, err error) {
	switch {
	case q.Role == events.KeyDelivery && q.Rotation == nil && len(q.Releases) == 0:
		err = a.signer.rotate(ctx, by)
	case q.Role == events.KeyRelease && q.Rotation != nil:
		out.Signed, err = a.rotateRelease(ctx, by, *q.Rotation, q.Releases)
	default:
		err = fmt.Errorf("say which key to rotate: %s, or %s with what the old key signed", events.KeyDelivery, events.KeyRelease)
	}
	if err != nil {
		return KeyRotateReply{}, err
	}
	a.runner.View(func(m *projections.Mesh) {
		out.Key = m.Key(q.Role)
		for _, version := range m.Versions() {
			for _, r := range m.ReleasesOf(version) {
				if m.Signed(r) != nil {
					out.Unsigned = append(out.Unsigned, r)
				}
			}
		}
	})
	return out, nil
}

// rotateRelease records a new release key and what it has signed. Everything is
// checked before anything is written. The command may be given again after a
// stop between two of its events: what is there already is left alone.
func (a *api) rotateRelease(ctx context.Context, by caller, r events.Rotation, releases []events.Release) (signed int, err error) {
	if r.Role != events.KeyRelease {
		return 0, fmt.Errorf("the rotation is of the %q key and not of the release key", events.Printable(r.Role, 40))
	}
	if err := events.CheckKey(r.Role, r.Key); err != nil {
		return 0, err
	}
	for _, rel := range releases {
		if err := events.VerifyRelease(r.Key, rel); err != nil {
			return 0, fmt.Errorf("release %s for %s is not signed by the new key: %w", rel.Version, rel.Architecture, err)
		}
	}
	_, err = a.append(ctx, by, func(m *projections.Mesh) (string, events.Fact, uint64, error) {
		for _, rel := range releases {
			if have := m.Releases[rel.Key()]; have == nil || have.SHA256 != rel.SHA256 || have.Size != rel.Size {
				return "", nil, 0, fmt.Errorf("release %s for %s is not as the mesh has it now: try again", rel.Version, rel.Architecture)
			}
		}
		now := m.Key(r.Role)
		if now == r.Key {
			return r.Role, nil, 0, nil
		}
		if err := r.Verify(now); err != nil {
			return "", nil, 0, fmt.Errorf("the new release key is not introduced by the one in force, %s: %w: give that one with --sign-key", now, err)
		}
		for _, old := range m.Keys[r.Role] {
			if old.Key == r.Key {
				return "", nil, 0, errors.New("this release key was replaced before: make a new one with --out FILE")
			}
		}
		return r.Role, &events.KeyTrusted{Rotation: r}, m.KeySeq[r.Role], nil
	})
	if err != nil {
		return 0, err
	}
	for _, rel := range releases {
		_, err := a.append(ctx, by, func(m *projections.Mesh) (string, events.Fact, uint64, error) {
			have := m.Releases[rel.Key()]
			if have == nil || have.SHA256 != rel.SHA256 || m.Signed(have.Release) == nil {
				return rel.Key(), nil, 0, nil
			}
			again := have.Release
			again.Signature = rel.Signature
			return rel.Key(), &events.ReleaseAdded{Release: again}, have.LastSeq, nil
		})
		if err != nil {
			return signed, fmt.Errorf("the new release key is in force, and release %s for %s could not be signed anew: %w: give the command again", rel.Version, rel.Architecture, err)
		}
		signed++
	}
	return signed, nil
}

// Keys lists the signing keys.
func (c *Client) Keys(ctx context.Context) (KeyList, error) {
	return ask[KeyList](ctx, c, requestTimeout, cmdKeyList, struct{}{})
}

// RotateDelivery has the server make a new delivery key.
func (c *Client) RotateDelivery(ctx context.Context) (KeyRotateReply, error) {
	return ask[KeyRotateReply](ctx, c, requestTimeout, cmdKeyRotate, KeyRotateRequest{Role: events.KeyDelivery})
}

// RotateRelease puts a release key in the place of the one in force. With
// resign, what the old one has signed is signed by the new one too.
func (c *Client) RotateRelease(ctx context.Context, old, next *events.SigningKey, resign bool) (KeyRotateReply, error) {
	r, err := events.NewRotation(old, next.Public)
	if err != nil {
		return KeyRotateReply{}, err
	}
	q := KeyRotateRequest{Role: events.KeyRelease, Rotation: &r}
	if resign {
		list, err := c.Releases(ctx)
		if err != nil {
			return KeyRotateReply{}, err
		}
		for _, v := range list.Releases {
			// The mesh is not believed: only what the old key signed is signed.
			rel := v.Release
			if events.VerifyRelease(old.Public, rel) != nil {
				continue
			}
			if rel.Signature, err = next.Sign(events.ReleaseText(rel)); err != nil {
				return KeyRotateReply{}, err
			}
			q.Releases = append(q.Releases, rel)
		}
	}
	return ask[KeyRotateReply](ctx, c, commandTimeout, cmdKeyRotate, q)
}
