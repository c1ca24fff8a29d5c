package server

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/nats-io/jwt/v2"

	"noxmesh/events"
	"noxmesh/projections"
)

func (a *api) addUser(ctx context.Context, by caller, q UserAddRequest) (UserAddReply, error) {
	creds, key, err := a.identity.UserCreds(q.User, q.Role)
	if err != nil {
		return UserAddReply{}, err
	}
	if q.User == by.actor {
		// The broker would end the connection that the answer goes to.
		return UserAddReply{}, fmt.Errorf("you are %s, and the new credential could not reach you once the one that you use is shut out: have another operator replace it, or add one for that", q.User)
	}
	a.users.Lock()
	defer a.users.Unlock()
	out := UserAddReply{Creds: string(creds)}
	// Not change: each credential is an event, so a repeated command, which has
	// no copy of the first one's answer, issues another in its place.
	_, err = a.append(ctx, by, func(m *projections.Mesh) (string, events.Fact, uint64, error) {
		fact := &events.UserAdded{Role: q.Role, PublicKey: key}
		u := m.Users[q.User]
		if u == nil {
			return q.User, fact, 0, nil
		}
		if q.Role != RoleOperator && lastOperator(m, q.User) {
			return "", nil, 0, errLastOperator(q.User)
		}
		out.Replaced = !u.Revoked
		return q.User, fact, u.LastSeq, nil
	})
	if err != nil {
		return UserAddReply{}, err
	}
	return out, a.guard.apply()
}

func (a *api) revokeUser(ctx context.Context, by caller, q UserRevokeRequest) (UserRevokeReply, error) {
	if q.User == by.actor {
		return UserRevokeReply{}, fmt.Errorf("you are %s: have another operator revoke you", q.User)
	}
	a.users.Lock()
	defer a.users.Unlock()
	out := UserRevokeReply{User: q.User}
	_, err := a.change(ctx, by, func(m *projections.Mesh) (string, events.Fact, uint64, error) {
		u := m.Users[q.User]
		switch {
		case u == nil:
			return "", nil, 0, fmt.Errorf("there is no user %q: nox-mesh user ls shows all", events.Printable(q.User, 64))
		case u.Revoked:
			out.Already = true
			return q.User, nil, 0, nil
		case lastOperator(m, q.User):
			return "", nil, 0, errLastOperator(q.User)
		}
		return q.User, &events.UserRevoked{Reason: reasonText(q.Reason)}, u.LastSeq, nil
	})
	if err != nil {
		return UserRevokeReply{}, err
	}
	return out, a.guard.apply()
}

func (a *api) listUsers(context.Context, caller, struct{}) (out UserList, err error) {
	a.runner.View(func(m *projections.Mesh) {
		out.EventSeq, out.Users = m.EventSeq, []UserView{}
		for _, name := range slices.Sorted(maps.Keys(m.Users)) {
			u := m.Users[name]
			out.Users = append(out.Users, UserView{User: name, Role: u.Role, PublicKey: u.PublicKey, Revoked: u.Revoked, Since: u.At})
		}
	})
	return out, nil
}

// lastOperator says whether nobody could give commands without this user.
func lastOperator(m *projections.Mesh, name string) bool {
	for other, u := range m.Users {
		if other != name && u.Role == RoleOperator && !u.Revoked {
			return false
		}
	}
	u := m.Users[name]
	return u != nil && u.Role == RoleOperator && !u.Revoked
}

func errLastOperator(name string) error {
	return fmt.Errorf("%s is the last operator, and nobody could give commands afterwards: add another first with nox-mesh user add NAME --role operator", name)
}

// FirstOperator is the name in the credential that a server leaves in its data
// directory.
const FirstOperator = "operator"

// OperatorCredsFile is where a server leaves the first operator's credential.
func OperatorCredsFile(dataDir string) string { return filepath.Join(dataDir, "operator.creds") }

// firstOperator sees to it that somebody can give commands, and that this is on
// record. It leaves a credential in the data directory if there is no operator
// yet, in the place of one of version 0.1, or if a new one is asked for. It
// makes none if the file was taken away and an operator is on record.
func (a *api) firstOperator(ctx context.Context, dataDir string, anew bool) error {
	path := OperatorCredsFile(dataDir)
	have, err := a.identity.operatorCreds(path)
	if err != nil {
		return err
	}
	var operator bool
	a.runner.View(func(m *projections.Mesh) {
		for _, u := range m.Users {
			operator = operator || u.Role == RoleOperator && !u.Revoked
		}
	})
	key := have.key
	switch {
	case anew, have.old, !have.there && !operator:
		var creds []byte
		if creds, key, err = a.identity.UserCreds(FirstOperator, RoleOperator); err != nil {
			return err
		}
		// The file comes first: should the server stop here, the next start finds
		// a credential that is not on record.
		if err := writeFile(path, creds); err != nil {
			return dirTrouble(dataDir, err)
		}
	case key == "" && operator: // taken away, or another's
		return nil
	case key == "":
		return fmt.Errorf("%s is not the first operator's credential of this mesh, and nobody else is an operator: start with --new-operator to have it replaced", path)
	}
	_, err = a.append(ctx, caller{actor: "mesh"}, func(m *projections.Mesh) (string, events.Fact, uint64, error) {
		fact := &events.UserAdded{Role: RoleOperator, PublicKey: key}
		u := m.Users[FirstOperator]
		switch {
		case u == nil:
			return FirstOperator, fact, 0, nil
		case u.PublicKey == key, slices.Contains(u.Former, key): // on record, whatever became of it
			return FirstOperator, nil, 0, nil
		}
		return FirstOperator, fact, u.LastSeq, nil
	})
	if err != nil {
		return err
	}
	return a.guard.apply()
}

// operatorCreds is what is in the place of the first operator's credential.
type operatorCreds struct {
	there bool   // there is a file
	key   string // whose credential it is, "" if it is not the first operator's
	old   bool   // it is of version 0.1, when operators were in the account of the streams
}

func (id *Identity) operatorCreds(path string) (operatorCreds, error) {
	raw, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return operatorCreds{}, nil
	}
	if err != nil {
		return operatorCreds{}, err
	}
	out := operatorCreds{there: true}
	token, err := jwt.ParseDecoratedJWT(raw)
	if err != nil {
		return out, nil
	}
	claims, err := jwt.DecodeUserClaims(token)
	if err != nil {
		return out, nil
	}
	pub, err := id.publicKeys()
	if err != nil {
		return out, err
	}
	switch {
	case claims.IssuerAccount == pub[id.mesh]:
		out.old = true
	case claims.IssuerAccount == pub[id.people] && claims.Issuer == pub[id.roleOperator] && claims.Name == FirstOperator:
		out.key = claims.Subject
	}
	return out, nil
}
