package events

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func newKey(t testing.TB, role string) *SigningKey {
	t.Helper()
	k, _, err := NewKey(role)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func TestKeysAreOfOneRole(t *testing.T) {
	key, file, err := NewKey(KeyDelivery)
	if err != nil {
		t.Fatal(err)
	}
	again, err := ParseSigningKey(KeyDelivery, file)
	if err != nil || again.Public != key.Public {
		t.Fatalf("read back: %v, %v", again, err)
	}
	if _, err := ParseSigningKey(KeyRelease, file); err == nil {
		t.Error("a delivery key was read as a release key")
	}
	if _, err := ParseSigningKey("root", file); err == nil {
		t.Error("there is no such role")
	}
	if err := CheckKey(KeyRelease, key.Public); err == nil {
		t.Error("a public delivery key passed for a release key")
	}
	secret := strings.TrimSpace(string(file))
	for _, bad := range []string{"", "PRIVATE+KEY+nox-mesh-delivery", secret[:len(secret)-4], secret + "AAAA", key.Public} {
		if _, err := ParseSigningKey(KeyDelivery, []byte(bad)); err == nil {
			t.Errorf("%q was read as a key", bad)
		} else if strings.Contains(err.Error(), secret[len(secret)-20:]) {
			t.Errorf("the error shows the secret: %v", err)
		}
	}
	for _, bad := range []string{"", key.Public + "\n", key.Public[:40] + "\n" + key.Public[40:], strings.Replace(key.Public, "delivery", "Delivery", 1), key.Public + "="} {
		if err := CheckKey(KeyDelivery, bad); err == nil {
			t.Errorf("%q passed for a key", bad)
		}
	}
}

func TestSignatures(t *testing.T) {
	key, other := newKey(t, KeyRelease), newKey(t, KeyRelease)
	text := signedText("release", "1.2.3", "amd64", "10", strings.Repeat("a", 64))
	good, err := key.Sign(text)
	if err != nil {
		t.Fatal(err)
	}
	byOther, err := other.Sign(text)
	if err != nil {
		t.Fatal(err)
	}
	ofOther, err := key.Sign(strings.Replace(text, "1.2.3", "1.2.4", 1))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, signature string
		want            error
	}{
		{"good", good, nil},
		{"none", "", ErrUnsigned},
		{"another key", byOther, ErrOtherKey},
		{"another text", ofOther, ErrBadSignature},
		{"two lines", good + "\n" + good, ErrBadSignature},
		{"a text of its own", text + "\n" + good, ErrBadSignature},
		{"half", good[:len(good)/2], ErrBadSignature},
		{"no signature at all", "signed, the mesh", ErrBadSignature},
	} {
		if err := VerifySignature(KeyRelease, key.Public, text, c.signature); !errors.Is(err, c.want) || (err == nil) != (c.want == nil) {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
	}
	if err := VerifySignature(KeyDelivery, key.Public, text, good); err == nil {
		t.Error("a release key's signature passed for the delivery key's")
	}
}

// A signature is good for one kind of thing: no text of one kind is one of another.
func TestTextsDiffer(t *testing.T) {
	d, err := DeclarationText(&Declared{Node: "n1", Revision: 1})
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, text := range []string{d, ReleaseText(Release{Version: "1", Architecture: "amd64", Size: 1}), RotationText(Rotation{Role: KeyDelivery, Key: "k"})} {
		first, _, _ := strings.Cut(text, "\n")
		if seen[first] || !strings.HasPrefix(first, "nox-mesh ") || !strings.HasSuffix(first, " v1") {
			t.Errorf("text %q begins like another", text)
		}
		seen[first] = true
	}
}

func TestFollowRotations(t *testing.T) {
	k1, k2, k3, thief := newKey(t, KeyDelivery), newKey(t, KeyDelivery), newKey(t, KeyDelivery), newKey(t, KeyDelivery)
	rel := newKey(t, KeyRelease)
	rotate := func(old *SigningKey, key string) Rotation {
		r, err := NewRotation(old, key)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	r2, r3 := rotate(k1, k2.Public), rotate(k2, k3.Public)
	unsigned := Rotation{Role: KeyDelivery, Key: thief.Public}
	asRelease := r2
	asRelease.Role = KeyRelease
	for _, c := range []struct {
		name   string
		pinned string
		chain  []Rotation
		want   string // key that it leads to; empty: refused
	}{
		{"no rotation", k1.Public, nil, k1.Public},
		{"one", k1.Public, []Rotation{r2}, k2.Public},
		{"two", k1.Public, []Rotation{r2, r3}, k3.Public},
		{"pinned in the middle", k2.Public, []Rotation{r2, r3}, k3.Public},
		{"pinned at the end", k3.Public, []Rotation{r2, r3}, k3.Public},
		{"others' rotations between", k1.Public, []Rotation{rotate(rel, newKey(t, KeyRelease).Public), r2, r3}, k3.Public},
		{"out of order", k1.Public, []Rotation{r3, r2}, ""},
		{"a link missing", k1.Public, []Rotation{r3}, ""},
		{"unsigned", k1.Public, []Rotation{unsigned}, ""},
		{"signed by itself", k1.Public, []Rotation{rotate(thief, thief.Public)}, ""},
		{"signed by a stranger", k1.Public, []Rotation{r2, rotate(thief, thief.Public)}, ""},
		{"signed by the key before the last", k1.Public, []Rotation{r2, rotate(k1, thief.Public)}, ""},
		{"the old key again, by itself", k2.Public, []Rotation{rotate(k1, k2.Public), rotate(k1, thief.Public)}, ""},
		{"of another role", k1.Public, []Rotation{asRelease}, k1.Public},
		{"no key", k1.Public, []Rotation{{Role: KeyDelivery, Key: "x", Signature: r2.Signature}}, ""},
		{"pinned no key", "x", []Rotation{r2}, ""},
	} {
		got, err := FollowRotations(KeyDelivery, c.pinned, c.chain)
		if got != c.want || (err != nil) != (c.want == "") {
			t.Errorf("%s: leads to %q, %v", c.name, got, err)
		}
	}
}

// What the mesh signed is what a node reads, through all the encodings between.
func TestTextSurvivesTheWire(t *testing.T) {
	key := newKey(t, KeyDelivery)
	content := rapid.OneOf(rapid.String(), rapid.SampledFrom([]string{"<b>&amp;</b>", "\u2028\u2029", "é \U0001F600 \x00\x7f", "\\u003c", "\"\\\"", "\ufffd"}))
	rapid.Check(t, func(t *rapid.T) {
		var rs []Resource
		for range rapid.IntRange(0, 3).Draw(t, "resources") {
			spec := FileSpec{Mode: "0644", Content: content.Draw(t, "content")}
			r := ResourceFromSpec(ResourceFile, "/etc/"+content.Draw(t, "name"), spec)
			if rapid.Bool().Draw(t, "as a person writes it") {
				r.Spec = json.RawMessage(" { \"mode\" :\"0644\",\n\t\"content\":" + unescaped(spec.Content) + "} ")
			}
			rs = append(rs, r)
		}
		d := &Declared{Node: "n1", Revision: rapid.Uint64Min(1).Draw(t, "revision"), Resources: rs}
		// As the operator's request, then as the event that the log keeps.
		raw, err := json.Marshal(d)
		if err != nil {
			t.Fatal(err)
		}
		var asked Declared
		if err := json.Unmarshal(raw, &asked); err != nil {
			t.Fatal(err)
		}
		text, err := DeclarationText(&asked)
		if err != nil {
			t.Fatal(err)
		}
		if asked.Signature, err = key.Sign(text); err != nil {
			t.Fatal(err)
		}
		e := New("n1", &asked, Origin{Source: "t", Actor: "t"}, time.Now())
		for range 2 {
			if e, err = Decode(e.Encode()); err != nil {
				t.Fatal(err)
			}
		}
		f, err := e.Fact()
		if err != nil {
			t.Fatal(err)
		}
		if err := VerifyDeclaration(key.Public, f.(*Declared)); err != nil {
			t.Fatalf("%v: %s", err, e.Encode())
		}
	})
}

// unescaped is a string in JSON that escapes no more than it must.
func unescaped(s string) string {
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(s); err != nil {
		panic(err)
	}
	return strings.TrimSpace(b.String())
}

func TestPins(t *testing.T) {
	good := Pins{Delivery: newKey(t, KeyDelivery).Public, Release: newKey(t, KeyRelease).Public}
	dir := t.TempDir()
	write := func(name string, raw []byte) string {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, raw, 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	if p, err := LoadPins(write("good", good.Encode())); err != nil || p != good {
		t.Errorf("read back %+v, %v", p, err)
	}
	if _, err := LoadPins(filepath.Join(dir, "none")); !errors.Is(err, ErrNoPins) {
		t.Errorf("a missing file is %v", err)
	}
	swapped := Pins{Delivery: good.Release, Release: good.Delivery}
	for name, raw := range map[string][]byte{
		"empty": {}, "cut": good.Encode()[:20], "half": Pins{Delivery: good.Delivery}.Encode(), "swapped": swapped.Encode(),
		"null": []byte("null"), "large": append(make([]byte, maxPins), good.Encode()...),
	} {
		if _, err := LoadPins(write(name, raw)); err == nil || errors.Is(err, ErrNoPins) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := LoadPins(dir); err == nil || errors.Is(err, ErrNoPins) {
		t.Errorf("a directory is %v", err)
	}
}
