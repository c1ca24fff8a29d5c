package events

// A type whose meaning changed has a number more, and what was written before is
// turned into today's when it is read: whoever folds the log knows today's only.
// The stored event stays what it is.

// upcaster is the data of a type that is no longer written.
type upcaster interface {
	Fact
	// upcast gives what a writer of today would have said.
	upcast() Fact
}

// batchOpenedV1 is from when each stage of a plan had one batch, and the number of
// the batch was that of the stage; version 0.2 already named the stage of those
// that were not the same. Since v2 a batch has both, as a stage may take several.
type batchOpenedV1 struct {
	Batch    int      `json:"batch"`
	Stage    int      `json:"stage,omitempty"` // the batch's number if it is not there
	Nodes    []string `json:"nodes"`
	Presence []uint64 `json:"presence"`
	Retry    bool     `json:"retry,omitempty"`
	Tail     bool     `json:"tail,omitempty"`
	AsOf     Position `json:"as_of,omitzero"`
}

func (*batchOpenedV1) EventType() string { return "mesh.rollout.batch-opened.v1" }
func (*batchOpenedV1) aggregate() string { return AggregateRollout }

func (b *batchOpenedV1) upcast() Fact {
	now := BatchOpened(*b)
	if now.Stage == 0 {
		now.Stage = now.Batch
	}
	return &now
}
