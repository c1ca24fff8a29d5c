package server

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"github.com/nats-io/jwt/v2"
	natsserver "github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"
)

// Identity holds the keys that the mesh vouches with. Only keys are kept on
// the disk: claims are made anew at each start, so what a role may do is what
// this program says, for credentials of any age.
type Identity struct {
	operator nkeys.KeyPair
	system   nkeys.KeyPair
	// Accounts: of streams and server, of nodes, of people and tools, and of
	// those who stand at the joining door.
	mesh, nodes, people, door nkeys.KeyPair
	// Roles sign users, scoped.
	roleNode, roleInvite, roleReturn      nkeys.KeyPair
	roleOperator, roleAuditor, roleViewer nkeys.KeyPair
}

// keyFiles are the files of an identity. people.nk is the last of the later
// ones: where it is, they were all made.
func (id *Identity) keyFiles() []keyFile {
	operator, account := nkeys.PrefixByteOperator, nkeys.PrefixByteAccount
	return []keyFile{
		{"operator.nk", operator, false, &id.operator},
		{"system.nk", account, false, &id.system},
		{"mesh.nk", account, false, &id.mesh},
		{"nodes.nk", account, false, &id.nodes},
		{"role-node.nk", account, false, &id.roleNode},
		{"role-operator.nk", account, false, &id.roleOperator},
		{"door.nk", account, true, &id.door},
		{"role-invite.nk", account, true, &id.roleInvite},
		{"role-return.nk", account, true, &id.roleReturn},
		{"role-auditor.nk", account, true, &id.roleAuditor},
		{"role-viewer.nk", account, true, &id.roleViewer},
		{lastKeyFile, account, true, &id.people},
	}
}

const lastKeyFile = "people.nk"

type keyFile struct {
	name  string
	kind  nkeys.PrefixByte
	later bool // not in data directories of version 0.1
	key   *nkeys.KeyPair
}

// create makes the key and writes its file.
func (f keyFile) create(dir string) error {
	key, err := nkeys.CreatePair(f.kind)
	if err != nil {
		return err
	}
	seed, err := key.Seed()
	if err != nil {
		return err
	}
	return writeFile(filepath.Join(dir, f.name), append(seed, '\n'))
}

// LoadOrCreateIdentity reads the identity of a data directory, or makes one if
// the directory has none. It is made whole or not at all. A damaged one is an
// error: a new one in its place would lock every node out.
func LoadOrCreateIdentity(dataDir string) (*Identity, error) {
	if err := os.MkdirAll(dataDir, 0o700); err != nil {
		return nil, dirTrouble(dataDir, err)
	}
	d, err := os.Open(dataDir)
	if err != nil {
		return nil, dirTrouble(dataDir, err)
	}
	defer d.Close()
	// Two first starts at once must not make two identities. This comes before
	// the broker's lock and is held for a moment only.
	if err := syscall.Flock(int(d.Fd()), syscall.LOCK_EX); err != nil {
		return nil, fmt.Errorf("locking data directory %s: %w: it must be on a local file system", dataDir, err)
	}
	dir := filepath.Join(dataDir, "identity")
	if _, err := os.Stat(dir); errors.Is(err, os.ErrNotExist) {
		if err := createIdentity(dir); err != nil {
			return nil, dirTrouble(dataDir, fmt.Errorf("making the identity: %w", err))
		}
	} else if err := addLaterKeys(dir); err != nil {
		return nil, dirTrouble(dataDir, fmt.Errorf("adding to the identity: %w", err))
	}
	return loadIdentity(dir)
}

func createIdentity(dir string) error {
	fresh := dir + ".new" // left over if an earlier start was cut off
	if err := errors.Join(os.RemoveAll(fresh), os.Mkdir(fresh, 0o700)); err != nil {
		return err
	}
	var id Identity
	for _, f := range id.keyFiles() {
		if err := f.create(fresh); err != nil {
			return err
		}
	}
	if err := os.Rename(fresh, dir); err != nil {
		return err
	}
	return syncDir(filepath.Dir(dir))
}

// addLaterKeys makes the keys that an identity of version 0.1 has not. One that
// has the last of them had them all, and a missing one is damage.
func addLaterKeys(dir string) error {
	if _, err := os.Stat(filepath.Join(dir, lastKeyFile)); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	var id Identity
	for _, f := range id.keyFiles() {
		_, err := os.Stat(filepath.Join(dir, f.name))
		switch {
		case !f.later:
		case errors.Is(err, os.ErrNotExist):
			err = f.create(dir)
			if err != nil {
				return err
			}
		case err != nil:
			return err
		}
	}
	return nil
}

func loadIdentity(dir string) (*Identity, error) {
	id := &Identity{}
	for _, f := range id.keyFiles() {
		path := filepath.Join(dir, f.name)
		raw, err := os.ReadFile(path)
		if err == nil {
			*f.key, err = nkeys.ParseDecoratedNKey(raw)
		}
		if err == nil {
			err = checkKind(*f.key, f.kind)
		}
		if err != nil {
			return nil, fmt.Errorf("identity key %s: %w: restore %s from a backup; a new identity would lock out every node", path, err, dir)
		}
	}
	return id, nil
}

func checkKind(key nkeys.KeyPair, want nkeys.PrefixByte) error {
	pub, err := key.PublicKey()
	if err == nil && nkeys.Prefix(pub) != want {
		err = fmt.Errorf("it is a key for %s, not for %s", nkeys.Prefix(pub), want)
	}
	return err
}

// publicKeys gives the public half of each key.
func (id *Identity) publicKeys() (map[nkeys.KeyPair]string, error) {
	pub := make(map[nkeys.KeyPair]string)
	for _, f := range id.keyFiles() {
		p, err := (*f.key).PublicKey()
		if err != nil {
			return nil, fmt.Errorf("identity: %w", err)
		}
		pub[*f.key] = p
	}
	return pub, nil
}

// trust makes the claims that the broker is started with, fills the resolver
// with the accounts, and gives the system account and what each account revokes.
func (id *Identity) trust(accounts natsserver.AccountResolver, revoked RevokedKeys) (operator []*jwt.OperatorClaims, system string, applied revocations, err error) {
	pub, err := id.publicKeys()
	if err != nil {
		return nil, "", nil, err
	}
	op := jwt.NewOperatorClaims(pub[id.operator])
	op.Name = "nox-mesh"
	op.SystemAccount = pub[id.system]
	raw, err := op.Encode(id.operator)
	if err == nil {
		op, err = jwt.DecodeOperatorClaims(raw)
	}
	if err != nil {
		return nil, "", nil, fmt.Errorf("identity: operator claims: %w", err)
	}
	claims, err := id.accounts(revoked)
	if err != nil {
		return nil, "", nil, err
	}
	sys := jwt.NewAccountClaims(pub[id.system])
	sys.Name = "system"
	applied = revocations{}
	for _, c := range append(claims, sys) {
		if err := id.vouch(accounts, c); err != nil {
			return nil, "", nil, err
		}
		applied[c.Subject] = c.Revocations
	}
	return []*jwt.OperatorClaims{op}, pub[id.system], applied, nil
}

// vouch signs an account's claims and gives them to the resolver.
func (id *Identity) vouch(accounts natsserver.AccountResolver, claims *jwt.AccountClaims) error {
	problems := jwt.CreateValidationResults()
	claims.Validate(problems)
	raw, err := claims.Encode(id.operator)
	if err = errors.Join(append(problems.Errors(), err)...); err == nil {
		err = accounts.Store(claims.Subject, raw)
	}
	if err != nil {
		return fmt.Errorf("identity: claims of account %s: %w", claims.Name, err)
	}
	return nil
}

// service is how the mesh itself logs in: a user that lives as long as the
// connection, signed by the account's own key, which limits nothing.
func (id *Identity) service() (nats.Option, error) {
	user, err := nkeys.CreateUser()
	if err != nil {
		return nil, err
	}
	pub, err := user.PublicKey()
	if err != nil {
		return nil, err
	}
	claims := jwt.NewUserClaims(pub)
	claims.Name = "mesh"
	claims.AllowedConnectionTypes.Add(jwt.ConnectionTypeInProcess)
	token, err := claims.Encode(id.mesh)
	if err != nil {
		return nil, err
	}
	return nats.UserJWT(func() (string, error) { return token, nil }, user.Sign), nil
}
