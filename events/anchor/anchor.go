package anchor

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
)

// Fingerprint of a certificate: sha256 of its DER form, in hex.
func Fingerprint(c *x509.Certificate) string {
	sum := sha256.Sum256(c.Raw)
	return hex.EncodeToString(sum[:])
}

// Parse reads the certificates in a PEM file's content; there is at least one.
func Parse(raw []byte) ([]*x509.Certificate, error) {
	var list []*x509.Certificate
	for {
		var block *pem.Block
		if block, raw = pem.Decode(raw); block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			continue
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, err
		}
		list = append(list, c)
	}
	if len(list) == 0 {
		return nil, errors.New("there is no certificate in it")
	}
	return list, nil
}

// Encode gives a certificate in PEM.
func Encode(c *x509.Certificate) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})
}

// File is the configuration for who has the mesh's CA in a file.
func File(path string) (*tls.Config, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("the mesh's CA cannot be read: %w", err)
	}
	cas, err := Parse(raw)
	if err != nil {
		return nil, fmt.Errorf("%s holds no CA: %w", path, err)
	}
	pool := x509.NewCertPool()
	for _, c := range cas {
		pool.AddCert(c)
	}
	born := cas[0].NotBefore
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		RootCAs:    pool,
		Time:       func() time.Time { return notBefore(time.Now(), born) },
	}, nil
}

// notBefore: a clock that says that the CA is not made yet is wrong (a machine
// without a battery begins in the past), and no reason to keep a machine out.
func notBefore(now, born time.Time) time.Time {
	if now.Before(born) {
		return born
	}
	return now
}

// Pinned is the configuration for who knows only the CA's fingerprint. The
// server sends its CA in the chain; learned is given it, once it is verified
// that the server's certificate is by it and for host.
func Pinned(fingerprint, host string, learned func(*x509.Certificate)) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		// The check below takes the place of the standard one, which cannot
		// know the CA before the handshake.
		InsecureSkipVerify: true,
		VerifyConnection: func(cs tls.ConnectionState) error {
			ca, err := verify(cs.PeerCertificates, fingerprint, host, time.Now())
			if err != nil {
				return &tls.CertificateVerificationError{UnverifiedCertificates: cs.PeerCertificates, Err: err}
			}
			learned(ca)
			return nil
		},
	}
}

func verify(chain []*x509.Certificate, fingerprint, host string, now time.Time) (*x509.Certificate, error) {
	var ca *x509.Certificate
	between := x509.NewCertPool()
	for i, c := range chain {
		switch {
		case i > 0 && c.IsCA && Fingerprint(c) == fingerprint:
			ca = c
		case i > 0:
			between.AddCert(c)
		}
	}
	if ca == nil {
		return nil, x509.UnknownAuthorityError{}
	}
	roots := x509.NewCertPool()
	roots.AddCert(ca)
	_, err := chain[0].Verify(x509.VerifyOptions{
		DNSName: host, Roots: roots, Intermediates: between,
		CurrentTime: notBefore(now, ca.NotBefore), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
	return ca, err
}

// Host is the host in a mesh's URL, which must be one of TLS.
func Host(raw string) (string, error) {
	u, err := url.Parse(raw)
	if err != nil || u.Hostname() == "" || u.Port() == "" {
		return "", fmt.Errorf("%q is no address of a mesh: one is like tls://mesh.example:4222", raw)
	}
	if u.Scheme != "tls" && u.Scheme != "nats" { // which is TLS here, too
		return "", fmt.Errorf("%q is no address of a mesh: one begins with tls://", raw)
	}
	return u.Hostname(), nil
}

// ErrNotThisMesh: the server's certificate is not by the CA of the mesh.
var ErrNotThisMesh = errors.New("the server there is not this mesh, or somebody sits in between: its certificate is not by the CA that is trusted here")

// Explain says what is wrong with the server that a connection was refused to,
// and what helps; an error about something else it gives back as it is.
func Explain(err error) error {
	var (
		authority x509.UnknownAuthorityError
		invalid   x509.CertificateInvalidError
		name      x509.HostnameError
		record    tls.RecordHeaderError
	)
	switch {
	case errors.As(err, &authority):
		return ErrNotThisMesh
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired && invalid.Cert != nil:
		return fmt.Errorf("the server's certificate is good from %s to %s, and the clock here says %s: set the clock if it is wrong; otherwise restart the server, which then makes a new one, or renew the one given with --tls-cert",
			day(invalid.Cert.NotBefore), day(invalid.Cert.NotAfter), time.Now().UTC().Format(time.DateTime))
	case errors.As(err, &name):
		names := name.Certificate.DNSNames
		for _, ip := range name.Certificate.IPAddresses {
			names = append(names, ip.String())
		}
		return fmt.Errorf("the server's certificate is not for %s, but for %s: use one of those names, or start the server with --host %s",
			name.Host, strings.Join(names, ", "), name.Host)
	case errors.As(err, &record), errors.Is(err, nats.ErrSecureConnWanted):
		return fmt.Errorf("the server there does not speak TLS, so it is no mesh: check the address (%w)", err)
	}
	return err
}

func day(t time.Time) string { return t.UTC().Format(time.DateOnly) }
