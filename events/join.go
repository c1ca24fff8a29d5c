package events

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"

	"github.com/nats-io/nkeys"
)

// tokenPrefix begins every token, so that a person and a scanner for leaked
// secrets know one. The number is the form of what follows.
const tokenPrefix = "nmj1."

// maxToken bounds a token, in bytes.
const maxToken = 16 << 10

// Token lets one machine join under one name, once. It is a secret.
type Token struct {
	URL    string `json:"u"` // where the mesh is reached
	CA     string `json:"c"` // sha256 of its CA certificate (DER), in hex
	Invite string `json:"i"`
	Seed   string `json:"s"` // nkey of the invite; it opens the joining door only
	JWT    string `json:"j"` // of that nkey
}

// Encode gives the token as people carry it.
func (t Token) Encode() string {
	raw, err := json.Marshal(t)
	if err != nil {
		panic(fmt.Sprintf("events: a token does not marshal: %v", err))
	}
	return tokenPrefix + base64.RawURLEncoding.EncodeToString(raw)
}

// ParseToken reads a token. The error never has the token in it.
func ParseToken(s string) (Token, error) {
	var t Token
	s = strings.TrimSpace(s)
	body, ok := strings.CutPrefix(s, tokenPrefix)
	if !ok {
		return t, fmt.Errorf("this is no token: one begins with %q, as \"nox-mesh node invite\" prints it", tokenPrefix)
	}
	bad := errors.New("the token is damaged: copy it again, all of it")
	if len(s) > maxToken {
		return t, bad
	}
	raw, err := base64.RawURLEncoding.DecodeString(body)
	if err != nil || decodeStrictly(raw, &t) != nil {
		return Token{}, bad
	}
	if seed, err := nkeys.FromSeed([]byte(t.Seed)); err != nil || t.URL == "" || t.JWT == "" ||
		!sha256Form.MatchString(t.CA) || CheckInvite(t.Invite) != nil {
		return Token{}, bad
	} else {
		seed.Wipe()
	}
	return t, nil
}

var inviteForm = regexp.MustCompile(`^[0-9a-z]{8,40}$`)

// CheckInvite refuses what is no id of an invite. Like [CheckNodeID] it guards
// credentials: the broker puts the id into permissions as it is.
func CheckInvite(id string) error {
	if !inviteForm.MatchString(id) {
		return fmt.Errorf("%q is no invite", Printable(id, 40))
	}
	return nil
}

// MaxJoin bounds what a machine may say at the joining door, in bytes.
const MaxJoin = 4 << 10

// JoinRequest is what a machine says at the joining door.
type JoinRequest struct {
	// PublicKey is the machine's own nkey; the seed stays where it was made.
	PublicKey string `json:"public_key"`
	MachineID string `json:"machine_id,omitempty"` // 32 hex digits, if the machine has one
	// Signature is by that nkey, over [JoinText], base64url without padding.
	Signature string `json:"signature"`
}

// JoinText is what the machine's nkey signs, so that it joins with no key but
// its own and with no invite but the one it has.
func JoinText(invite, publicKey, machineID string) string {
	return signedText("join", invite, publicKey, machineID)
}

// SignJoin makes the request of a machine.
func SignJoin(key nkeys.KeyPair, invite, machineID string) (JoinRequest, error) {
	pub, err := key.PublicKey()
	if err != nil {
		return JoinRequest{}, err
	}
	sig, err := key.Sign([]byte(JoinText(invite, pub, machineID)))
	if err != nil {
		return JoinRequest{}, err
	}
	return JoinRequest{PublicKey: pub, MachineID: machineID, Signature: base64.RawURLEncoding.EncodeToString(sig)}, nil
}

var machineIDForm = regexp.MustCompile(`^[0-9a-f]{32}$`)

// DecodeJoin reads a request at the joining door and checks that who sent it
// holds the key that is in it. The error is fit for the record. What else it
// gives is safe to show.
func DecodeJoin(invite string, raw []byte) (JoinRequest, error) {
	var q JoinRequest
	if len(raw) > MaxJoin {
		return q, fmt.Errorf("the request of %d bytes is over the limit of %d", len(raw), MaxJoin)
	}
	if err := decodeStrictly(raw, &q); err != nil {
		return JoinRequest{}, fmt.Errorf("the request does not read: %s", Printable(err.Error(), 200))
	}
	if q.MachineID != "" && !machineIDForm.MatchString(q.MachineID) {
		return JoinRequest{}, errors.New("the machine id is not 32 hex digits")
	}
	if !nkeys.IsValidPublicUserKey(q.PublicKey) {
		return JoinRequest{}, errors.New("the public key is no user's nkey")
	}
	key, err := nkeys.FromPublicKey(q.PublicKey)
	if err != nil {
		return JoinRequest{}, errors.New("the public key is no user's nkey")
	}
	sig, err := base64.RawURLEncoding.DecodeString(q.Signature)
	if err != nil || key.Verify([]byte(JoinText(invite, q.PublicKey, q.MachineID)), sig) != nil {
		return JoinRequest{}, errors.New("the signature is not by the key that wants to join with this invite")
	}
	return q, nil
}

// ReturnRequest is what a node says that comes back. The broker has checked that
// it holds a key of the node by then; which one, only it can say.
type ReturnRequest struct {
	PublicKey string `json:"public_key"`
}

// DecodeReturn reads a request to come back.
func DecodeReturn(raw []byte) (ReturnRequest, error) {
	var q ReturnRequest
	if len(raw) > MaxJoin {
		return q, fmt.Errorf("the request of %d bytes is over the limit of %d", len(raw), MaxJoin)
	}
	if err := decodeStrictly(raw, &q); err != nil {
		return ReturnRequest{}, fmt.Errorf("the request does not read: %s", Printable(err.Error(), 200))
	}
	if !nkeys.IsValidPublicUserKey(q.PublicKey) {
		return ReturnRequest{}, errors.New("the public key is no user's nkey")
	}
	return q, nil
}

// DoorReply is the mesh's answer to a machine that joins, returns or renews.
type DoorReply struct {
	// Refused is a no for good, Error one for now; in words for the machine's
	// log and its people.
	Refused string `json:"refused,omitempty"`
	Error   string `json:"error,omitempty"`

	Invite string `json:"invite,omitempty"` // that is answered, if one is
	Node   string `json:"node,omitempty"`
	// Link is a credential for the link (a user JWT), good for Seconds from now.
	// A machine's clock may be wrong, so it is told how long and not until when.
	Link    string `json:"link,omitempty"`
	Seconds int64  `json:"seconds,omitempty"`
	// Door is a credential for coming back after a long absence, and Pins are
	// the keys to trust. Both are given to who joins.
	Door string `json:"door,omitempty"`
	Pins *Pins  `json:"pins,omitempty"`
}

// maxDoorReply bounds an answer of the door, in bytes.
const maxDoorReply = 64 << 10

// DecodeDoorReply reads an answer. Fields that are not known are ignored: the
// mesh may be newer than the machine.
func DecodeDoorReply(raw []byte) (DoorReply, error) {
	var r DoorReply
	if len(raw) > maxDoorReply {
		return r, fmt.Errorf("the mesh's answer of %d bytes is too long", len(raw))
	}
	if err := json.Unmarshal(raw, &r); err != nil {
		return DoorReply{}, fmt.Errorf("the mesh's answer does not read: %w", err)
	}
	r.Refused, r.Error = Printable(r.Refused, 400), Printable(r.Error, 400)
	return r, nil
}

// decodeStrictly reads one JSON value with no unknown field and nothing behind.
func decodeStrictly(raw []byte, into any) error {
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.DisallowUnknownFields()
	if err := dec.Decode(into); err != nil {
		return err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return errors.New("there is something behind its end")
	}
	return nil
}
