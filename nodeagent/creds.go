package nodeagent

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nkeys"

	"noxmesh/events"
)

// NodeName reads from a credentials file which node it is for. The error tells
// a person what to do.
func NodeName(file string) (string, error) {
	raw, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("no credentials at %s, so this machine has not joined: ask for a token (nox-mesh node invite NAME) and give nox-mesh-host join TOKEN here", file)
	}
	if err != nil {
		return "", fmt.Errorf("credentials do not read: %w", err)
	}
	token, err := nkeys.ParseDecoratedJWT(raw)
	if err != nil {
		return "", fmt.Errorf("credentials at %s are damaged: %w", file, err)
	}
	claims, err := jwt.DecodeUserClaims(token)
	if err != nil {
		return "", fmt.Errorf("credentials at %s are damaged: %w", file, err)
	}
	if err := events.CheckNodeID(claims.Name); err != nil {
		return "", fmt.Errorf("credentials at %s are for no node: %w", file, err)
	}
	return claims.Name, nil
}
