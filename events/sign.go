package events

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
)

// Roles of signing keys.
const (
	KeyDelivery = "delivery" // signs declarations; lives with the mesh
	KeyRelease  = "release"  // signs releases; lives where they are built
)

// Rotation puts a key in the place of another.
type Rotation struct {
	Role string `json:"role"` // [KeyDelivery] or [KeyRelease]
	Key  string `json:"key"`  // verifier key of a signed note, as note.NewVerifier reads it
	// Signature is by the key before it, over [RotationText]; empty for the first.
	Signature string `json:"signature,omitempty"`
}

// The texts that are signed, as signed notes (C2SP signed-note). Each begins
// with what it is, so that a signature is good for one thing only.

// DeclarationText is what the delivery key signs of a declaration.
func DeclarationText(d *Declared) (string, error) {
	raw, err := json.Marshal(d.Resources)
	if err != nil {
		return "", fmt.Errorf("declaration: %w", err)
	}
	sum := sha256.Sum256(raw)
	return signedText("declaration", d.Node, strconv.FormatUint(d.Revision, 10), hex.EncodeToString(sum[:])), nil
}

// ReleaseText is what the release key signs of a release.
func ReleaseText(r Release) string {
	return signedText("release", r.Version, r.Architecture, strconv.FormatInt(r.Size, 10), r.SHA256)
}

// RotationText is what the key before it signs of a rotation.
func RotationText(r Rotation) string { return signedText("key rotation", r.Role, r.Key) }

func signedText(what string, lines ...string) string {
	return "nox-mesh " + what + " v1\n" + strings.Join(lines, "\n") + "\n"
}
