package notary

import (
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"

	"noxmesh/events"
)

// Checkpoint says what a log was at one moment.
type Checkpoint struct {
	// Origin names the log, see [Origin].
	Origin string
	// Size is how many events it had: the sequence of the last one.
	Size int64
	Root tlog.Hash
}

// Origin names the log whose first event has this leaf hash. It follows from the
// event's bytes, so it is the same after an export and an import.
func Origin(first tlog.Hash) string { return "nox-mesh/" + hex.EncodeToString(first[:8]) }

// Text is what is signed.
func (c Checkpoint) Text() string {
	return fmt.Sprintf("%s\n%d\n%s\n", c.Origin, c.Size, base64.StdEncoding.EncodeToString(c.Root[:]))
}

// Sign gives the checkpoint as a signed note.
func (c Checkpoint) Sign(key *events.SigningKey) ([]byte, error) {
	line, err := key.Sign(c.Text())
	if err != nil {
		return nil, fmt.Errorf("signing a checkpoint: %w", err)
	}
	return []byte(c.Text() + "\n" + line + "\n"), nil
}

// ErrNotSigned means that none of the keys asked for signed a checkpoint, or that
// the signature is not of this text.
var ErrNotSigned = errors.New("it is not signed by the notary's key")

// OpenCheckpoint checks that one of the keys signed a note, and reads the
// checkpoint in it. Signatures of others, such as witnesses, are passed over.
func OpenCheckpoint(signed []byte, keys ...string) (Checkpoint, error) {
	var verifiers []note.Verifier
	for _, key := range keys {
		if err := events.CheckKey(events.KeyNotary, key); err != nil {
			return Checkpoint{}, err
		}
		v, err := note.NewVerifier(key)
		if err != nil {
			return Checkpoint{}, err
		}
		verifiers = append(verifiers, v)
	}
	n, err := note.Open(signed, note.VerifierList(verifiers...))
	if err != nil {
		return Checkpoint{}, fmt.Errorf("checkpoint: %w (%w)", ErrNotSigned, err)
	}
	return parseCheckpoint(n.Text)
}

// ReadUnchecked reads a checkpoint without looking at who signed it. It is for
// the notary's own file, before the keys are known.
func ReadUnchecked(signed []byte) (Checkpoint, error) {
	text, _, ok := strings.Cut(string(signed), "\n\n")
	if !ok {
		return Checkpoint{}, errors.New("checkpoint: it is no signed note")
	}
	return parseCheckpoint(text + "\n")
}

func parseCheckpoint(text string) (Checkpoint, error) {
	lines := strings.Split(text, "\n")
	if len(lines) < 4 || lines[0] == "" {
		return Checkpoint{}, errors.New("checkpoint: it has not the three lines of one: origin, size, root")
	}
	size, err := strconv.ParseInt(lines[1], 10, 64)
	if err != nil || size < 1 || strconv.FormatInt(size, 10) != lines[1] {
		return Checkpoint{}, fmt.Errorf("checkpoint: %q is no size of a log", events.Printable(lines[1], 40))
	}
	root, err := tlog.ParseHash(lines[2])
	if err != nil {
		return Checkpoint{}, fmt.Errorf("checkpoint: %q is no root", events.Printable(lines[2], 60))
	}
	return Checkpoint{Origin: lines[0], Size: size, Root: root}, nil
}
