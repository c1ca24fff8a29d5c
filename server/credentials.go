package server

import (
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nkeys"

	"noxmesh/events"
)

// Roles of people and tools.
const (
	RoleOperator = "operator" // gives every command
	RoleAuditor  = "auditor"  // reads the log and the projections
	RoleViewer   = "viewer"   // reads the projections
)

// Roles are those that a person or a tool can have.
var Roles = []string{RoleOperator, RoleAuditor, RoleViewer}

// actors are names under which the mesh itself writes events. A person of that
// name could not be told from it in the log.
var actors = []string{"mesh", "stager"}

// checkUser refuses names that no person or tool can have. The broker puts a
// name into permissions as it is.
func checkUser(name string) error {
	if events.CheckNodeID(name) != nil {
		return fmt.Errorf("%q is no name for a person or a tool: use 1 to 63 of a-z, 0-9 and '-', not starting or ending with '-'", name)
	}
	if slices.Contains(actors, name) {
		return fmt.Errorf("%q is what the mesh calls itself in the log: choose another name", name)
	}
	return nil
}

// NodeJWT lets a node in over the link, for as long as ttl. The name is checked
// first, since the broker puts it into permissions as it is: a user named "*"
// could publish as every node.
func (id *Identity) NodeJWT(node, publicKey string, ttl time.Duration) (string, error) {
	if err := events.CheckNodeID(node); err != nil {
		return "", err
	}
	return expiringJWT(node, publicKey, id.nodes, id.roleNode, ttl)
}

// DoorJWT lets a node in through the door to ask for a link JWT, whenever it
// comes back.
func (id *Identity) DoorJWT(node, publicKey string) (string, error) {
	if err := events.CheckNodeID(node); err != nil {
		return "", err
	}
	return scopedJWT(node, publicKey, id.door, id.roleReturn, time.Time{})
}

// InviteJWT lets whoever holds an invite in through the door to join.
func (id *Identity) InviteJWT(invite, publicKey string, ttl time.Duration) (string, error) {
	if events.CheckNodeID(invite) != nil {
		return "", fmt.Errorf("%q is no id of an invite", invite)
	}
	return expiringJWT(invite, publicKey, id.door, id.roleInvite, ttl)
}

// UserCreds makes a credential for a person or a tool. It does not expire.
func (id *Identity) UserCreds(name, role string) (creds []byte, publicKey string, err error) {
	return newCreds(name, func(publicKey string) (string, error) {
		if err := checkUser(name); err != nil {
			return "", err
		}
		key := map[string]nkeys.KeyPair{RoleOperator: id.roleOperator, RoleAuditor: id.roleAuditor, RoleViewer: id.roleViewer}[role]
		if key == nil {
			return "", checkRole(role)
		}
		return scopedJWT(name, publicKey, id.people, key, time.Time{})
	})
}

func checkRole(role string) error {
	if !slices.Contains(Roles, role) {
		return fmt.Errorf("there is no role %q: use operator (every command), auditor (reads the log) or viewer (sees fleet, rollouts and releases)", events.Printable(role, 40))
	}
	return nil
}

// newCreds makes a key, has it signed, and gives both as a credential file.
func newCreds(name string, sign func(publicKey string) (string, error)) ([]byte, string, error) {
	user, err := nkeys.CreateUser()
	if err != nil {
		return nil, "", fmt.Errorf("making a credential for %s: %w", name, err)
	}
	defer user.Wipe()
	pub, err := user.PublicKey()
	if err != nil {
		return nil, "", fmt.Errorf("making a credential for %s: %w", name, err)
	}
	token, err := sign(pub)
	if err != nil {
		return nil, "", err
	}
	seed, err := user.Seed()
	if err != nil {
		return nil, "", fmt.Errorf("making a credential for %s: %w", name, err)
	}
	creds, err := jwt.FormatUserConfig(token, seed)
	if err != nil {
		return nil, "", fmt.Errorf("making a credential for %s: %w", name, err)
	}
	return creds, pub, nil
}

func expiringJWT(name, publicKey string, account, role nkeys.KeyPair, ttl time.Duration) (string, error) {
	// The broker reads whole seconds, and no expiry at all as 0.
	if ttl < time.Second {
		return "", fmt.Errorf("a credential for %s cannot live for %s: give it a second at least", name, ttl)
	}
	return scopedJWT(name, publicKey, account, role, time.Now().Add(ttl))
}

// scopedJWT signs a user whose rights are those of the role's template. It does
// not expire if expires is zero.
func scopedJWT(name, publicKey string, account, role nkeys.KeyPair, expires time.Time) (string, error) {
	if !nkeys.IsValidPublicUserKey(publicKey) {
		return "", fmt.Errorf("%q is no public key of a user", events.Printable(publicKey, 64))
	}
	issuer, err := account.PublicKey()
	if err != nil {
		return "", fmt.Errorf("making a credential for %s: %w", name, err)
	}
	claims := jwt.NewUserClaims(publicKey)
	claims.Name = name
	claims.IssuerAccount = issuer
	claims.SetScoped(true)
	if !expires.IsZero() {
		claims.Expires = expires.Unix()
	}
	token, err := claims.Encode(role)
	if err != nil {
		return "", fmt.Errorf("making a credential for %s: %w", name, err)
	}
	return token, nil
}
