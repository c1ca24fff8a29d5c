package server

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/url"
	"time"

	"github.com/nats-io/nkeys"

	"noxmesh/events"
	"noxmesh/events/anchor"
	"noxmesh/projections"
)

const (
	defaultInviteLife = time.Hour
	maxInviteLife     = 90 * 24 * time.Hour
	// maxInvites are issued by one command; a client asks again for more.
	maxInvites = 200
	// inviteGrace is how long after its end a token still gets an answer at the
	// door: why it is refused, which is then recorded. After that the broker
	// refuses it without a word.
	inviteGrace = 7 * 24 * time.Hour
)

// InviteRequest asks for tokens, one for each name.
type InviteRequest struct {
	Nodes  []string          `json:"nodes"`
	Labels map[string]string `json:"labels,omitempty"`
	TTL    events.Duration   `json:"ttl,omitempty"` // an hour if zero
	// URL is where the machines reach the mesh, if not where the server thinks.
	URL string `json:"url,omitempty"`
}

// InviteReply holds the tokens. They are secrets.
type InviteReply struct {
	Invites []Invite `json:"invites"`
}

// Invite is a token with which one machine may join.
type Invite struct {
	Node    string    `json:"node"`
	Invite  string    `json:"invite"` // its id in the log
	Expires time.Time `json:"expires"`
	Token   string    `json:"token"`
	// Rejoin: a machine is enrolled under the name. It is let in no more as soon
	// as another one joins with the token.
	Rejoin bool `json:"rejoin,omitempty"`
}

// RevokeRequest asks that a node's key is let in no more.
type RevokeRequest struct {
	Node   string `json:"node"`
	Reason string `json:"reason,omitempty"`
}

// RevokeReply tells what became of it.
type RevokeReply struct {
	Node    string `json:"node"`
	Already bool   `json:"already"`
}

// place is where and how machines reach the mesh.
type place struct{ url, ca string }

func (a *api) invite(ctx context.Context, by caller, q InviteRequest) (InviteReply, error) {
	ttl := time.Duration(q.TTL)
	if ttl == 0 {
		ttl = defaultInviteLife
	}
	switch {
	case len(q.Nodes) == 0 || len(q.Nodes) > maxInvites:
		return InviteReply{}, fmt.Errorf("%d names: one command invites 1 to %d", len(q.Nodes), maxInvites)
	case ttl < time.Minute || ttl > maxInviteLife:
		return InviteReply{}, fmt.Errorf("a token for %s: choose --ttl between 1m and %s", ttl, maxInviteLife)
	}
	at := a.place()
	if q.URL != "" {
		if _, err := anchor.Host(q.URL); err != nil {
			return InviteReply{}, err
		}
		at.url = q.URL
	}
	for k, v := range q.Labels {
		if !labelForm.MatchString(k) || !labelForm.MatchString(v) {
			return InviteReply{}, fmt.Errorf("label %q=%q: use 1 to 63 letters, digits and . _ - on both sides", k, v)
		}
	}
	seen := map[string]bool{}
	for _, node := range q.Nodes {
		if err := events.CheckNodeID(node); err != nil {
			return InviteReply{}, err
		}
		if seen[node] {
			return InviteReply{}, fmt.Errorf("node %q is there twice", node)
		}
		seen[node] = true
	}
	out := InviteReply{Invites: []Invite{}}
	for _, node := range q.Nodes {
		inv, err := a.inviteOne(ctx, by, node, q.Labels, ttl, at)
		if err != nil {
			return InviteReply{}, errors.Join(err, fmt.Errorf("%d of %d tokens were made and are lost with this error; give the command again", len(out.Invites), len(q.Nodes)))
		}
		out.Invites = append(out.Invites, inv)
	}
	return out, nil
}

func (a *api) inviteOne(ctx context.Context, by caller, node string, labels map[string]string, ttl time.Duration, at place) (Invite, error) {
	key, err := nkeys.CreateUser()
	if err != nil {
		return Invite{}, err
	}
	defer key.Wipe()
	pub, err := key.PublicKey()
	if err != nil {
		return Invite{}, err
	}
	seed, err := key.Seed()
	if err != nil {
		return Invite{}, err
	}
	inv := Invite{Node: node, Invite: inviteID(), Expires: time.Now().Add(ttl).UTC().Truncate(time.Second)}
	token, err := a.identity.InviteJWT(inv.Invite, pub, ttl+inviteGrace)
	if err != nil {
		return Invite{}, err
	}
	inv.Token = events.Token{URL: at.url, CA: at.ca, Invite: inv.Invite, Seed: string(seed), JWT: token}.Encode()
	// Not change: a repeated command has no copy of the first one's answer, so
	// it issues another token, and the first is void.
	_, err = a.append(ctx, by, func(m *projections.Mesh) (string, events.Fact, uint64, error) {
		fact := &events.NodeInvited{Invite: inv.Invite, Labels: labels, Expires: inv.Expires, PublicKey: pub}
		n := m.Nodes[node]
		if n == nil {
			return node, fact, 0, nil
		}
		inv.Rejoin = n.EnrolledSeq != 0
		return node, fact, n.EventSeq, nil
	})
	return inv, err
}

// inviteID is not secret, and unlike any other.
func inviteID() string {
	const letters = "0123456789abcdefghjkmnpqrstvwxyz"
	b := make([]byte, 16)
	_, _ = rand.Read(b) // never fails
	for i := range b {
		b[i] = letters[b[i]%32]
	}
	return string(b)
}

// revokeNode shuts a node out, and returns when it is disconnected. Tokens for
// its name that were not used are void from then on.
func (a *api) revokeNode(ctx context.Context, by caller, q RevokeRequest) (RevokeReply, error) {
	out := RevokeReply{Node: q.Node}
	_, err := a.change(ctx, by, func(m *projections.Mesh) (string, events.Fact, uint64, error) {
		n := m.Nodes[q.Node]
		pending := false
		if n != nil {
			for _, inv := range n.Invites {
				pending = pending || inv.Open(time.Now())
			}
		}
		switch {
		case n == nil, n.EnrolledSeq == 0 && n.GoneSeq == 0 && !pending:
			return "", nil, 0, noSuchNode(q.Node)
		case n.Revoked && !pending:
			out.Already = true
			return q.Node, nil, 0, nil
		}
		return q.Node, &events.NodeRevoked{Reason: reasonText(q.Reason)}, n.EventSeq, nil
	})
	if err != nil {
		return out, err
	}
	return out, a.guard.apply()
}

// place is for tokens.
func (b *Broker) place() place { return place{url: b.OutsideURL(), ca: b.CA()} }

// Local says whether an address is of use on the server's own machine only.
func Local(raw string) bool {
	u, err := url.Parse(raw)
	if err != nil {
		return false
	}
	ip := net.ParseIP(u.Hostname())
	return u.Hostname() == "localhost" || ip != nil && ip.IsLoopback()
}
