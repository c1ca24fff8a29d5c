package client

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"noxmesh/events"
)

// CommandWatch asks what changed in a bucket; operators, auditors and viewers
// give it. Watch functions do it for you.
const CommandWatch = "view.watch"

// MaxWait is how long the mesh waits at most for something to change.
const MaxWait = 20 * time.Second

// WatchRequest asks for the keys of a bucket whose newest value came after a
// token.
type WatchRequest struct {
	Bucket string `json:"bucket"` // one of [projections.Buckets]
	After  Token  `json:"after,omitempty"`
	// Wait is how long to wait if there is none; at most [MaxWait].
	Wait events.Duration `json:"wait,omitempty"`
}

// WatchReply is a page of what changed, oldest change first.
type WatchReply struct {
	// Reset: the token is of a bucket that is no more. What follows begins anew,
	// and what does not come again is gone.
	Reset   bool         `json:"reset,omitempty"`
	Entries []WatchEntry `json:"entries"`
	Token   Token        `json:"token"` // to ask on with
	// CaughtUp: nothing had changed behind the page when it was made.
	CaughtUp bool `json:"caught_up"`
}

// WatchEntry is a key's entry and the token behind it.
type WatchEntry struct {
	Token Token           `json:"token"`
	Entry json.RawMessage `json:"entry"` // a [projections.Entry]
}

// Token says how far a bucket was read. It names the bucket and its life: one
// that was made anew is another one. Keep it as it is, to go on from there
// later, in another process too. The empty token is the beginning.
type Token string

// MakeToken makes the token of a sequence in the stream of a bucket, which was
// made at a moment.
func MakeToken(bucket string, made time.Time, seq uint64) Token {
	return Token(fmt.Sprintf("%s.%s.%d", bucket, strconv.FormatInt(made.UnixNano(), 36), seq))
}

// Parse takes a token apart. Same says that it is of the life of the bucket
// which began at a moment; the empty token is of any.
func (t Token) Parse(bucket string, made time.Time) (seq uint64, same bool, err error) {
	if t == "" {
		return 0, true, nil
	}
	parts := strings.Split(string(t), ".")
	if len(parts) == 3 && parts[0] != bucket {
		return 0, false, fmt.Errorf("the token %q is of %s and not of %s", events.Printable(string(t), maxToken), events.Printable(parts[0], maxToken), bucket)
	}
	if len(parts) == 3 {
		seq, err = strconv.ParseUint(parts[2], 10, 64)
	}
	if len(parts) != 3 || err != nil {
		return 0, false, fmt.Errorf("%q is no token: give one as a watch printed it, or none to begin anew", events.Printable(string(t), maxToken))
	}
	return seq, parts[1] == strconv.FormatInt(made.UnixNano(), 36), nil
}

// beginning is the token before all that is in the same life of the bucket.
func (t Token) beginning() Token { return t[:strings.LastIndex(string(t), ".")+1] + "0" }

// maxToken bounds how much of a token is shown, in bytes.
const maxToken = 80
