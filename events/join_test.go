package events

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/nats-io/nkeys"
)

const (
	testInvite = "1nv1te00"
	testID     = "0123456789abcdef0123456789abcdef"
)

func testUser(t testing.TB) nkeys.KeyPair {
	t.Helper()
	key, err := nkeys.FromRawSeed(nkeys.PrefixByteUser, []byte("a seed for tests, of 32 bytes...")[:32])
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func testToken(t testing.TB) Token {
	t.Helper()
	seed, err := testUser(t).Seed()
	if err != nil {
		t.Fatal(err)
	}
	return Token{URL: "tls://mesh.example:4222", CA: strings.Repeat("ab", 32), Invite: testInvite, Seed: string(seed), JWT: "a.b.c"}
}

func TestToken(t *testing.T) {
	token := testToken(t)
	text := token.Encode()
	if got, err := ParseToken("\n " + text + " \n"); err != nil || got != token {
		t.Errorf("got %+v, %v", got, err)
	}
	change := func(f func(*Token)) string {
		token := token
		f(&token)
		return token.Encode()
	}
	for _, tt := range []struct{ name, text, want string }{
		{"nothing", "", "this is no token"},
		{"another form", "nmj2." + strings.TrimPrefix(text, tokenPrefix), "this is no token"},
		{"cut", text[:len(text)-7], "damaged"},
		{"longer", text + "AAAA", "damaged"},
		{"too long", text + strings.Repeat("A", maxToken), "damaged"},
		{"no address", change(func(k *Token) { k.URL = "" }), "damaged"},
		{"no fingerprint", change(func(k *Token) { k.CA = "x" }), "damaged"},
		{"an invite with a wildcard", change(func(k *Token) { k.Invite = "*" }), "damaged"},
		{"no seed", change(func(k *Token) { k.Seed = "S" }), "damaged"},
		{"no JWT", change(func(k *Token) { k.JWT = "" }), "damaged"},
	} {
		got, err := ParseToken(tt.text)
		if err == nil || !strings.Contains(err.Error(), tt.want) || got != (Token{}) {
			t.Errorf("%s: got %+v, %v", tt.name, got, err)
		} else if strings.Contains(err.Error(), token.Seed) {
			t.Errorf("%s: the error has the secret in it", tt.name)
		}
	}
}

func joinRequest(t testing.TB) []byte {
	t.Helper()
	q, err := SignJoin(testUser(t), testInvite, testID)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := json.Marshal(q)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func TestDecodeJoin(t *testing.T) {
	raw := joinRequest(t)
	q, err := DecodeJoin(testInvite, raw)
	if err != nil || q.MachineID != testID || !nkeys.IsValidPublicUserKey(q.PublicKey) {
		t.Errorf("got %+v, %v", q, err)
	}
	for _, tt := range []struct{ name, invite, raw, want string }{
		{"another invite", "another0", string(raw), "the signature is not by"},
		{"no signature", testInvite, strings.Replace(string(raw), q.Signature, "", 1), "the signature is not by"},
		{"a signature that is no base64", testInvite, strings.Replace(string(raw), q.Signature, "?", 1), "the signature is not by"},
		{"another machine", testInvite, strings.Replace(string(raw), testID, strings.Repeat("0", 32), 1), "the signature is not by"},
		{"a machine id of two lines", testInvite, strings.Replace(string(raw), testID, `x\ny`, 1), "machine id"},
		{"no key", testInvite, strings.Replace(string(raw), q.PublicKey, "", 1), "no user's nkey"},
		{"a field too many", testInvite, `{"node":"n1",` + string(raw)[1:], "unknown field"},
		{"something behind", testInvite, string(raw) + "{}", "behind its end"},
		{"too long", testInvite, string(raw) + strings.Repeat(" ", MaxJoin), "over the limit"},
		{"a list", testInvite, "[]", "does not read"},
		{"null", testInvite, "null", "no user's nkey"},
	} {
		if got, err := DecodeJoin(tt.invite, []byte(tt.raw)); err == nil || !strings.Contains(err.Error(), tt.want) || got != (JoinRequest{}) {
			t.Errorf("%s: got %+v, %v", tt.name, got, err)
		}
	}
}

func TestDecodeReturn(t *testing.T) {
	pub, err := testUser(t).PublicKey()
	if err != nil {
		t.Fatal(err)
	}
	if q, err := DecodeReturn([]byte(`{"public_key":"` + pub + `"}`)); err != nil || q.PublicKey != pub {
		t.Errorf("got %+v, %v", q, err)
	}
	for _, raw := range []string{"", "{}", `{"public_key":"x"}`, `{"public_key":"` + pub + `","node":"n2"}`, strings.Repeat(" ", MaxJoin+1)} {
		if q, err := DecodeReturn([]byte(raw)); err == nil || q != (ReturnRequest{}) {
			t.Errorf("%.40q: got %+v, %v", raw, q, err)
		}
	}
}

// FuzzDecodeJoin: whatever knocks at the door, what is let through has been
// signed, and errors are fit for the record.
func FuzzDecodeJoin(f *testing.F) {
	f.Add(testInvite, joinRequest(f))
	f.Add("another0", joinRequest(f))
	f.Add(testInvite, []byte(`{"public_key":"\u0000","signature":"AA"}`))
	f.Add("", []byte("{}"))
	f.Fuzz(func(t *testing.T, invite string, raw []byte) {
		q, err := DecodeJoin(invite, raw)
		if err != nil {
			if len(err.Error()) > 400 || Printable(err.Error(), 400) != err.Error() {
				t.Errorf("the error is not fit for the record: %q", err)
			}
			return
		}
		if !nkeys.IsValidPublicUserKey(q.PublicKey) || q.MachineID != "" && len(q.MachineID) != 32 || len(raw) > MaxJoin {
			t.Errorf("let through: %+v", q)
		}
	})
}

// FuzzDecodeReturn is as [FuzzDecodeJoin], for who comes back.
func FuzzDecodeReturn(f *testing.F) {
	f.Add([]byte(`{"public_key":"UAAAA"}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		if q, err := DecodeReturn(raw); err == nil && !nkeys.IsValidPublicUserKey(q.PublicKey) {
			t.Errorf("let through: %+v", q)
		} else if err != nil && (len(err.Error()) > 400 || Printable(err.Error(), 400) != err.Error()) {
			t.Errorf("the error is not fit for the record: %q", err)
		}
	})
}

// FuzzParseToken: a token may have been anything before it was pasted.
func FuzzParseToken(f *testing.F) {
	f.Add(testToken(f).Encode())
	f.Add("nmj1.e30")
	f.Fuzz(func(t *testing.T, s string) {
		token, err := ParseToken(s)
		if err != nil {
			return
		}
		if again, err := ParseToken(token.Encode()); err != nil || again != token {
			t.Errorf("%+v reads back as %+v, %v", token, again, err)
		}
	})
}
