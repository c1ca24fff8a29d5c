package projections

import (
	"encoding/gob"
	"fmt"
	"io"
)

// stored is a Mesh as it is written: declarations that several members refer to
// are in it once.
type stored struct {
	Mesh         *Mesh
	Declarations []*Declaration
}

// Encode writes the whole state, see [DecodeMesh].
func (m *Mesh) Encode(w io.Writer) error {
	s := stored{Mesh: m}
	seen := map[uint64]bool{}
	for _, r := range m.Rollouts {
		for _, member := range r.Members {
			if b := member.before; b != nil && !seen[b.Seq] {
				seen[b.Seq] = true
				s.Declarations = append(s.Declarations, b)
			}
		}
	}
	if err := gob.NewEncoder(w).Encode(&s); err != nil {
		return fmt.Errorf("writing the folded state: %w", err)
	}
	return nil
}

// DecodeMesh reads what [Mesh.Encode] wrote. The result goes on where that one
// was.
func DecodeMesh(r io.Reader) (*Mesh, error) {
	s := stored{Mesh: NewMesh()}
	if err := gob.NewDecoder(r).Decode(&s); err != nil {
		return nil, fmt.Errorf("reading the folded state: %w", err)
	}
	bySeq := make(map[uint64]*Declaration, len(s.Declarations))
	for _, d := range s.Declarations {
		bySeq[d.Seq] = d
	}
	for _, rollout := range s.Mesh.Rollouts {
		for _, member := range rollout.Members {
			member.before = bySeq[member.BeforeSeq]
		}
	}
	return s.Mesh, nil
}
