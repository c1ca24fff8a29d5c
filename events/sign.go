package events

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"

	"golang.org/x/mod/sumdb/note"
)

// Roles of signing keys.
const (
	KeyDelivery = "delivery" // signs declarations; lives with the mesh
	KeyRelease  = "release"  // signs releases; lives where they are built
	KeyNotary   = "notary"   // signs checkpoints of the log; lives with the mesh, and no node needs it
)

// Rotation puts a key in the place of another.
type Rotation struct {
	Role string `json:"role"` // [KeyDelivery], [KeyRelease] or [KeyNotary]
	Key  string `json:"key"`  // verifier key of a signed note, as note.NewVerifier reads it
	// Signature is by the key before it, over [RotationText]; empty for the first.
	Signature string `json:"signature,omitempty"`
}

// The texts that are signed, as signed notes (C2SP signed-note). Each begins
// with what it is, so that a signature is good for one thing only. What a text
// holds must have been validated: no field may bring lines of its own.

// DeclarationText is what the delivery key signs of a declaration. What is not
// in it (why and by whom it was declared) is for people, and nothing on a node
// may depend on it.
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

// keyName is the name in keys of a role and in their signatures, so that a key
// of one role is never taken for one of the other.
func keyName(role string) string { return "nox-mesh-" + role }

// CheckKey refuses what is no verifier key of a role, written the one way.
func CheckKey(role, key string) error {
	if role != KeyDelivery && role != KeyRelease && role != KeyNotary {
		return fmt.Errorf("%q is no role of a key: there are %s, %s and %s", Printable(role, 40), KeyDelivery, KeyRelease, KeyNotary)
	}
	v, err := note.NewVerifier(key)
	if err != nil {
		return fmt.Errorf("%q is no public key of a signed note: %w", Printable(key, 120), err)
	}
	if v.Name() != keyName(role) {
		return fmt.Errorf("key %q is no %s key: its name is not %s", Printable(key, 120), role, keyName(role))
	}
	_, encoded, _ := strings.Cut(strings.TrimPrefix(key, v.Name()+"+"), "+")
	raw, err := base64.StdEncoding.Strict().DecodeString(encoded)
	if err != nil {
		return fmt.Errorf("%s key: %w", role, err)
	}
	if again, err := note.NewEd25519VerifierKey(v.Name(), raw[1:]); err != nil || again != key {
		return fmt.Errorf("%s key %q is not written as keys are", role, Printable(key, 120))
	}
	return nil
}

// SigningKey signs for one role. It is a secret.
type SigningKey struct {
	Role string
	// Public is the verifier key that belongs to it.
	Public string
	signer note.Signer
}

// NewKey makes a key of a role and gives it as it is kept in a file, too.
func NewKey(role string) (key *SigningKey, file []byte, err error) {
	secret, _, err := note.GenerateKey(rand.Reader, keyName(role))
	if err != nil {
		return nil, nil, fmt.Errorf("making a %s key: %w", role, err)
	}
	file = []byte(secret + "\n")
	key, err = ParseSigningKey(role, file)
	return key, file, err
}

// ParseSigningKey reads a key of a role as [NewKey] wrote it. No error shows
// what was read.
func ParseSigningKey(role string, file []byte) (*SigningKey, error) {
	secret := strings.TrimSpace(string(file))
	signer, err := note.NewSigner(secret)
	if err != nil {
		return nil, fmt.Errorf("this is no %s key: %w", role, err)
	}
	if signer.Name() != keyName(role) {
		return nil, fmt.Errorf("this is no %s key: its name is %q and not %s", role, Printable(signer.Name(), 60), keyName(role))
	}
	// Its form was checked above: PRIVATE+KEY+name+hash+base64 of algorithm and seed.
	raw, err := base64.StdEncoding.DecodeString(strings.SplitN(secret, "+", 5)[4])
	if err != nil || len(raw) != 1+ed25519.SeedSize {
		return nil, fmt.Errorf("this is no %s key: it does not decode", role)
	}
	public, err := note.NewEd25519VerifierKey(signer.Name(), ed25519.NewKeyFromSeed(raw[1:]).Public().(ed25519.PublicKey))
	if err != nil {
		return nil, fmt.Errorf("this is no %s key: %w", role, err)
	}
	return &SigningKey{Role: role, Public: public, signer: signer}, CheckKey(role, public)
}

// Sign gives the signature line of a text, see [VerifySignature].
func (k *SigningKey) Sign(text string) (string, error) {
	signed, err := note.Sign(&note.Note{Text: text}, k.signer)
	if err != nil {
		return "", fmt.Errorf("signing with the %s key: %w", k.Role, err)
	}
	return strings.TrimSuffix(strings.TrimPrefix(string(signed), text+"\n"), "\n"), nil
}

// Why a signature is not taken.
var (
	ErrUnsigned     = errors.New("it is not signed")
	ErrOtherKey     = errors.New("it is signed by another key")
	ErrBadSignature = errors.New("the signature does not belong to it")
)

// VerifySignature checks a signature over a text: it is the one signature line
// of the signed note that has this text. The error is one of [ErrUnsigned],
// [ErrOtherKey] and [ErrBadSignature], or says that the key itself is none.
func VerifySignature(role, key, text, signature string) error {
	if err := CheckKey(role, key); err != nil {
		return err
	}
	if signature == "" {
		return ErrUnsigned
	}
	if strings.ContainsRune(signature, '\n') {
		return ErrBadSignature
	}
	v, err := note.NewVerifier(key)
	if err != nil {
		return err
	}
	n, err := note.Open([]byte(text+"\n"+signature+"\n"), note.VerifierList(v))
	var other *note.UnverifiedNoteError
	switch {
	case errors.As(err, &other):
		return ErrOtherKey
	case err != nil || n.Text != text:
		return ErrBadSignature
	}
	return nil
}

// VerifyDeclaration checks that a declaration is signed by a delivery key.
func VerifyDeclaration(key string, d *Declared) error {
	if err := CheckNodeID(d.Node); err != nil {
		return err
	}
	text, err := DeclarationText(d)
	if err != nil {
		return err
	}
	return VerifySignature(KeyDelivery, key, text, d.Signature)
}

// VerifyRelease checks that a release is signed by a release key.
func VerifyRelease(key string, r Release) error {
	if err := r.Validate(); err != nil {
		return err
	}
	return VerifySignature(KeyRelease, key, ReleaseText(r), r.Signature)
}

// NewRotation puts another key in the place of one, signed by it.
func NewRotation(old *SigningKey, key string) (Rotation, error) {
	r := Rotation{Role: old.Role, Key: key}
	if err := CheckKey(r.Role, r.Key); err != nil {
		return r, err
	}
	var err error
	r.Signature, err = old.Sign(RotationText(r))
	return r, err
}

// Verify checks that a rotation is signed by the key before it.
func (r Rotation) Verify(before string) error {
	if err := CheckKey(r.Role, r.Key); err != nil {
		return err
	}
	return VerifySignature(r.Role, before, RotationText(r), r.Signature)
}

// FollowRotations gives the key of a role that a chain of rotations leads to
// from a pinned one. The chain may begin before the pinned key, which then was
// the result of a rotation itself; each one after it must be signed by the one
// before. Rotations of other roles are passed over.
func FollowRotations(role, pinned string, chain []Rotation) (string, error) {
	if err := CheckKey(role, pinned); err != nil {
		return "", err
	}
	from := 0
	for i, r := range chain {
		if r.Role == role && r.Key == pinned {
			from = i + 1
		}
	}
	key := pinned
	for _, r := range chain[from:] {
		if r.Role != role {
			continue
		}
		if err := r.Verify(key); err != nil {
			return "", fmt.Errorf("the rotation to %s key %.40q is not one: %w", role, r.Key, err)
		}
		key = r.Key
	}
	return key, nil
}

// Pins are the keys that a node trusts, since it joined or since it followed
// their rotations.
type Pins struct {
	Delivery string `json:"delivery"` // verifier keys
	Release  string `json:"release"`
}

// Validate checks the form of both keys.
func (p Pins) Validate() error {
	return errors.Join(CheckKey(KeyDelivery, p.Delivery), CheckKey(KeyRelease, p.Release))
}

// Encode gives the content of a file of pins.
func (p Pins) Encode() []byte {
	raw, err := json.MarshalIndent(p, "", "  ")
	if err != nil {
		panic(fmt.Sprintf("events: pins do not marshal: %v", err))
	}
	return append(raw, '\n')
}

// ErrNoPins: there is no file of pins, so the node never joined.
var ErrNoPins = errors.New("no keys are pinned")

// maxPins bounds a file of pins, in bytes.
const maxPins = 16 << 10

// LoadPins reads and checks a file of pins. A file that is not there is
// [ErrNoPins]; one that is damaged is another error, and no licence to trust.
func LoadPins(file string) (Pins, error) {
	info, err := os.Stat(file)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return Pins{}, ErrNoPins
	case err == nil && (!info.Mode().IsRegular() || info.Size() > maxPins):
		err = errors.New("it is no small regular file")
	}
	var p Pins
	if err == nil {
		var raw []byte
		if raw, err = os.ReadFile(file); err == nil {
			if err = json.Unmarshal(raw, &p); err == nil {
				err = p.Validate()
			}
		}
	}
	if err != nil {
		return Pins{}, fmt.Errorf("the pinned keys at %s do not read: %w: join again with nox-mesh-host join TOKEN", file, err)
	}
	return p, nil
}
