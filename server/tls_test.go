package server

import (
	"bufio"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"noxmesh/events/anchor"
)

func keyringAt(t testing.TB, dir string, now time.Time, hosts ...string) *keyring {
	t.Helper()
	k, err := openKeyring(dir, Certificates{}, hosts, "127.0.0.1", testLog(t), now)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

const days = 24 * time.Hour

func TestTheServersCertificateIsMadeAnewInTime(t *testing.T) {
	now := time.Now()
	for _, tt := range []struct {
		name    string
		later   time.Duration
		hosts   []string
		prepare func(dir string) error
		renewed bool
	}{
		{name: "the next day", later: days},
		{name: "with 61 days left", later: certLife - 61*days},
		{name: "with 59 days left", later: certLife - 59*days, renewed: true},
		{name: "long after its end", later: 3 * certLife, renewed: true},
		{name: "with another name", hosts: []string{"mesh.example", "other.example"}, renewed: true},
		{name: "with one name less", hosts: []string{}},
		{name: "when it is damaged", prepare: func(dir string) error {
			return os.WriteFile(filepath.Join(dir, "tls", "server.pem"), []byte("x"), 0o600)
		}, renewed: true},
		{name: "when it is gone", prepare: func(dir string) error { return os.Remove(filepath.Join(dir, "tls", "server.pem")) }, renewed: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			first := keyringAt(t, dir, now, "mesh.example")
			if tt.prepare != nil {
				if err := tt.prepare(dir); err != nil {
					t.Fatal(err)
				}
			}
			hosts := tt.hosts
			if hosts == nil {
				hosts = []string{"mesh.example"}
			}
			then := now.Add(tt.later)
			second := keyringAt(t, dir, then, hosts...)
			if !second.ca.Equal(first.ca) {
				t.Error("the CA is another one")
			}
			if renewed := !second.cert.Leaf.Equal(first.cert.Leaf); renewed != tt.renewed {
				t.Errorf("renewed: %v, want %v", renewed, tt.renewed)
			}
			roots := x509.NewCertPool()
			roots.AddCert(first.ca)
			for _, name := range append(hosts, "localhost", "127.0.0.1", "::1") {
				if _, err := second.cert.Leaf.Verify(x509.VerifyOptions{DNSName: name, Roots: roots, CurrentTime: then}); err != nil {
					t.Errorf("%s: %v", name, err)
				}
			}
		})
	}
}

// TestARunningServerRenewsItsCertificate: it may run for years.
func TestARunningServerRenewsItsCertificate(t *testing.T) {
	now := time.Now()
	k := keyringAt(t, t.TempDir(), now)
	first := k.certificate(now)
	if k.certificate(now.Add(certLife-61*days)) != first {
		t.Error("it was renewed too early")
	}
	second := k.certificate(now.Add(certLife - 59*days))
	if second == first || second.Leaf.NotAfter.Sub(now) < certLife+200*days {
		t.Errorf("it was not renewed: good until %s", second.Leaf.NotAfter)
	}
}

func TestTheCAIsWholeOrNotAtAll(t *testing.T) {
	dir := t.TempDir()
	now := time.Now()
	if err := os.MkdirAll(filepath.Join(dir, "tls.new"), 0o700); err != nil { // a first start that was cut off
		t.Fatal(err)
	}
	keyringAt(t, dir, now)
	for _, name := range []string{"ca.pem", "ca.key", "server.pem"} {
		info, err := os.Stat(filepath.Join(dir, "tls", name))
		if err != nil || info.Mode() != 0o600 {
			t.Errorf("%s: %v, %v", name, info.Mode(), err)
		}
	}
	foreign := t.TempDir()
	keyringAt(t, foreign, now)
	for _, tt := range []struct {
		name, file, content, want string
		later                     time.Duration
	}{
		{"no certificate", "ca.pem", "-", "restore", 0},
		{"a damaged certificate", "ca.pem", "x", "there is no certificate in it", 0},
		{"no key", "ca.key", "-", "--tls-cert, --tls-key and --tls-ca", 0},
		{"a damaged key", "ca.key", "x", "there is no key in it", 0},
		{"another CA's key", "ca.key", "foreign", "the key is not that of ca.pem", 0},
		{"it has expired", "", "", "expired", caLife + days},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			keyringAt(t, dir, now)
			file := filepath.Join(dir, "tls", tt.file)
			var err error
			switch tt.content {
			case "":
			case "-":
				err = os.Remove(file)
			case "foreign":
				var raw []byte
				if raw, err = os.ReadFile(filepath.Join(foreign, "tls", tt.file)); err == nil {
					err = os.WriteFile(file, raw, 0o600)
				}
			default:
				err = os.WriteFile(file, []byte(tt.content), 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
			_, err = openKeyring(dir, Certificates{}, nil, "127.0.0.1", testLog(t), now.Add(tt.later))
			wantError(t, err, tt.want, filepath.Join(dir, "tls"))
		})
	}
}

// authority is a CA of an installation.
type authority struct {
	dir  string
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{dir: t.TempDir()}
	var err error
	if a.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{SerialNumber: serial(), Subject: pkix.Name{CommonName: "company CA"}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(365 * days), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &a.key.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	a.write(t, "ca.pem", anchor.Encode(a.cert))
	return a
}

func (a *authority) write(t *testing.T, name string, raw []byte) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(a.dir, name), raw, 0o600); err != nil {
		t.Fatal(err)
	}
}

func (a *authority) issue(t *testing.T, serverName string) Certificates {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{SerialNumber: serial(), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(90 * days),
		DNSNames: []string{serverName}, KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, a.cert, &key.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	keyPEM, err := encodeKey(key)
	if err != nil {
		t.Fatal(err)
	}
	a.write(t, "cert.pem", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	a.write(t, "key.pem", keyPEM)
	return Certificates{Cert: filepath.Join(a.dir, "cert.pem"), Key: filepath.Join(a.dir, "key.pem"), CA: filepath.Join(a.dir, "ca.pem")}
}

// TestOwnCertificates: a server with an installation's certificates is found
// under their name, and machines join it.
func TestOwnCertificates(t *testing.T) {
	a := newAuthority(t)
	own := a.issue(t, "localhost")
	dir := t.TempDir()
	s, err := Start(testContext(t), Config{DataDir: dir, Listen: "127.0.0.1:0", Certificates: own, Logger: testLog(t)})
	if err != nil {
		t.Fatal(err)
	}
	w := &whole{Server: s, dir: dir}
	t.Cleanup(func() { w.stop(t) })
	if !strings.HasPrefix(s.URL(), "tls://localhost:") || !strings.HasPrefix(s.OutsideURL(), "tls://localhost:") {
		t.Errorf("it is found at %s and %s, and its certificate is for localhost", s.URL(), s.OutsideURL())
	}
	if w.client, err = Dial(s.URL(), OperatorCredsFile(dir), CAFile(dir)); err != nil {
		t.Fatal(err)
	}
	w.node(t, "n1", nil).Close()

	// A renewed file is taken up by the running server.
	k := w.broker.keyring
	first := k.certificate(time.Now())
	a.issue(t, "localhost")
	if err := os.Chtimes(own.Cert, time.Time{}, time.Now().Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	if second := k.certificate(time.Now().Add(2 * certLook)); second.Leaf.Equal(first.Leaf) {
		t.Error("the renewed certificate is not used")
	}
	// One that is no good is not.
	a.write(t, "cert.pem", []byte("x"))
	k.logger = zerolog.Nop()
	if third := k.certificate(time.Now().Add(4 * certLook)); third == nil || third.Leaf.Equal(first.Leaf) {
		t.Error("a damaged file has displaced the certificate in use")
	}
}

func TestOwnCertificatesThatWillNotDo(t *testing.T) {
	a, b := newAuthority(t), newAuthority(t)
	own, foreign := a.issue(t, "mesh.example"), b.issue(t, "mesh.example")
	for _, tt := range []struct {
		name  string
		made  bool // the mesh has made its own CA before
		certs Certificates
		hosts []string
		want  string
	}{
		{"one is missing", false, Certificates{Cert: own.Cert, Key: own.Key}, nil, "all three"},
		{"another's key", false, Certificates{own.Cert, foreign.Key, own.CA}, nil, "private key does not match"},
		{"another's CA", false, Certificates{own.Cert, own.Key, foreign.CA}, nil, "is not one that who trusts"},
		{"no CA", false, Certificates{own.Cert, own.Key, own.Cert}, nil, "is no CA's certificate"},
		{"another name", false, own, []string{"mesh.example", "other.example"}, "--host other.example: the certificate"},
		{"nodes trust another CA", true, own, nil, "nodes trust the CA that they joined with"},
		{"no such file", false, Certificates{own.Cert, own.Key, "/nonexistent"}, nil, "--tls-ca"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			if tt.made {
				keyringAt(t, dir, time.Now())
			}
			_, err := openKeyring(dir, tt.certs, tt.hosts, "127.0.0.1", testLog(t), time.Now())
			wantError(t, err, tt.want)
		})
	}
	// And back: the flags were forgotten.
	dir := t.TempDir()
	if _, err := openKeyring(dir, own, nil, "127.0.0.1", testLog(t), time.Now()); err != nil {
		t.Fatal(err)
	}
	_, err := openKeyring(dir, Certificates{}, nil, "127.0.0.1", testLog(t), time.Now())
	wantError(t, err, "give --tls-cert, --tls-key and --tls-ca")
}

// TestNothingButTLS13: who speaks plaintext or an older TLS gets nowhere.
func TestNothingButTLS13(t *testing.T) {
	m := startMesh(t, t.TempDir())
	u, err := url.Parse(m.broker.ClientURL())
	if err != nil || u.Scheme != "tls" {
		t.Fatal(m.broker.ClientURL(), err)
	}
	info := func() (net.Conn, *bufio.Reader) {
		conn, err := net.Dial("tcp", u.Host)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
			t.Fatal(err)
		}
		r := bufio.NewReader(conn)
		line, err := r.ReadString('\n')
		if err != nil || !strings.Contains(line, `"tls_required":true`) {
			t.Errorf("the broker greets with %q, %v", line, err)
		}
		return conn, r
	}
	conn, r := info()
	creds, _, err := m.identity.UserCreds("alice", RoleOperator)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(conn, "CONNECT {\"jwt\":%q,\"verbose\":true}\r\nPING\r\n", creds)
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			break
		}
		if !strings.HasPrefix(line, "-ERR") {
			t.Errorf("it answers plaintext with %q", line)
		}
	}
	conn, _ = info()
	old := tls.Client(conn, &tls.Config{InsecureSkipVerify: true, MaxVersion: tls.VersionTLS12})
	if err := old.Handshake(); err == nil {
		t.Error("it takes TLS 1.2")
	}
}

// TestDialSaysWhatIsWrong: each way in which the other side is not the mesh.
func TestDialSaysWhatIsWrong(t *testing.T) {
	id, err := LoadOrCreateIdentity(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	b, err := StartBroker(BrokerConfig{DataDir: dir, Listen: "0.0.0.0:0", Identity: id, Logger: testLog(t).Level(zerolog.Disabled)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Shutdown(testContext(t)) })
	creds, _, err := id.UserCreds("alice", RoleOperator)
	if err == nil {
		err = writeFile(OperatorCredsFile(dir), creds)
	}
	if err != nil {
		t.Fatal(err)
	}
	foreign := t.TempDir()
	keyringAt(t, foreign, time.Now())
	old := t.TempDir()
	expired := keyringAt(t, old, time.Now().Add(-2*certLife))
	plain, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	greet(plain, `{"server_id":"x","max_payload":1}`, nil)
	late, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer late.Close()
	greet(late, `{"server_id":"x","max_payload":1,"tls_required":true}`, &tls.Config{Certificates: []tls.Certificate{*expired.cert}})
	for _, tt := range []struct{ name, url, ca, want string }{
		{"the mesh itself", b.ClientURL(), CAFile(dir), ""},
		{"by another scheme", strings.Replace(b.ClientURL(), "tls://", "nats://", 1), CAFile(dir), ""},
		{"another CA", b.ClientURL(), CAFile(foreign), "not this mesh, or somebody sits in between.*--ca or NOX_MESH_CA"},
		{"no CA", b.ClientURL(), "/nonexistent", "copy tls/ca.pem"},
		{"another name", strings.Replace(b.ClientURL(), "127.0.0.1", "127.0.0.2", 1), CAFile(dir), "not for 127.0.0.2, but for .*--host 127.0.0.2"},
		{"no TLS there", "tls://" + plain.Addr().String(), CAFile(dir), "does not speak TLS, so it is no mesh"},
		{"downgraded", "nats://" + plain.Addr().String(), CAFile(dir), "does not speak TLS, so it is no mesh"},
		{"expired", "tls://" + late.Addr().String(), CAFile(old), "good from .* to .*, and the clock here says"},
		{"nobody", "tls://127.0.0.1:1", CAFile(dir), "no mesh answers at"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, err := Dial(tt.url, OperatorCredsFile(dir), tt.ca)
			if tt.want == "" {
				if err != nil {
					t.Fatal(err)
				}
				c.Close()
				return
			}
			if err == nil || !regexp.MustCompile(tt.want).MatchString(err.Error()) {
				t.Errorf("got %v, want %s", err, tt.want)
			}
		})
	}
}

// greet plays a broker up to the handshake.
func greet(l net.Listener, info string, cfg *tls.Config) {
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				fmt.Fprintf(conn, "INFO %s\r\n", info)
				if cfg != nil {
					_ = tls.Server(conn, cfg).Handshake()
				}
				_, _ = bufio.NewReader(conn).ReadString('\n')
			}()
		}
	}()
}
