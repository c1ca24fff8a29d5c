package server

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"noxmesh/events/anchor"
)

// Certificates are an installation's own, as PEM files. None: the mesh makes
// its CA and its server certificate.
type Certificates struct {
	Cert string // the server's, with what lies between it and the CA
	Key  string
	CA   string // that clients trust
}

func (c Certificates) given() bool { return c != Certificates{} }

const (
	caLife   = 10 * 365 * 24 * time.Hour
	certLife = 365 * 24 * time.Hour
	// certLeft is how long before its end the mesh replaces its certificate.
	certLeft = 60 * 24 * time.Hour
	// certLook is how often a running server looks whether it is time, or an
	// own certificate was renewed.
	certLook = time.Minute
)

// CAFile is where a server keeps the CA that its clients trust.
func CAFile(dataDir string) string { return filepath.Join(dataDir, "tls", "ca.pem") }

// keyring holds what the server shows to who connects.
type keyring struct {
	dir    string // DATA-DIR/tls
	hosts  []string
	listen string
	own    Certificates
	ca     *x509.Certificate
	caKey  *ecdsa.PrivateKey // nil with own certificates
	logger zerolog.Logger

	mu     sync.Mutex
	cert   *tls.Certificate
	stamp  time.Time // of the own certificate's file
	looked time.Time
}

// openKeyring reads the certificates of a data directory, or makes them if it
// has none. A CA that is damaged is an error: every node trusts that one only.
func openKeyring(dataDir string, own Certificates, hosts []string, listen string, logger zerolog.Logger, now time.Time) (*keyring, error) {
	k := &keyring{dir: filepath.Join(dataDir, "tls"), hosts: hosts, listen: listen, own: own, logger: logger}
	var err error
	if own.given() {
		err = k.takeOwn()
	} else {
		err = k.takeMade(now)
	}
	if err != nil {
		return nil, err
	}
	if now.After(k.ca.NotAfter) {
		return nil, fmt.Errorf("the mesh's CA has expired at %s: remove %s to have a new one made; every node must then join again", k.ca.NotAfter.UTC().Format(time.DateTime), k.dir)
	}
	if !own.given() {
		return k, k.loadMade(now)
	}
	if err := k.loadOwn(now); err != nil {
		return nil, err
	}
	for _, h := range hosts {
		if err := k.cert.Leaf.VerifyHostname(h); err != nil {
			return nil, fmt.Errorf("--host %s: the certificate %s is not for it: %w", h, own.Cert, err)
		}
	}
	return k, nil
}

// joinAgain ends the errors about a change of the CA.
const joinAgain = "nodes trust the CA that they joined with and no other; to change it all the same, remove %s, and let every node join again"

// takeOwn adopts the CA of an installation.
func (k *keyring) takeOwn() error {
	if k.own.Cert == "" || k.own.Key == "" || k.own.CA == "" {
		return errors.New("own certificates are given with --tls-cert, --tls-key and --tls-ca, all three")
	}
	raw, err := os.ReadFile(k.own.CA)
	if err != nil {
		return fmt.Errorf("--tls-ca: %w", err)
	}
	cas, err := anchor.Parse(raw)
	if err != nil {
		return fmt.Errorf("--tls-ca %s: %w", k.own.CA, err)
	}
	if k.ca = cas[0]; !k.ca.IsCA {
		return fmt.Errorf("--tls-ca %s is no CA's certificate", k.own.CA)
	}
	file := filepath.Join(k.dir, "ca.pem")
	have, err := os.ReadFile(file)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if err := os.MkdirAll(k.dir, 0o700); err != nil {
			return dirTrouble(k.dir, err)
		}
		return writeFile(file, anchor.Encode(k.ca))
	case err != nil:
		return dirTrouble(k.dir, err)
	case !bytes.Equal(have, anchor.Encode(k.ca)):
		return fmt.Errorf("--tls-ca %s is not the CA that this mesh has in %s: "+joinAgain, k.own.CA, file, k.dir)
	}
	return nil
}

// takeMade reads the CA that the mesh made, or makes it, whole or not at all.
func (k *keyring) takeMade(now time.Time) error {
	if _, err := os.Stat(k.dir); errors.Is(err, fs.ErrNotExist) {
		if err := makeCA(k.dir, now); err != nil {
			return dirTrouble(k.dir, fmt.Errorf("making the mesh's CA: %w", err))
		}
	}
	restore := fmt.Sprintf("restore %s from a backup: "+joinAgain, k.dir, k.dir)
	raw, err := os.ReadFile(filepath.Join(k.dir, "ca.pem"))
	if err != nil {
		return fmt.Errorf("the mesh's CA: %w: %s", err, restore)
	}
	cas, err := anchor.Parse(raw)
	if err != nil {
		return fmt.Errorf("the mesh's CA, %s: %w: %s", filepath.Join(k.dir, "ca.pem"), err, restore)
	}
	k.ca = cas[0]
	raw, err = os.ReadFile(filepath.Join(k.dir, "ca.key"))
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("the key of the mesh's CA is not in %s: if the mesh ran with certificates of its own, give --tls-cert, --tls-key and --tls-ca; otherwise %s", k.dir, restore)
	}
	if err == nil {
		k.caKey, err = parseKey(raw)
	}
	if err == nil && !k.caKey.PublicKey.Equal(k.ca.PublicKey) {
		err = errors.New("the key is not that of ca.pem")
	}
	if err != nil {
		return fmt.Errorf("the mesh's CA, %s: %w: %s", filepath.Join(k.dir, "ca.key"), err, restore)
	}
	return nil
}

func makeCA(dir string, now time.Time) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	ca := &x509.Certificate{
		SerialNumber: serial(), Subject: pkix.Name{CommonName: "nox-mesh CA"},
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(caLife),
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(rand.Reader, ca, ca, &key.PublicKey, key)
	if err != nil {
		return err
	}
	keyPEM, err := encodeKey(key)
	if err != nil {
		return err
	}
	fresh := dir + ".new" // left over if an earlier start was cut off
	if err := errors.Join(os.RemoveAll(fresh), os.Mkdir(fresh, 0o700)); err != nil {
		return err
	}
	err = errors.Join(
		writeFile(filepath.Join(fresh, "ca.pem"), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})),
		writeFile(filepath.Join(fresh, "ca.key"), keyPEM))
	if err != nil {
		return err
	}
	if err := os.Rename(fresh, dir); err != nil {
		return err
	}
	return syncDir(filepath.Dir(dir))
}

// serial is as random as a CA's must be. rand.Read never fails.
func serial() *big.Int {
	b := make([]byte, 16)
	_, _ = rand.Read(b)
	b[0] &= 0x7f
	return new(big.Int).SetBytes(b)
}

func encodeKey(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), err
}

func parseKey(raw []byte) (*ecdsa.PrivateKey, error) {
	block, _ := pem.Decode(raw)
	if block == nil {
		return nil, errors.New("there is no key in it")
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, err
	}
	ec, ok := key.(*ecdsa.PrivateKey)
	if !ok {
		return nil, errors.New("it is a key of another kind")
	}
	return ec, nil
}

func (k *keyring) serverFile() string { return filepath.Join(k.dir, "server.pem") }

// loadMade takes the server certificate that is there, if it will do; otherwise
// it makes one. Certificate and key are in one file, so that they are of one
// make. A damaged one is no loss.
func (k *keyring) loadMade(now time.Time) error {
	if raw, err := os.ReadFile(k.serverFile()); err == nil {
		if cert, err := tls.X509KeyPair(raw, raw); err == nil && k.fits(cert.Leaf, now) {
			cert.Certificate = append(cert.Certificate[:1], k.ca.Raw)
			k.cert = &cert
			return nil
		} else if err == nil && cert.Leaf.CheckSignatureFrom(k.ca) == nil {
			k.cert = &cert // for its names
		}
	}
	return k.make(now)
}

// fits says whether a server certificate is good for long enough, and for all
// names that the server has now.
func (k *keyring) fits(leaf *x509.Certificate, now time.Time) bool {
	return leaf.CheckSignatureFrom(k.ca) == nil && leaf.NotAfter.Sub(now) > certLeft &&
		len(unite(namesOf(leaf), serverNames(k.hosts, k.listen))) == len(namesOf(leaf))
}

// maxNames bounds the names that a server certificate takes over.
const maxNames = 64

// make makes a server certificate. It begins when the CA does, for machines
// whose clock is behind. It is for the names of the one before, too: a server
// that starts before its network is up is found under its address all the same.
func (k *keyring) make(now time.Time) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return fmt.Errorf("making the server's certificate: %w", err)
	}
	end := now.Add(certLife)
	if end.After(k.ca.NotAfter) {
		end = k.ca.NotAfter
	}
	leaf := &x509.Certificate{
		SerialNumber: serial(), Subject: pkix.Name{CommonName: "nox-mesh server"},
		NotBefore: k.ca.NotBefore, NotAfter: end,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true,
	}
	names := unite(serverNames(k.hosts, k.listen), nil)
	if k.cert != nil {
		if all := unite(names, namesOf(k.cert.Leaf)); len(all) <= maxNames {
			names = all
		}
	}
	for _, n := range names {
		if ip := net.ParseIP(n); ip != nil {
			leaf.IPAddresses = append(leaf.IPAddresses, ip)
		} else {
			leaf.DNSNames = append(leaf.DNSNames, n)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, leaf, k.ca, &key.PublicKey, k.caKey)
	if err != nil {
		return fmt.Errorf("making the server's certificate: %w", err)
	}
	keyPEM, err := encodeKey(key)
	if err != nil {
		return fmt.Errorf("making the server's certificate: %w", err)
	}
	raw := append(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), keyPEM...)
	cert, err := tls.X509KeyPair(raw, raw)
	if err != nil {
		return fmt.Errorf("making the server's certificate: %w", err)
	}
	cert.Certificate = append(cert.Certificate[:1], k.ca.Raw)
	if err := writeFile(k.serverFile(), raw); err != nil {
		return dirTrouble(k.dir, err)
	}
	k.cert = &cert
	return nil
}

// loadOwn reads the installation's certificate and checks that clients will
// take it.
func (k *keyring) loadOwn(now time.Time) error {
	cert, err := tls.LoadX509KeyPair(k.own.Cert, k.own.Key)
	if err != nil {
		return fmt.Errorf("--tls-cert and --tls-key: %w", err)
	}
	roots, between := x509.NewCertPool(), x509.NewCertPool()
	roots.AddCert(k.ca)
	sent := false
	for _, der := range cert.Certificate[1:] {
		c, err := x509.ParseCertificate(der)
		if err != nil {
			return fmt.Errorf("--tls-cert %s: %w", k.own.Cert, err)
		}
		between.AddCert(c)
		sent = sent || c.Equal(k.ca)
	}
	if _, err := cert.Leaf.Verify(x509.VerifyOptions{Roots: roots, Intermediates: between, CurrentTime: now,
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}); err != nil {
		return fmt.Errorf("--tls-cert %s is not one that who trusts %s takes: %w", k.own.Cert, k.own.CA, err)
	}
	// Who joins knows the CA by its fingerprint, and gets it from the chain.
	if !sent {
		cert.Certificate = append(cert.Certificate, k.ca.Raw)
	}
	info, err := os.Stat(k.own.Cert)
	if err != nil {
		return fmt.Errorf("--tls-cert: %w", err)
	}
	k.cert, k.stamp = &cert, info.ModTime()
	return nil
}

// certificate is the one to show now. A server may run for years, and its
// addresses may change.
func (k *keyring) certificate(now time.Time) *tls.Certificate {
	k.mu.Lock()
	defer k.mu.Unlock()
	if now.Sub(k.looked) < certLook {
		return k.cert
	}
	k.looked = now
	var err error
	if k.own.given() {
		if info, statErr := os.Stat(k.own.Cert); statErr == nil && !info.ModTime().Equal(k.stamp) {
			err = k.loadOwn(now)
		}
	} else if !k.fits(k.cert.Leaf, now) {
		err = k.make(now)
	}
	if err != nil {
		k.logger.Error().Err(err).Time("ends", k.cert.Leaf.NotAfter).Msg("the server's certificate could not be renewed; the one from before stays")
	}
	return k.cert
}

// callable gives a host that the certificate is for: the one asked about, if it
// is, or else the first that it names.
func (k *keyring) callable(host string) string {
	leaf := k.certificate(time.Now()).Leaf
	if !k.own.given() || leaf.VerifyHostname(host) == nil {
		return host // one that the mesh makes is for all of its names
	}
	for _, name := range leaf.DNSNames {
		if !strings.Contains(name, "*") {
			return name
		}
	}
	return host
}

// config is what the broker listens with.
func (k *keyring) config() *tls.Config {
	return &tls.Config{
		MinVersion:     tls.VersionTLS13,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return k.certificate(time.Now()), nil },
	}
}
