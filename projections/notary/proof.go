package notary

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/mod/sumdb/tlog"

	"noxmesh/events"
)

// Proof shows that one event is in the log that a checkpoint is of.
type Proof struct {
	// Index is of the leaf: the event's sequence less one.
	Index int64
	// Event is its data, byte for byte.
	Event []byte
	// Hashes lead from the leaf to the root.
	Hashes tlog.RecordProof
	// Checkpoint is a signed note.
	Checkpoint []byte
}

const proofHeader = "c2sp.org/tlog-proof@v1"

// Encode gives the content of a file in the form of C2SP tlog-proof.
func (p Proof) Encode() []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s\nextra %s\nindex %d\n", proofHeader, base64.StdEncoding.EncodeToString(p.Event), p.Index)
	for _, h := range p.Hashes {
		b.WriteString(base64.StdEncoding.EncodeToString(h[:]) + "\n")
	}
	b.WriteString("\n")
	b.Write(p.Checkpoint)
	return b.Bytes()
}

// ParseProof reads such a file. It checks the form only; see [Proof.Verify].
func ParseProof(raw []byte) (Proof, error) {
	p, err := parseProof(raw)
	if err != nil {
		return Proof{}, fmt.Errorf("this is no proof that nox-mesh log prove made: %w", err)
	}
	return p, nil
}

func parseProof(raw []byte) (p Proof, err error) {
	head, checkpoint, ok := strings.Cut(string(raw), "\n\n")
	if !ok {
		return p, errors.New("there is no checkpoint in it")
	}
	lines := strings.Split(head, "\n")
	if lines[0] != proofHeader {
		return p, fmt.Errorf("its first line is not %q", proofHeader)
	}
	p.Checkpoint = []byte(checkpoint)
	if len(lines) < 3 {
		return p, errors.New("the lines extra and index are missing")
	}
	extra, ok := strings.CutPrefix(lines[1], "extra ")
	if !ok {
		return p, errors.New("it has no line extra with the event")
	}
	if p.Event, err = base64.StdEncoding.Strict().DecodeString(extra); err != nil {
		return p, fmt.Errorf("line extra: %w", err)
	}
	index, _ := strings.CutPrefix(lines[2], "index ")
	if p.Index, err = strconv.ParseInt(index, 10, 64); err != nil || p.Index < 0 || "index "+strconv.FormatInt(p.Index, 10) != lines[2] {
		return p, fmt.Errorf("%q is no line index", events.Printable(lines[2], 40))
	}
	for _, line := range lines[3:] {
		h, err := tlog.ParseHash(line)
		if err != nil {
			return p, fmt.Errorf("%q is no hash", events.Printable(line, 60))
		}
		p.Hashes = append(p.Hashes, h)
	}
	return p, nil
}

// Verify checks that one of the keys signed the checkpoint, and that the event is
// in the log that it is of.
func (p Proof) Verify(keys ...string) (Checkpoint, error) {
	c, err := OpenCheckpoint(p.Checkpoint, keys...)
	if err != nil {
		return Checkpoint{}, err
	}
	if err := tlog.CheckRecord(p.Hashes, c.Size, c.Root, p.Index, tlog.RecordHash(p.Event)); err != nil {
		return Checkpoint{}, fmt.Errorf("this event is not event %d of the log that was signed: %w", p.Index+1, err)
	}
	return c, nil
}
