package projections

import (
	"slices"
	"testing"
	"time"

	"noxmesh/events"
)

// The mesh knows the keys of all roles; nodes are told of those that they pin.
func TestNodesAreToldOfTheirKeysOnly(t *testing.T) {
	m := NewMesh()
	var want []events.Rotation
	seq := uint64(0)
	for _, role := range []string{events.KeyDelivery, events.KeyRelease, events.KeyNotary} {
		first, _, err := events.NewKey(role)
		if err != nil {
			t.Fatal(err)
		}
		second, _, err := events.NewKey(role)
		if err != nil {
			t.Fatal(err)
		}
		r, err := events.NewRotation(first, second.Public)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range []events.Rotation{{Role: role, Key: first.Public}, r} {
			seq++
			e := events.New(role, &events.KeyTrusted{Rotation: r}, events.Origin{Source: "s", Actor: "a"}, time.Unix(0, 0))
			if err := m.ApplyEvent(events.Record{Seq: seq, Event: e}); err != nil {
				t.Fatal(err)
			}
		}
		if m.Key(role) != second.Public {
			t.Errorf("the %s key is %s, want %s", role, m.Key(role), second.Public)
		}
		if role != events.KeyNotary {
			want = append(want, r)
		}
	}
	if got := m.Rotations(); !slices.Equal(got, want) {
		t.Errorf("nodes get %v, want %v", got, want)
	}
}
