package projections

import (
	"sort"
	"time"

	"noxmesh/events"
)

// Release is a release that was added, with its place in the log.
type Release struct {
	events.Release
	Added time.Time
	Seq   uint64
	// Held is set while the release is held: nobody is declared it.
	Held      *FactOf[events.ReleaseHeld]
	LiftedSeq uint64 // of the event that lifted the last hold, 0 if none
	LastSeq   uint64 // last event on the release's subject
}

// HeldOf gives the first of some releases that is held, or nil.
func (m *Mesh) HeldOf(releases []events.Release) *Release {
	for _, rel := range releases {
		if r := m.Releases[rel.Key()]; r != nil && r.Held != nil {
			return r
		}
	}
	return nil
}

// ReleasesOf gives the releases of one version, by architecture.
func (m *Mesh) ReleasesOf(version string) []events.Release {
	var out []events.Release
	for _, r := range m.Releases {
		if r.Version == version {
			out = append(out, r.Release)
		}
	}
	sort.Slice(out, func(i, j int) bool { return out[i].Architecture < out[j].Architecture })
	return out
}

// Versions gives the versions there are, the one added last first.
func (m *Mesh) Versions() []string {
	var all []*Release
	for _, r := range m.Releases {
		all = append(all, r)
	}
	sort.Slice(all, func(i, j int) bool { return all[i].Seq > all[j].Seq })
	var out []string
	seen := map[string]bool{}
	for _, r := range all {
		if !seen[r.Version] {
			seen[r.Version] = true
			out = append(out, r.Version)
		}
	}
	return out
}
