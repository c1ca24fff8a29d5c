package nodeagent_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nkeys"

	"noxmesh/events"
	"noxmesh/nodeagent"
	"noxmesh/nodeagent/simnode"
)

// patience is how long a test waits for what must come.
const patience = 20 * time.Second

// mesh is a real broker with the mesh's streams and nothing else of it.
type mesh struct {
	t        *testing.T
	dir      string
	port     int
	operator nkeys.KeyPair
	account  nkeys.KeyPair
	signing  nkeys.KeyPair
	claims   *jwt.AccountClaims
	srv      *server.Server
	nc       *nats.Conn // with all rights
	js       jetstream.JetStream
	// the first heartbeat and report that no test has looked at yet. They are
	// read from the streams: a node may be back before this is, after a restart.
	heartbeats, reports uint64
}

// nodeGrants is what a node may do.
func nodeGrants() jwt.UserPermissionLimits {
	var p jwt.UserPermissionLimits
	p.NatsLimits = jwt.NatsLimits{Subs: -1, Data: -1, Payload: -1}
	p.Pub.Allow.Add("mesh.heartbeat.{{name()}}", "mesh.report.{{name()}}.*",
		"$JS.API.DIRECT.GET.DECLARATIONS.mesh.declared.{{name()}}",
		"$JS.API.DIRECT.GET.OBJ_packages.$O.packages.M.>", "$JS.API.DIRECT.GET.OBJ_packages.$O.packages.C.>")
	p.Sub.Allow.Add("mesh.declaration.{{name()}}", "_INBOX.node.{{name()}}.>")
	return p
}

func newMesh(t *testing.T, grants jwt.UserPermissionLimits) *mesh {
	t.Helper()
	m := &mesh{t: t, dir: t.TempDir(), port: server.RANDOM_PORT}
	m.operator, m.account, m.signing = must(nkeys.CreateOperator()), must(nkeys.CreateAccount()), must(nkeys.CreateAccount())
	scope := jwt.NewUserScope()
	scope.Key, scope.Role, scope.Template = must(m.signing.PublicKey()), "node", grants
	m.claims = jwt.NewAccountClaims(must(m.account.PublicKey()))
	m.claims.Limits.JetStreamLimits = jwt.JetStreamLimits{MemoryStorage: -1, DiskStorage: -1, Streams: -1, Consumer: -1}
	m.claims.SigningKeys.AddScopedSigner(scope)
	m.start(true)
	m.streams()
	t.Cleanup(m.stop)
	return m
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func mustDo(err error) {
	if err != nil {
		panic(err)
	}
}

// start starts the broker. One that does not listen is there for the test only.
func (m *mesh) start(listen bool) {
	m.t.Helper()
	operator := jwt.NewOperatorClaims(must(m.operator.PublicKey()))
	system := must(nkeys.CreateAccount())
	systemJWT := must(jwt.NewAccountClaims(must(system.PublicKey())).Encode(m.operator))
	resolver := &server.MemAccResolver{}
	for key, token := range map[string]string{
		must(m.account.PublicKey()): must(m.claims.Encode(m.operator)), must(system.PublicKey()): systemJWT,
	} {
		if err := resolver.Store(key, token); err != nil {
			m.t.Fatal(err)
		}
	}
	must(operator.Encode(m.operator))
	srv, err := server.NewServer(&server.Options{
		Host: "127.0.0.1", Port: m.port, DontListen: !listen, NoSigs: true, NoLog: true,
		JetStream: true, StoreDir: filepath.Join(m.dir, "broker"),
		TrustedOperators: []*jwt.OperatorClaims{operator}, AccountResolver: resolver,
		SystemAccount: must(system.PublicKey()),
	})
	if err != nil {
		m.t.Fatal(err)
	}
	srv.Start()
	if !srv.ReadyForConnections(patience) {
		m.t.Fatal("the broker does not start")
	}
	m.srv = srv
	if listen && m.port == server.RANDOM_PORT {
		m.port = srv.Addr().(*net.TCPAddr).Port
	}
	m.connect()
}

func (m *mesh) connect() {
	user := must(nkeys.CreateUser())
	claims := jwt.NewUserClaims(must(user.PublicKey()))
	claims.Name = "test"
	token := must(claims.Encode(m.account))
	seed := must(user.Seed())
	var err error
	m.nc, err = nats.Connect("", nats.InProcessServer(m.srv), nats.UserJWTAndSeed(token, string(seed)))
	if err != nil {
		m.t.Fatal(err)
	}
	m.js = must(jetstream.New(m.nc))
}

// next hands over the messages of a stream from *from on until found says so.
func (m *mesh) next(stream string, from *uint64, found func(events.Message) bool) error {
	ctx, cancel := context.WithTimeout(m.t.Context(), patience)
	defer cancel()
	errFound := errors.New("found")
	err := events.ReadStream(ctx, m.js, stream, events.ReadOptions{From: *from, Follow: true}, func(msg events.Message) error {
		*from = msg.Seq + 1
		if found(msg) {
			return errFound
		}
		return nil
	})
	if errors.Is(err, errFound) {
		return nil
	}
	return err
}

func (m *mesh) stop() {
	m.nc.Close()
	m.srv.Shutdown()
	m.srv.WaitForShutdown()
}

func (m *mesh) url() string { return fmt.Sprintf("nats://127.0.0.1:%d", m.port) }

func (m *mesh) streams() {
	ctx, cancel := context.WithTimeout(m.t.Context(), patience)
	defer cancel()
	for _, cfg := range []jetstream.StreamConfig{
		{Name: events.StreamEvents, Subjects: []string{"mesh.event.>"}},
		{Name: events.StreamDeclarations, MaxMsgsPerSubject: 1, AllowDirect: true,
			Sources: []*jetstream.StreamSource{{Name: events.StreamEvents, SubjectTransforms: []jetstream.SubjectTransformConfig{
				{Source: "mesh.event.declaration.*", Destination: "mesh.declared.{{wildcard(1)}}"}}}},
			RePublish: &jetstream.RePublish{Source: "mesh.declared.*", Destination: "mesh.declaration.{{wildcard(1)}}"}},
		{Name: events.StreamHeartbeats, Subjects: []string{"mesh.heartbeat.*"}, MaxMsgsPerSubject: 100},
		{Name: events.StreamReports, Subjects: []string{"mesh.report.*.*"}, MaxMsgSize: events.MaxReport},
	} {
		if _, err := m.js.CreateStream(ctx, cfg); err != nil {
			m.t.Fatal(err)
		}
	}
	if _, err := m.js.CreateObjectStore(ctx, jetstream.ObjectStoreConfig{Bucket: events.BucketPackages}); err != nil {
		m.t.Fatal(err)
	}
}

// creds makes a node's credentials file.
func (m *mesh) creds(node string) string {
	m.t.Helper()
	file := filepath.Join(m.dir, node+".creds")
	if err := os.WriteFile(file, nodeCreds(m.account, m.signing, node), 0o600); err != nil {
		m.t.Fatal(err)
	}
	return file
}

func nodeCreds(account, signing nkeys.KeyPair, node string) []byte {
	user := must(nkeys.CreateUser())
	claims := jwt.NewUserClaims(must(user.PublicKey()))
	claims.Name, claims.IssuerAccount = node, must(account.PublicKey())
	claims.SetScoped(true)
	return must(jwt.FormatUserConfig(must(claims.Encode(signing)), must(user.Seed())))
}

const arch = "amd64"

// aPackage is a small package, and aBigPackage one of three parts.
func aPackage(t *testing.T, version string) []byte { return packageOf(t, version, 10) }

func aBigPackage(t *testing.T, version string) []byte {
	return packageOf(t, version, 2*events.PackagePartSize+100)
}

func packageOf(t *testing.T, version string, size int) []byte {
	t.Helper()
	payload := make([]byte, 0, size+sha256.Size) // must not compress away
	for len(payload) < size {
		sum := sha256.Sum256(fmt.Appendf(nil, "%s %d", version, len(payload)))
		payload = append(payload, sum[:]...)
	}
	payload = payload[:size]
	var buf bytes.Buffer
	if err := simnode.WriteDeb(&buf, events.HostPackage, version, arch, payload); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

func releaseOf(raw []byte, version string) events.Release {
	sum := sha256.Sum256(raw)
	return events.Release{Version: version, Architecture: arch, File: events.PackageFile(version, arch), Size: int64(len(raw)), SHA256: hex.EncodeToString(sum[:])}
}

// add puts a package into the store as the mesh does.
func (m *mesh) add(raw []byte, version string) events.Release {
	m.t.Helper()
	ctx, cancel := context.WithTimeout(m.t.Context(), patience)
	defer cancel()
	store, err := m.js.ObjectStore(ctx, events.BucketPackages)
	if err != nil {
		m.t.Fatal(err)
	}
	rel := releaseOf(raw, version)
	for part, left := 0, raw; len(left) > 0; part++ {
		n := min(len(left), events.PackagePartSize)
		meta := jetstream.ObjectMeta{Name: events.PackagePart(rel.SHA256, part), Opts: &jetstream.ObjectMetaOptions{ChunkSize: events.PackagePartSize}}
		if _, err := store.Put(ctx, meta, bytes.NewReader(left[:n])); err != nil {
			m.t.Fatal(err)
		}
		left = left[n:]
	}
	return rel
}

// declare writes a declaration into the log.
func (m *mesh) declare(node string, revision uint64, resources ...events.Resource) {
	m.t.Helper()
	m.append(declared(node, revision, resources...))
}

func (m *mesh) append(e events.Event) {
	m.t.Helper()
	ctx, cancel := context.WithTimeout(m.t.Context(), patience)
	defer cancel()
	if _, err := m.js.Publish(ctx, must(e.StreamSubject()), e.Encode()); err != nil {
		m.t.Fatal(err)
	}
}

func declared(node string, revision uint64, resources ...events.Resource) events.Event {
	return events.New(node, &events.Declared{Node: node, Revision: revision,
		Because: events.DeclarationCause{Kind: events.CauseOperator}, Resources: resources},
		events.Origin{Source: "test", Actor: "tester"}, time.Now())
}

func host(spec events.HostSpec) events.Resource {
	return events.ResourceFromSpec(events.ResourceHost, events.HostPackage, spec)
}

// heartbeat waits for a heartbeat of a node that is so.
func (m *mesh) heartbeat(node string, want func(events.Heartbeat) bool) events.Heartbeat {
	m.t.Helper()
	var last events.Heartbeat
	err := m.next(events.StreamHeartbeats, &m.heartbeats, func(msg events.Message) bool {
		h, err := events.DecodeHeartbeat(msg.Data)
		if err != nil {
			m.t.Fatal(err)
		}
		if msg.Subject != events.HeartbeatSubject(node) {
			return false
		}
		last = h
		return want(h)
	})
	if err != nil {
		m.t.Fatalf("no such heartbeat of %s came, the last was %+v: %v", node, last, err)
	}
	return last
}

// report waits for the next report of one kind, passing over others.
func (m *mesh) report(node, kind string) (events.Report, events.ReportFact) {
	m.t.Helper()
	var r events.Report
	var f events.ReportFact
	err := m.next(events.StreamReports, &m.reports, func(msg events.Message) bool {
		if msg.Subject != events.ReportSubject(node, kind) {
			return false
		}
		var err error
		if r, f, err = events.DecodeReport(kind, msg.Data); err != nil {
			m.t.Fatal(err)
		}
		return true
	})
	if err != nil {
		m.t.Fatalf("no %s report of %s came: %v", kind, node, err)
	}
	return r, f
}

// kept lists the reports that the stream holds, without repetitions.
func (m *mesh) kept(kind string) []events.ReportFact {
	m.t.Helper()
	ctx, cancel := context.WithTimeout(m.t.Context(), patience)
	defer cancel()
	var facts []events.ReportFact
	seen := map[string]bool{}
	err := events.ReadStream(ctx, m.js, events.StreamReports, events.ReadOptions{Subjects: []string{"mesh.report.*." + kind}}, func(msg events.Message) error {
		r, f, err := events.DecodeReport(kind, msg.Data)
		if err == nil && !seen[r.ID] {
			seen[r.ID] = true
			facts = append(facts, f)
		}
		return err
	})
	if err != nil && !errors.Is(err, jetstream.ErrMsgNotFound) {
		m.t.Fatal(err)
	}
	return facts
}

func asJSON(v any) string { return string(must(json.Marshal(v))) }

// awaitDeclared waits until the broker derived a node's declaration.
func (m *mesh) awaitDeclared(node string, revision uint64) {
	m.t.Helper()
	sub := must(m.nc.SubscribeSync(events.DeclarationSubject(node)))
	defer sub.Unsubscribe()
	if err := m.nc.Flush(); err != nil {
		m.t.Fatal(err)
	}
	s := must(m.js.Stream(m.t.Context(), events.StreamDeclarations))
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); {
		msg, err := s.GetLastMsgForSubject(m.t.Context(), events.DeclaredSubject(node))
		if err == nil {
			f := must(must(events.Decode(msg.Data)).Fact())
			if f.(*events.Declared).Revision >= revision {
				return
			}
		}
		// The next thing that may change it is a message for the node.
		_, _ = sub.NextMsg(50 * time.Millisecond)
	}
	m.t.Fatalf("declaration %d of %s did not come about", revision, node)
}

// awaitStatus looks at a machine until it is so.
func (b *box) awaitStatus(creds string, want func(nodeagent.Overview) bool) {
	b.t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); <-tick.C {
		if want(nodeagent.Look(b.dir, creds, nodeagent.Installed{})) {
			return
		}
	}
	b.t.Fatalf("the machine never got there: %s", asJSON(nodeagent.Look(b.dir, creds, nodeagent.Installed{})))
}

// me is the owner of files that this test can make without being root.
func me() string { return fmt.Sprintf("%d:%d", os.Getuid(), os.Getgid()) }

func parseTime(s string) (time.Time, error) { return time.Parse(time.RFC3339, s) }
