package projections

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
)

// Buckets of views for tools: key-value buckets of the broker, one key an
// entity. Only the mesh writes them.
const (
	BucketFleet    = "fleet"    // by node: [NodeView]
	BucketRollouts = "rollouts" // by rollout id: [RolloutView]
	BucketReleases = "releases" // by release key: [ReleaseView]
)

// Buckets are all of them.
var Buckets = []string{BucketFleet, BucketRollouts, BucketReleases}

// BucketStream is the stream that holds a bucket.
func BucketStream(bucket string) string { return "KV_" + bucket }

// KeySubject is where one key of a bucket is in its stream.
func KeySubject(bucket, key string) string { return "$KV." + bucket + "." + key }

// Entry is what a bucket holds under a key.
type Entry struct {
	Key     string `json:"key"`
	Version int    `json:"version"` // of the projection, as [Version]
	// EventSeq and HeartbeatSeq are what the value reflects: how far EVENTS and
	// HEARTBEATS had been read when it became what it is.
	EventSeq     uint64 `json:"event_seq"`
	HeartbeatSeq uint64 `json:"heartbeat_seq"`
	// Value is the entity's view, nothing if the entity is gone.
	Value json.RawMessage `json:"value,omitempty"`
}

// Entries gives what some keys of a bucket should hold now. A key without an
// entity gets an entry without a value.
func (m *Mesh) Entries(bucket string, keys []string) []Entry {
	var releases map[string]ReleaseView
	if bucket == BucketReleases {
		releases = map[string]ReleaseView{}
		for _, v := range m.ReleaseViews() {
			releases[v.Key()] = v
		}
	}
	out := make([]Entry, 0, len(keys))
	for _, key := range keys {
		e := Entry{Key: key, Version: Version, EventSeq: m.EventSeq, HeartbeatSeq: m.HeartbeatSeq}
		switch bucket {
		case BucketFleet:
			if n := m.Enrolled(key); n != nil {
				e.Value = encode(n.View())
			}
		case BucketRollouts:
			if r := m.Rollouts[key]; r != nil {
				e.Value = encode(m.RolloutView(r))
			}
		case BucketReleases:
			if v, ok := releases[key]; ok {
				e.Value = encode(v)
			}
		}
		out = append(out, e)
	}
	return out
}

// TouchedKeys are the keys of a bucket that have been touched, in order.
func (m *Mesh) TouchedKeys(bucket string, t Touched) []string {
	var keys []string
	switch {
	case bucket == BucketFleet && t.All:
		keys = slices.AppendSeq(keys, maps.Keys(m.Nodes))
	case bucket == BucketFleet:
		keys = slices.AppendSeq(keys, maps.Keys(t.Nodes))
	case bucket == BucketRollouts && t.All:
		keys = slices.AppendSeq(keys, maps.Keys(m.Rollouts))
	case bucket == BucketRollouts:
		keys = slices.AppendSeq(keys, maps.Keys(t.Rollouts))
	case bucket == BucketReleases && (t.All || t.Releases):
		keys = slices.AppendSeq(keys, maps.Keys(m.Releases))
	}
	slices.Sort(keys)
	return keys
}

func encode(view any) json.RawMessage {
	raw, err := json.Marshal(view)
	if err != nil {
		// Views are plain structs of strings, numbers and times: they marshal.
		panic(fmt.Sprintf("projections: %T does not marshal: %v", view, err))
	}
	return raw
}
