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

	"noxmesh/events"
)

// Identity holds the keys that the mesh vouches with. Only keys are kept on
// the disk: claims are made anew at each start, so what a role may do is what
// this program says, for credentials of any age.
type Identity struct {
	operator nkeys.KeyPair
	system   nkeys.KeyPair
	mesh     nkeys.KeyPair // account of streams, server and operators
	nodes    nkeys.KeyPair // account of nodes
	roleNode nkeys.KeyPair // signs nodes, scoped
	roleUser nkeys.KeyPair // signs operators, scoped
}

// keyFiles are the files of an identity.
func (id *Identity) keyFiles() []keyFile {
	operator, account := nkeys.PrefixByteOperator, nkeys.PrefixByteAccount
	return []keyFile{
		{"operator.nk", operator, &id.operator},
		{"system.nk", account, &id.system},
		{"mesh.nk", account, &id.mesh},
		{"nodes.nk", account, &id.nodes},
		{"role-node.nk", account, &id.roleNode},
		{"role-operator.nk", account, &id.roleUser},
	}
}

type keyFile struct {
	name string
	kind nkeys.PrefixByte
	key  *nkeys.KeyPair
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
		key, err := nkeys.CreatePair(f.kind)
		if err != nil {
			return err
		}
		seed, err := key.Seed()
		if err != nil {
			return err
		}
		if err := writeFile(filepath.Join(fresh, f.name), append(seed, '\n')); err != nil {
			return err
		}
	}
	if err := os.Rename(fresh, dir); err != nil {
		return err
	}
	return syncDir(filepath.Dir(dir))
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

// trust makes the claims that the broker is started with, fills the resolver
// with the accounts, and names the system account.
func (id *Identity) trust(accounts natsserver.AccountResolver) ([]*jwt.OperatorClaims, string, error) {
	pub := make(map[nkeys.KeyPair]string)
	for _, f := range id.keyFiles() {
		p, err := (*f.key).PublicKey()
		if err != nil {
			return nil, "", fmt.Errorf("identity: %w", err)
		}
		pub[*f.key] = p
	}
	op := jwt.NewOperatorClaims(pub[id.operator])
	op.Name = "nox-mesh"
	op.SystemAccount = pub[id.system]
	raw, err := op.Encode(id.operator)
	if err != nil {
		return nil, "", fmt.Errorf("identity: operator claims: %w", err)
	}
	if op, err = jwt.DecodeOperatorClaims(raw); err != nil {
		return nil, "", fmt.Errorf("identity: operator claims: %w", err)
	}

	system := jwt.NewAccountClaims(pub[id.system])
	system.Name = "system"
	mesh := meshAccount(pub[id.mesh], pub[id.roleUser])
	nodes := nodesAccount(pub[id.nodes], pub[id.roleNode], pub[id.mesh])
	for _, claims := range []*jwt.AccountClaims{system, mesh, nodes} {
		problems := jwt.CreateValidationResults()
		claims.Validate(problems)
		raw, err := claims.Encode(id.operator)
		if err = errors.Join(append(problems.Errors(), err)...); err == nil {
			err = accounts.Store(claims.Subject, raw)
		}
		if err != nil {
			return nil, "", fmt.Errorf("identity: claims of account %s: %w", claims.Name, err)
		}
	}
	return []*jwt.OperatorClaims{op}, pub[id.system], nil
}

// NodeCreds makes a credential for one node and gives it with its public key.
// The name is checked first, since the broker puts it into permissions as it
// is: a user named "*" could publish as every node.
func (id *Identity) NodeCreds(name string) (creds []byte, publicKey string, err error) {
	if err := events.CheckNodeID(name); err != nil {
		return nil, "", err
	}
	return scopedCreds(name, id.nodes, id.roleNode)
}

// OperatorCreds makes a credential for an operator or a tool.
func (id *Identity) OperatorCreds(name string) (creds []byte, err error) {
	if events.CheckNodeID(name) != nil {
		return nil, fmt.Errorf("%q is no name for an operator: use 1 to 63 of a-z, 0-9 and '-', not starting or ending with '-'", name)
	}
	creds, _, err = scopedCreds(name, id.mesh, id.roleUser)
	return creds, err
}

// FirstOperator is the name in the credential that a server leaves in its data
// directory.
const FirstOperator = "operator"

// OperatorCredsFile is where a server leaves the first operator's credential.
func OperatorCredsFile(dataDir string) string { return filepath.Join(dataDir, "operator.creds") }

// WriteOperatorCreds writes [OperatorCredsFile], readable for the owner only,
// unless it is there.
func (id *Identity) WriteOperatorCreds(dataDir string) error {
	path := OperatorCredsFile(dataDir)
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	creds, err := id.OperatorCreds(FirstOperator)
	if err != nil {
		return err
	}
	if err := writeFile(path, creds); err != nil {
		return dirTrouble(dataDir, err)
	}
	return nil
}

// scopedCreds signs a user whose rights are those of the role's template.
func scopedCreds(name string, account, role nkeys.KeyPair) ([]byte, string, error) {
	fail := func(err error) ([]byte, string, error) {
		return nil, "", fmt.Errorf("making a credential for %s: %w", name, err)
	}
	user, err := nkeys.CreateUser()
	if err != nil {
		return fail(err)
	}
	defer user.Wipe()
	pub, err := user.PublicKey()
	if err != nil {
		return fail(err)
	}
	issuer, err := account.PublicKey()
	if err != nil {
		return fail(err)
	}
	claims := jwt.NewUserClaims(pub)
	claims.Name = name
	claims.IssuerAccount = issuer
	claims.SetScoped(true)
	token, err := claims.Encode(role)
	if err != nil {
		return fail(err)
	}
	seed, err := user.Seed()
	if err != nil {
		return fail(err)
	}
	creds, err := jwt.FormatUserConfig(token, seed)
	if err != nil {
		return fail(err)
	}
	return creds, pub, nil
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
