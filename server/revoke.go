package server

import (
	"fmt"
	"maps"
	"math"
	"sync"
	"time"

	"github.com/nats-io/jwt/v2"
	natsserver "github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nkeys"
)

// RevokedKeys are the public keys of users that are not let in: by the link, by
// the door, as a person or a tool. The times, when each was revoked, are for the
// record. A key is refused whenever its credential was signed, before that
// or after, so that a clock that is put back lets nobody in.
type RevokedKeys struct {
	Nodes  map[string]time.Time `json:"nodes,omitempty"`
	Door   map[string]time.Time `json:"door,omitempty"`
	People map[string]time.Time `json:"people,omitempty"`
}

// revoke writes revoked keys into an account's claims. What is no user's key
// lets nobody in as it is; [jwt.All] would turn everybody out.
func revoke(a *jwt.AccountClaims, keys map[string]time.Time) {
	for key := range keys {
		if nkeys.IsValidPublicUserKey(key) {
			if a.Revocations == nil {
				a.Revocations = jwt.RevocationList{}
			}
			a.Revocations[key] = math.MaxInt64
		}
	}
}

// revoker applies revocations to the running broker.
type revoker struct {
	mu       sync.Mutex
	resolver natsserver.AccountResolver
	applied  revocations
}

// revocations are those of each account, by its key.
type revocations map[string]jwt.RevocationList

// Revoke refuses the given keys from now on, and only those: who is connected
// with one of them is disconnected at once, and a key that is no longer listed
// is let in again. Accounts whose list stays as it is are left
// alone, so the call costs nothing when nothing has changed. In an account that
// changes, for the moment of the change, the broker may lose a message to or
// from others: what matters is acknowledged or asked for again.
func (b *Broker) Revoke(keys RevokedKeys) error {
	b.revoker.mu.Lock()
	defer b.revoker.mu.Unlock()
	claims, err := b.identity.accounts(keys)
	if err != nil {
		return fmt.Errorf("revoking: %w", err)
	}
	for _, c := range claims {
		if maps.Equal(c.Revocations, b.revoker.applied[c.Subject]) {
			continue
		}
		// For the broker's next look at the account, and for now.
		if err := b.identity.vouch(b.revoker.resolver, c); err != nil {
			return fmt.Errorf("revoking: %w", err)
		}
		account, err := b.srv.LookupAccount(c.Subject)
		if err != nil {
			return fmt.Errorf("revoking in account %s: %w", c.Name, err)
		}
		b.srv.UpdateAccountClaims(account, c)
		b.revoker.applied[c.Subject] = c.Revocations
	}
	return nil
}
