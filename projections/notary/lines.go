package notary

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"

	"noxmesh/events"
)

// ErrTorn means that the last line of an export has no end: its export did not
// come to one.
var ErrTorn = errors.New("the last line is cut off: give the export again, it goes on from there")

// ReadLines hands over the events of an export, which has one a line: line n is
// event n. Their subjects are left empty, since they follow from the events. It
// gives where the last whole line ends, in bytes. An error from fn ends it.
func ReadLines(path string, fn func(events.Message) error) (end int64, err error) {
	file, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer file.Close()
	in := bufio.NewReaderSize(file, 1<<20)
	for seq := uint64(1); ; seq++ {
		line, err := in.ReadBytes('\n')
		switch {
		case errors.Is(err, io.EOF) && len(line) == 0:
			return end, nil
		case errors.Is(err, io.EOF):
			return end, fmt.Errorf("%s, line %d: %w", path, seq, ErrTorn)
		case err != nil:
			return end, err
		}
		if err := fn(events.Message{Seq: seq, Data: bytes.TrimSuffix(line, []byte("\n"))}); err != nil {
			return end, err
		}
		end += int64(len(line))
	}
}
