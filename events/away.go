package events

import "time"

// NodeAway: the node is heard again after a time in which the mesh listened and
// heard nothing of it. Heartbeats age out; this stays.
type NodeAway struct {
	From time.Time `json:"from"` // last heartbeat before, broker's clock
	To   time.Time `json:"to"`   // first heartbeat after
	// FromHeartbeat and ToHeartbeat are the sequences of those two.
	FromHeartbeat uint64 `json:"from_heartbeat"`
	ToHeartbeat   uint64 `json:"to_heartbeat"`
	// Listened is for how much of that time the mesh was listening.
	Listened Duration `json:"listened"`
}

func (*NodeAway) EventType() string { return "mesh.node.away.v1" }
func (*NodeAway) aggregate() string { return AggregateNode }
