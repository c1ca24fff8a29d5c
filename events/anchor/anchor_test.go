package anchor

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

var born = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

const year = 365 * 24 * time.Hour

type issuer struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// issue makes a certificate; its own if by is nil.
func issue(t *testing.T, by *issuer, ca bool, life time.Duration, name string) *issuer {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotBefore: born, NotAfter: born.Add(life),
		BasicConstraintsValid: true, IsCA: ca, KeyUsage: x509.KeyUsageDigitalSignature}
	if ca {
		c.KeyUsage |= x509.KeyUsageCertSign
	} else {
		c.DNSNames, c.ExtKeyUsage = []string{name}, []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	}
	parent, signer := c, key
	if by != nil {
		parent, signer = by.cert, by.key
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, signer)
	if err != nil {
		t.Fatal(err)
	}
	if c, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	return &issuer{c, key}
}

func TestVerifyPinned(t *testing.T) {
	ca, other := issue(t, nil, true, 10*year, "CA"), issue(t, nil, true, 10*year, "CA")
	between := issue(t, ca, true, 5*year, "between")
	leaf, deep := issue(t, ca, false, year, "mesh.example"), issue(t, between, false, year, "mesh.example")
	foreign := issue(t, other, false, year, "mesh.example")
	chain := func(list ...*issuer) (out []*x509.Certificate) {
		for _, i := range list {
			out = append(out, i.cert)
		}
		return out
	}
	var (
		authority x509.UnknownAuthorityError
		invalid   x509.CertificateInvalidError
		name      x509.HostnameError
	)
	now := born.Add(year / 2)
	for _, tt := range []struct {
		name  string
		chain []*x509.Certificate
		host  string
		now   time.Time
		want  any // nil: it is the mesh
	}{
		{"the mesh", chain(leaf, ca), "mesh.example", now, nil},
		{"with another CA in between", chain(deep, between, ca), "mesh.example", now, nil},
		{"a clock that is years behind", chain(leaf, ca), "mesh.example", time.Unix(0, 0), nil},
		{"expired", chain(leaf, ca), "mesh.example", born.Add(2 * year), &invalid},
		{"another name", chain(leaf, ca), "other.example", now, &name},
		{"another CA", chain(foreign, other), "mesh.example", now, &authority},
		{"another CA that shows ours as well", chain(foreign, other, ca), "mesh.example", now, &authority},
		{"the CA is not sent", chain(leaf), "mesh.example", now, &authority},
		{"the CA alone", chain(ca), "mesh.example", now, &authority},
		{"nothing", nil, "mesh.example", now, &authority},
	} {
		got, err := verify(tt.chain, Fingerprint(ca.cert), tt.host, tt.now)
		switch {
		case tt.want == nil && (err != nil || !got.Equal(ca.cert)):
			t.Errorf("%s: %v", tt.name, err)
		case tt.want != nil && (err == nil || !errors.As(err, tt.want)):
			t.Errorf("%s: got %v", tt.name, err)
		}
	}
}

func TestFile(t *testing.T) {
	dir := t.TempDir()
	ca := issue(t, nil, true, year, "CA")
	good := filepath.Join(dir, "ca.pem")
	bad := filepath.Join(dir, "bad.pem")
	if err := errors.Join(os.WriteFile(good, Encode(ca.cert), 0o600), os.WriteFile(bad, []byte("x"), 0o600)); err != nil {
		t.Fatal(err)
	}
	cfg, err := File(good)
	if err != nil {
		t.Fatal(err)
	}
	if now := cfg.Time(); now.Before(born) || time.Since(now) > time.Minute && now.After(born) {
		t.Errorf("the clock to verify by says %s", now)
	}
	for file, want := range map[string]string{bad: "holds no CA", filepath.Join(dir, "none"): "cannot be read"} {
		if _, err := File(file); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", file, err)
		}
	}
}

func TestHost(t *testing.T) {
	for raw, want := range map[string]string{
		"tls://mesh.example:4222": "mesh.example", "tls://[::1]:4222": "::1", "nats://127.0.0.1:1": "127.0.0.1",
		"mesh.example:4222": "", "tls://mesh.example": "", "ws://x:1": "", "tls://:4222": "", "": "", "tls://%zz:1": "",
	} {
		if got, err := Host(raw); got != want || (err == nil) != (want != "") {
			t.Errorf("%s: %q, %v", raw, got, err)
		}
	}
}
