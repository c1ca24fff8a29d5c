package nodeagent

import (
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nkeys"

	"noxmesh/events"
	"noxmesh/events/anchor"
)

// Names in a node's configuration directory.
const (
	fileNodeCreds   = "node.creds"  // for the link
	fileDoorCreds   = "door.creds"  // for coming back after a long absence
	fileCA          = "ca.pem"      // of the mesh
	filePins        = "pins.json"   // keys that sign what the node applies
	fileEnvironment = "environment" // has the mesh's address; other lines are the owner's
	// fileJoinKey is the key of a join that has not got its answer yet: who asks
	// again must ask with the same one.
	fileJoinKey = "join.key"
	// A join collects its files in dirJoining, and renames that to dirJoined
	// once they are whole: from then on the machine has its new identity, and
	// whoever comes next puts the files in their places.
	dirJoining = ".joining"
	dirJoined  = ".joined"
)

// joinFiles are put in place in this order.
var joinFiles = []string{fileCA, filePins, fileDoorCreds, fileEnvironment, fileNodeCreds}

// NodeCredsFile, DoorCredsFile, CAFile and PinsFile are where a configuration
// directory has what a join brings.
func NodeCredsFile(dir string) string { return filepath.Join(dir, fileNodeCreds) }
func DoorCredsFile(dir string) string { return filepath.Join(dir, fileDoorCreds) }
func CAFile(dir string) string        { return filepath.Join(dir, fileCA) }
func PinsFile(dir string) string      { return filepath.Join(dir, filePins) }

// identityFiles checks that the answer is for this machine's key and this
// invite, and makes the files of it.
func identityFiles(dir string, token events.Token, r events.DoorReply, ca *x509.Certificate, key nkeys.KeyPair) (map[string][]byte, error) {
	if r.Invite != token.Invite || ca == nil {
		return nil, errors.New("it is not for this token")
	}
	if r.Pins == nil {
		return nil, errors.New("it has no keys to trust")
	}
	if err := r.Pins.Validate(); err != nil {
		return nil, err
	}
	link, err := credsFile(r.Node, r.Link, key)
	if err != nil {
		return nil, err
	}
	door, err := credsFile(r.Node, r.Door, key)
	if err != nil {
		return nil, err
	}
	old, err := os.ReadFile(filepath.Join(dir, fileEnvironment))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	return map[string][]byte{
		fileNodeCreds: link, fileDoorCreds: door, fileCA: anchor.Encode(ca), filePins: r.Pins.Encode(),
		fileEnvironment: withURL(old, token.URL),
	}, nil
}

// credsFile makes a credentials file of a JWT for this machine's key. What it
// is for is the broker's to check; that it is for this node and key is not.
func credsFile(node, token string, key nkeys.KeyPair) ([]byte, error) {
	pub, err := key.PublicKey()
	if err != nil {
		return nil, err
	}
	if err := events.CheckNodeID(node); err != nil {
		return nil, err
	}
	claims, err := jwt.DecodeUserClaims(token)
	if err != nil {
		return nil, fmt.Errorf("a credential in it is damaged: %w", err)
	}
	if claims.Subject != pub || claims.Name != node {
		return nil, errors.New("a credential in it is for another machine's key")
	}
	seed, err := key.Seed()
	if err != nil {
		return nil, err
	}
	return jwt.FormatUserConfig(token, seed)
}

const urlVariable = "NOX_MESH_URL="

// withURL sets the mesh's address in an environment file and keeps all else.
func withURL(old []byte, url string) []byte {
	var out strings.Builder
	for line := range strings.Lines(string(old)) {
		if !strings.HasPrefix(strings.TrimSpace(line), urlVariable) {
			out.WriteString(strings.TrimSuffix(line, "\n") + "\n")
		}
	}
	out.WriteString(urlVariable + url + "\n")
	return []byte(out.String())
}

// joinKeyFile is the half-made key of a join.
type joinKeyFile struct {
	Invite string `json:"invite"`
	Seed   string `json:"seed"`
}

// joinKey gives the key for an invite: the one from before, if the join with it
// was cut off, or a new one, kept before it is used.
func joinKey(dir, invite string) (nkeys.KeyPair, error) {
	path := filepath.Join(dir, fileJoinKey)
	var kept joinKeyFile
	if raw, err := os.ReadFile(path); err == nil && json.Unmarshal(raw, &kept) == nil && kept.Invite == invite {
		if key, err := nkeys.FromSeed([]byte(kept.Seed)); err == nil {
			return key, nil
		}
	}
	key, err := nkeys.CreateUser()
	if err != nil {
		return nil, err
	}
	seed, err := key.Seed()
	if err != nil {
		return nil, err
	}
	raw, err := json.Marshal(joinKeyFile{Invite: invite, Seed: string(seed)})
	if err != nil {
		return nil, err
	}
	return key, writeDurablyWith(path, append(raw, '\n'), 0o600)
}

// stage makes the new identity whole beside the old one; with the rename at its
// end it counts.
func stage(dir string, files map[string][]byte, afterStep func(string) error) error {
	fresh := filepath.Join(dir, dirJoining)
	if err := errors.Join(os.RemoveAll(fresh), os.Mkdir(fresh, 0o700)); err != nil {
		return err
	}
	for _, name := range joinFiles {
		if err := writeDurablyWith(filepath.Join(fresh, name), files[name], 0o600); err != nil {
			return err
		}
		if err := afterStep("staged " + name); err != nil {
			return err
		}
	}
	if err := os.Rename(fresh, filepath.Join(dir, dirJoined)); err != nil {
		return err
	}
	return errors.Join(syncDir(dir), afterStep("joined"))
}

// SettleJoin ends a join that was cut off after its new identity was whole, and
// gives the mesh's address, which may be another one since. Where there is none,
// or one is still under way, it does nothing and gives no address.
func SettleJoin(dir string) (url string, err error) {
	if _, err := os.Stat(filepath.Join(dir, dirJoined)); err != nil {
		return "", nil
	}
	unlock, err := lockDir(dir)
	if errors.Is(err, errLocked) {
		return "", nil // that one will
	}
	if err != nil {
		return "", err
	}
	defer unlock()
	if err := settleJoin(dir, func(string) error { return nil }); err != nil {
		return "", err
	}
	return URLIn(dir)
}

// URLIn is the mesh's address in a configuration directory; empty if it has
// none.
func URLIn(dir string) (url string, err error) {
	raw, err := os.ReadFile(filepath.Join(dir, fileEnvironment))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	for line := range strings.Lines(string(raw)) {
		if v, ok := strings.CutPrefix(strings.TrimSpace(line), urlVariable); ok {
			url = strings.Trim(v, `"'`)
		}
	}
	return url, err
}

func settleJoin(dir string, afterStep func(string) error) error {
	from := filepath.Join(dir, dirJoined)
	if _, err := os.Stat(from); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, name := range joinFiles {
		err := os.Rename(filepath.Join(from, name), filepath.Join(dir, name))
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // not there: it is in place
			return fmt.Errorf("putting the new identity in place: %w", err)
		}
		if err := errors.Join(syncDir(dir), afterStep("placed "+name)); err != nil {
			return err
		}
	}
	err := os.Remove(filepath.Join(dir, fileJoinKey))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return errors.Join(os.RemoveAll(from), syncDir(dir))
}

var errLocked = errors.New("another join is at work there")

// lockDir keeps a second join off a configuration directory. The lock ends with
// the process.
func lockDir(dir string) (unlock func(), err error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	err = syscall.Flock(int(d.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if err == nil {
		return func() { d.Close() }, nil
	}
	d.Close()
	if errors.Is(err, syscall.EWOULDBLOCK) {
		err = errLocked
	}
	return nil, err
}
