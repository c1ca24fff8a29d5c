package nodeagent

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	"noxmesh/events"
)

// trust is what a node checks declarations by: the keys it pinned, and the
// newest declaration that it verified.
type trust struct {
	// Joined are the keys that the node pinned when it joined, Pins the ones
	// that their rotations led to. Only Pins are trusted.
	Joined events.Pins `json:"joined"`
	Pins   events.Pins `json:"pins"`
	Node   string      `json:"node"`
	// Revision is the highest that was verified, 0 before the first; Sum is the
	// sha256 of the text that was signed.
	Revision uint64 `json:"revision"`
	Sum      string `json:"sum,omitempty"`
}

// trustIn gives what a node trusts that finds certain keys pinned: what it came
// to trust from them before, or else those keys and nothing more. Other keys or
// another name mean that the machine joined anew; with no name known (no
// credentials yet) it is the one of before.
func trustIn(pins events.Pins, node string, before trust) trust {
	if (node == "" || before.Node == node) && (before.Joined == pins || before.Pins == pins) {
		before.Joined = pins
		return before
	}
	return trust{Joined: pins, Pins: pins, Node: node}
}

// verify checks a declaration and gives what is trusted once it is accepted.
// A declaration that was verified before is accepted again. It reads all that a
// node would install; a host resource that does not read is not installed, and
// its handler says so.
func (t trust) verify(d *events.Declared) (trust, error) {
	if d.Node != t.Node {
		return t, fmt.Errorf("it is for node %q and this is %q", events.Printable(d.Node, 63), t.Node)
	}
	var err error
	next := t
	if next.Pins.Delivery, err = events.FollowRotations(events.KeyDelivery, t.Pins.Delivery, d.Rotations); err != nil {
		return t, err
	}
	if next.Pins.Release, err = events.FollowRotations(events.KeyRelease, t.Pins.Release, d.Rotations); err != nil {
		return t, err
	}
	if err := events.VerifyDeclaration(next.Pins.Delivery, d); err != nil {
		return t, fmt.Errorf("%w (the delivery key of this mesh is %s)", err, next.Pins.Delivery)
	}
	text, err := events.DeclarationText(d)
	if err != nil {
		return t, err
	}
	sum := sha256.Sum256([]byte(text))
	next.Revision, next.Sum = d.Revision, hex.EncodeToString(sum[:])
	switch {
	case d.Revision < t.Revision:
		return t, fmt.Errorf("it is a replay: revision %d was verified here before", t.Revision)
	case d.Revision == t.Revision && next.Sum != t.Sum:
		return t, fmt.Errorf("another declaration with this revision was verified here before")
	}
	for _, r := range d.Resources {
		if r.Type != events.ResourceHost {
			continue
		}
		var spec events.HostSpec
		if events.DecodeSpec(r, &spec) != nil {
			continue
		}
		if err := next.releases(spec); err != nil {
			return t, err
		}
	}
	return next, nil
}

// releases checks that the release key signed all that a host resource may have
// the node install.
func (t trust) releases(spec events.HostSpec) error {
	if err := events.VerifyRelease(t.Pins.Release, spec.Release); err != nil {
		return fmt.Errorf("version %s is refused: %w (the release key of this mesh is %s)", events.Printable(spec.Version, 128), err, t.Pins.Release)
	}
	if f := spec.Fallback; f != nil {
		if err := events.VerifyRelease(t.Pins.Release, *f); err != nil {
			return fmt.Errorf("version %s, to fall back to, is refused: %w (the release key of this mesh is %s)", events.Printable(f.Version, 128), err, t.Pins.Release)
		}
	}
	return nil
}
