package server

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"noxmesh/events/anchor"
)

// wire is a connection without a client library.
type wire struct {
	net.Conn
	r     *bufio.Reader
	nonce string
}

// plain connects and reads the broker's greeting.
func (a *arena) plain(t *testing.T) *wire {
	t.Helper()
	u, err := url.Parse(a.URL())
	if err != nil {
		t.Fatal(err)
	}
	conn, err := net.Dial("tcp", u.Host)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(2 * patience)); err != nil {
		t.Fatal(err)
	}
	w := &wire{Conn: conn, r: bufio.NewReader(conn)}
	line, err := w.r.ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	var info struct {
		Nonce string `json:"nonce"`
	}
	if err := json.Unmarshal([]byte(strings.TrimPrefix(line, "INFO ")), &info); err != nil {
		t.Fatal(line, err)
	}
	w.nonce = info.Nonce
	return w
}

// secure goes on with TLS.
func (w *wire) secure(t *testing.T, c *tls.Config) error {
	t.Helper()
	conn := tls.Client(w.Conn, c)
	if err := conn.Handshake(); err != nil {
		return err
	}
	w.Conn, w.r = conn, bufio.NewReader(conn)
	return nil
}

// ends sends something and gives the broker's error, or how it closes; nil if it
// answers as to somebody who is let in.
func (w *wire) ends(text string) error {
	if err := w.SetDeadline(time.Now().Add(2 * patience)); err != nil {
		return nil
	}
	go func() { _, _ = io.WriteString(w, text) }()
	for {
		line, err := w.r.ReadString('\n')
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			return nil
		case err != nil:
			return fmt.Errorf("closed: %w", err)
		case strings.HasPrefix(line, "-ERR"):
			return errors.New(strings.TrimSpace(line))
		case strings.HasPrefix(line, "PONG"), strings.HasPrefix(line, "HTTP/1.1 101"), strings.HasPrefix(line, "MSG"):
			return nil
		}
	}
}

// shout logs in as a node, says something, and gives the broker's error.
func (a *arena) shout(t *testing.T, x machine, text string) error {
	t.Helper()
	w := a.plain(t)
	if err := w.secure(t, a.tls(t)); err != nil {
		t.Fatal(err)
	}
	sig, err := x.key.Sign([]byte(w.nonce))
	if err != nil {
		t.Fatal(err)
	}
	return w.ends(fmt.Sprintf("CONNECT {\"jwt\":%q,\"sig\":%q,\"headers\":true}\r\n%s", x.reply.Link, base64.RawURLEncoding.EncodeToString(sig), text))
}

func (a *arena) tls(t *testing.T) *tls.Config {
	t.Helper()
	c, err := anchor.File(CAFile(a.dir))
	if err != nil {
		t.Fatal(err)
	}
	c = c.Clone()
	c.ServerName = "127.0.0.1"
	return c
}

// onTheWire: below and around the protocol.
func (a *arena) onTheWire(t *testing.T) []attack {
	closed := hurdle{"the broker: TLS 1.3 or nothing", `closed|tls|TLS`}
	protocol := hurdle{"the broker: its protocol, and a login first", `-ERR|closed`}
	verifies := hurdle{"the client: it trusts the mesh's CA only", "not this mesh"}
	plaintext := func(what, text string) attack {
		return attack{"stranger", "speaks " + what + " without TLS", closed, func(t *testing.T) error { return a.plain(t).ends(text) }}
	}
	distrust := hurdle{"the client: the certificate is not by its CA, or not for that name", `unknown authority|not other\.example`}
	handshake := func(what string, by hurdle, c func(t *testing.T) *tls.Config) attack {
		return attack{"stranger", "shakes hands with " + what, by, func(t *testing.T) error { return a.plain(t).secure(t, c(t)) }}
	}
	inside := func(what, text string) attack {
		return attack{"stranger", "speaks " + what + " within TLS", protocol, func(t *testing.T) error {
			w := a.plain(t)
			if err := w.secure(t, a.tls(t)); err != nil {
				t.Fatal(err)
			}
			return w.ends(text)
		}}
	}
	old := func(version uint16) func(t *testing.T) *tls.Config {
		return func(t *testing.T) *tls.Config {
			return &tls.Config{InsecureSkipVerify: true, MinVersion: version, MaxVersion: version}
		}
	}
	dial := func(who, what string, by hurdle, place func(t *testing.T) (url, ca string)) attack {
		return attack{who, what, by, func(t *testing.T) error {
			url, ca := place(t)
			c, err := Dial(url, OperatorCredsFile(a.dir), ca)
			if err == nil {
				c.Close()
			}
			return err
		}}
	}
	foreign := func(t *testing.T) (*keyring, string) {
		dir := t.TempDir()
		return keyringAt(t, dir, time.Now()), dir
	}
	const here = "127.0.0.1:0"
	poser := func(t *testing.T, at, info string, c *tls.Config) string {
		l, err := net.Listen("tcp", at)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		greet(l, info, c)
		return l.Addr().String()
	}
	const login = "CONNECT {\"verbose\":true}\r\nPING\r\n"
	http := "GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
	mqtt := "\x10\x10\x00\x04MQTT\x04\x02\x00\x3c\x00\x04evil"
	return []attack{
		plaintext("the protocol", login),
		plaintext("the protocol with a good JWT", fmt.Sprintf("CONNECT {\"jwt\":%q,\"verbose\":true,\"tls_required\":false}\r\nPING\r\n", a.me.reply.Link)),
		plaintext("HTTP", http),
		plaintext("garbage", "\x00\x00\x00\x00\r\n\r\n"),
		handshake("TLS 1.2", closed, old(tls.VersionTLS12)), handshake("TLS 1.1", closed, old(tls.VersionTLS11)), handshake("TLS 1.0", closed, old(tls.VersionTLS10)),
		handshake("another CA in mind", distrust, func(t *testing.T) *tls.Config {
			k, _ := foreign(t)
			roots := x509.NewCertPool()
			roots.AddCert(k.ca)
			return &tls.Config{RootCAs: roots, ServerName: "127.0.0.1"}
		}),
		handshake("another name in mind", distrust, func(t *testing.T) *tls.Config {
			c := a.tls(t)
			c.ServerName = "other.example"
			return c
		}),
		inside("the protocol", login),
		inside("HTTP, to upgrade to WebSocket", http),
		inside("MQTT", mqtt),
		inside("as a leaf node", "CONNECT {\"name\":\"leaf\",\"remote_account\":\"x\",\"jetstream\":true}\r\nLS+ mesh.>\r\nPING\r\n"),
		inside("as another server of a cluster", "INFO {\"server_id\":\"x\",\"cluster\":\"x\"}\r\nRS+ x mesh.>\r\nPING\r\n"),
		inside("commands before a login", "SUB mesh.> 1\r\nPUB mesh.event.node.self 2\r\n{}\r\nPING\r\n"),
		inside("a login of 1 MiB", "CONNECT {\"jwt\":\""+strings.Repeat("x", 1<<20)+"\"}\r\nPING\r\n"),
		dial("man in the middle", "poses as the mesh with a certificate of its own", verifies, func(t *testing.T) (string, string) {
			k, _ := foreign(t)
			return "tls://" + poser(t, here, `{"server_id":"x","max_payload":1,"tls_required":true}`, &tls.Config{Certificates: []tls.Certificate{*k.cert}}), CAFile(a.dir)
		}),
		dial("man in the middle", "takes TLS away from a tls:// address", hurdle{"the client: no plaintext", "does not speak TLS"}, func(t *testing.T) (string, string) {
			return "tls://" + poser(t, here, `{"server_id":"x","max_payload":1}`, nil), CAFile(a.dir)
		}),
		dial("man in the middle", "takes TLS away from a nats:// address", hurdle{"the client: no plaintext", "does not speak TLS"}, func(t *testing.T) (string, string) {
			return "nats://" + poser(t, here, `{"server_id":"x","max_payload":1}`, nil), CAFile(a.dir)
		}),
		dial("man in the middle", "offers TLS 1.2 only", hurdle{"the client: TLS 1.3 or nothing", "(?i)tls|protocol version"}, func(t *testing.T) (string, string) {
			return "tls://" + poser(t, here, `{"server_id":"x","max_payload":1,"tls_required":true}`,
				&tls.Config{Certificates: []tls.Certificate{*a.broker.keyring.cert}, MaxVersion: tls.VersionTLS12}), CAFile(a.dir)
		}),
		dial("operator", "is given another mesh's CA", verifies, func(t *testing.T) (string, string) {
			_, dir := foreign(t)
			return a.URL(), CAFile(dir)
		}),
		dial("man in the middle", "has the mesh's certificate at another address", hurdle{"the client: the certificate's names", "not for 127.0.0.2"}, func(t *testing.T) (string, string) {
			return "tls://" + poser(t, "127.0.0.2:0", `{"server_id":"x","max_payload":1,"tls_required":true}`,
				&tls.Config{Certificates: []tls.Certificate{*a.broker.keyring.cert}}), CAFile(a.dir)
		}),
		{"stranger", "looks for other ports: WebSocket, MQTT, cluster, monitoring", hurdle{"there is one port", "^one port$"}, func(t *testing.T) error {
			ports, err := listening()
			if err != nil {
				t.Skip(err)
			}
			u, err := url.Parse(a.URL())
			if err != nil {
				t.Fatal(err)
			}
			if len(ports) != 1 || !ports[u.Port()] {
				t.Logf("the process listens on %v", ports)
				return nil
			}
			return errors.New("one port")
		}},
	}
}

// listening gives the TCP ports that this process listens on.
func listening() (map[string]bool, error) {
	fds, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		return nil, err
	}
	own, ports := map[string]bool{}, map[string]bool{}
	for _, fd := range fds {
		if to, err := os.Readlink(fd); err == nil {
			own[to] = true
		}
	}
	for _, file := range []string{"/proc/self/net/tcp", "/proc/self/net/tcp6"} {
		raw, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		for line := range strings.Lines(string(raw)) {
			f := strings.Fields(line)
			if len(f) < 10 || f[3] != "0A" || !own["socket:["+f[9]+"]"] {
				continue
			}
			port, err := strconv.ParseUint(f[1][strings.LastIndexByte(f[1], ':')+1:], 16, 16)
			if err != nil {
				return nil, err
			}
			ports[strconv.FormatUint(port, 10)] = true
		}
	}
	return ports, nil
}
