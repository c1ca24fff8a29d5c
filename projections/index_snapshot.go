package projections

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// indexFormat begins a snapshot: a name and a version of the layout.
const indexFormat = "noxidx\x00\x01"

// errIndex is what [Index.UnmarshalBinary] says of bytes that are no snapshot of
// an index, or a damaged one: fold the log instead.
var errIndex = errors.New("this is no snapshot of an index")

// MarshalBinary is a snapshot of the index, in little-endian order:
//
//	indexFormat; number of events (8 bytes), of names (4 bytes)
//	each name: length (4 bytes), bytes
//	the columns of names (4 bytes an event), times, ids, causes (8 bytes an event)
//
// It has no checksum: whoever keeps it takes care of that.
func (x *Index) MarshalBinary() ([]byte, error) {
	size := len(indexFormat) + 12
	for _, name := range x.names[1:] {
		size += 4 + len(name)
	}
	size += len(x.times) * bytesPerEvent
	le := binary.LittleEndian
	out := make([]byte, 0, size)
	out = append(out, indexFormat...)
	out = le.AppendUint64(out, x.Seq())
	out = le.AppendUint32(out, uint32(len(x.names)))
	for _, name := range x.names[1:] {
		out = le.AppendUint32(out, uint32(len(name)))
		out = append(out, name...)
	}
	var err error
	for _, col := range x.cols {
		out, err = binary.Append(out, le, col)
	}
	for _, col := range []any{x.times, x.ids, x.causes} {
		if err == nil {
			out, err = binary.Append(out, le, col)
		}
	}
	return out, err
}

const bytesPerEvent = columns*4 + 3*8

// UnmarshalBinary takes a snapshot's state. On an error the index stays as it
// was.
func (x *Index) UnmarshalBinary(raw []byte) error {
	le := binary.LittleEndian
	if len(raw) < len(indexFormat)+12 || string(raw[:len(indexFormat)]) != indexFormat {
		return errIndex
	}
	raw = raw[len(indexFormat):]
	rows, names := le.Uint64(raw), le.Uint32(raw[8:])
	raw = raw[12:]
	// Counts are held against what is there before anything is made of them.
	if names == 0 || uint64(names-1)*4+rows%(1<<40)*bytesPerEvent > uint64(len(raw)) || rows >= 1<<40 {
		return fmt.Errorf("%w: it ends too early", errIndex)
	}
	y := &Index{names: make([]string, 1, names), byName: make(map[string]uint32, names), versions: map[uint32]uint32{}}
	y.byName[""] = 0
	for id := uint32(1); id < names; id++ {
		if len(raw) < 4 || uint64(le.Uint32(raw)) > uint64(len(raw)-4) {
			return fmt.Errorf("%w: it ends too early", errIndex)
		}
		name := string(raw[4 : 4+le.Uint32(raw)])
		raw = raw[4+len(name):]
		if _, twice := y.byName[name]; twice {
			return fmt.Errorf("%w: the name %q is there twice", errIndex, name)
		}
		y.names = append(y.names, name)
		y.byName[name] = id
	}
	if uint64(len(raw)) != rows*bytesPerEvent {
		return fmt.Errorf("%w: %d bytes are left for %d events", errIndex, len(raw), rows)
	}
	take := func(col any, size int) error {
		n, err := binary.Decode(raw, le, col)
		raw = raw[n:]
		if err == nil && n != int(rows)*size {
			err = errIndex
		}
		return err
	}
	for c := range y.cols {
		y.cols[c] = make([]uint32, rows)
		if err := take(y.cols[c], 4); err != nil {
			return err
		}
		for _, id := range y.cols[c] {
			if id >= names {
				return fmt.Errorf("%w: there is no name %d", errIndex, id)
			}
		}
	}
	y.times, y.ids, y.causes = make([]int64, rows), make([]uint64, rows), make([]uint64, rows)
	if err := errors.Join(take(y.times, 8), take(y.ids, 8), take(y.causes, 8)); err != nil {
		return err
	}
	for i := range y.times {
		y.versionOfRollout(i)
	}
	*x = *y
	return nil
}
