package server

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"

	"noxmesh/events"
)

const goodControl = `Package: nox-mesh-host
Version: 1.2.3
Architecture: amd64
Maintainer: nobody <nobody@nox-mesh.invalid>
Depends: systemd (>= 252), dpkg
Description: root service
 More of it.
`

// debSpec is a package to build; what is empty is as in a good one.
type debSpec struct {
	control string
	payload []byte
	comp    string // of data.tar: gz, zst or "" for none
}

func (s debSpec) build(t testing.TB) []byte {
	t.Helper()
	if s.control == "" {
		s.control = goodControl
	}
	data := "data.tar"
	if s.comp != "" {
		data += "." + s.comp
	}
	return arOf(
		arFile{"debian-binary", []byte("2.0\n")},
		arFile{"control.tar.gz", tarOf(t, "gz", "./control", []byte(s.control))},
		arFile{data, tarOf(t, s.comp, "./usr/bin/nox-mesh-host", s.payload)},
	)
}

type arFile struct {
	name string
	data []byte
}

func arOf(files ...arFile) []byte {
	var b bytes.Buffer
	b.WriteString("!<arch>\n")
	for _, f := range files {
		fmt.Fprintf(&b, "%-16s%-12d%-6d%-6d%-8s%-10d`\n", f.name, 0, 0, 0, "100644", len(f.data))
		b.Write(f.data)
		if len(f.data)%2 == 1 {
			b.WriteByte('\n')
		}
	}
	return b.Bytes()
}

func tarOf(t testing.TB, comp, name string, content []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	var w io.WriteCloser
	switch comp {
	case "gz":
		w = gzip.NewWriter(&b)
	case "zst":
		z, err := zstd.NewWriter(&b)
		if err != nil {
			t.Fatal(err)
		}
		w = z
	default:
		w = nopWriteCloser{&b}
	}
	files := tar.NewWriter(w)
	if err := files.WriteHeader(&tar.Header{Name: name, Mode: 0o755, Size: int64(len(content)), Typeflag: tar.TypeReg}); err != nil {
		t.Fatal(err)
	}
	if _, err := files.Write(content); err != nil {
		t.Fatal(err)
	}
	if err := files.Close(); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

type nopWriteCloser struct{ io.Writer }

func (nopWriteCloser) Close() error { return nil }

// noise does not compress, and is the same each time.
func noise(n int) []byte {
	b := make([]byte, n)
	r := rand.NewChaCha8([32]byte{})
	_, _ = r.Read(b)
	return b
}

func writeDeb(t testing.TB, raw []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "host.deb")
	if err := os.WriteFile(path, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestReadDeb(t *testing.T) {
	for _, comp := range []string{"", "gz", "zst"} {
		raw := debSpec{payload: noise(100_001), comp: comp}.build(t)
		got, err := ReadDeb(writeDeb(t, raw))
		if err != nil {
			t.Errorf("compression %q: %v", comp, err)
		}
		sum := sha256.Sum256(raw)
		if want := (events.Release{
			Version: "1.2.3", Architecture: "amd64", File: "nox-mesh-host_1.2.3_amd64.deb",
			Size: int64(len(raw)), SHA256: hex.EncodeToString(sum[:]),
		}); got != want {
			t.Errorf("compression %q: got %+v, want %+v", comp, got, want)
		}
	}
	signed := append(debSpec{}.build(t), arOf(arFile{"_gpgbuilder", []byte("signature")})[8:]...)
	if _, err := ReadDeb(writeDeb(t, signed)); err != nil {
		t.Error("package with a signature:", err)
	}
	epoch := debSpec{control: strings.Replace(goodControl, "1.2.3", "1:2.0~rc1+b2-3", 1)}.build(t)
	r, err := ReadDeb(writeDeb(t, epoch))
	if err != nil || r.Version != "1:2.0~rc1+b2-3" || r.File != "nox-mesh-host_1%3a2.0~rc1+b2-3_amd64.deb" {
		t.Errorf("version with an epoch: %+v %v", r, err)
	}
}

// Packages as dpkg-deb itself writes them, in each compression it has.
func TestReadDebOfDpkg(t *testing.T) {
	dpkg, err := exec.LookPath("dpkg-deb")
	if err != nil {
		t.Skip("SKIPPED: dpkg-deb is not on this machine")
	}
	root := t.TempDir()
	if err := os.MkdirAll(filepath.Join(root, "DEBIAN"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string][]byte{"DEBIAN/control": []byte(goodControl), "payload": noise(50_000)} {
		if err := os.WriteFile(filepath.Join(root, name), content, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, comp := range []string{"xz", "zstd", "gzip", "none"} {
		path := filepath.Join(t.TempDir(), "x.deb")
		if out, err := exec.Command(dpkg, "--root-owner-group", "-Z"+comp, "-b", root, path).CombinedOutput(); err != nil {
			t.Fatalf("dpkg-deb -Z%s: %v\n%s", comp, err, out)
		}
		if r, err := ReadDeb(path); err != nil || r.Version != "1.2.3" || r.Architecture != "amd64" {
			t.Errorf("dpkg-deb -Z%s: %+v %v", comp, r, err)
		}
		raw, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		raw[len(raw)-30_000] ^= 0x40 // in data.tar
		if _, err := readDeb(bytes.NewReader(raw), int64(len(raw))); err == nil && comp != "none" {
			t.Errorf("dpkg-deb -Z%s: a changed byte was not noticed", comp)
		}
	}
}

func TestReadDebRefuses(t *testing.T) {
	good := debSpec{payload: noise(5000), comp: "gz"}.build(t)
	control := func(old, new string) []byte {
		return debSpec{control: strings.Replace(goodControl, old, new, 1)}.build(t)
	}
	ctl := tarOf(t, "gz", "./control", []byte(goodControl))
	data := tarOf(t, "gz", "./x", noise(100))
	format := arFile{"debian-binary", []byte("2.0\n")}
	for _, tt := range []struct {
		name string
		raw  []byte
		want string
	}{
		{"empty", nil, "is no Debian package"},
		{"text", []byte("this is a text file, not a package\n"), "is no Debian package"},
		{"magic only", good[:8], "is cut off"},
		{"cut in a header", good[:50], "is cut off"},
		{"cut behind the first part", good[:72], "ends after 1 of them"},
		{"cut behind the control part", arOf(format, arFile{"control.tar.gz", ctl}), "ends after 2 of them"},
		{"last byte missing", good[:len(good)-2], "is cut off"},
		{"half", good[:len(good)/2], "is cut off"},
		{"something behind", append(bytes.Clone(good), "behind"...), "is cut off"},
		{"negative size", bytes.Replace(good, []byte("4         `\n"), []byte("-60       `\n"), 1), "no archive member"},
		{"another archive", arOf(arFile{"hello.o", []byte("x")}), "out of place"},
		{"old format", arOf(arFile{"debian-binary", []byte("0.93\n")}, arFile{"control.tar.gz", ctl}, arFile{"data.tar.gz", data}), "format version"},
		{"two data parts", arOf(format, arFile{"control.tar.gz", ctl}, arFile{"data.tar.gz", data}, arFile{"data.tar.gz", data}), "out of place"},
		{"data is no archive", arOf(format, arFile{"control.tar.gz", ctl}, arFile{"data.tar", []byte(strings.Repeat("no tar ", 100))}), "is damaged"},
		{"data ends early", arOf(format, arFile{"control.tar.gz", ctl}, arFile{"data.tar.gz", data[:len(data)-20]}), "ends before it is complete"},
		{"wrong checksum", arOf(format, arFile{"control.tar.gz", ctl}, arFile{"data.tar.gz", append(bytes.Clone(data[:len(data)-8]), make([]byte, 8)...)}), "is damaged"},
		{"lzma", arOf(format, arFile{"control.tar.gz", ctl}, arFile{"data.tar.lzma", data}), "not supported"},
		{"no control file", arOf(format, arFile{"control.tar.gz", tarOf(t, "gz", "./md5sums", nil)}, arFile{"data.tar.gz", data}), "no control file"},
		{"control is garbage", debSpec{control: "\x00\x01 garbage"}.build(t), "control file does not read"},
		{"huge control", debSpec{control: goodControl + strings.Repeat(" more\n", maxControl/6)}.build(t), "larger than"},
		{"another package", control("nox-mesh-host", "hello"), `is package "hello" and not nox-mesh-host`},
		{"no version", control("Version: 1.2.3\n", ""), "does not read"},
		{"version with a space", control("1.2.3", "1.2 3"), "version string has embedded spaces"},
		{"version with a star", control("1.2.3", "1.*"), "invalid character in version"},
		{"version too long", control("1.2.3", "1."+strings.Repeat("2", 200)), "no usable version"},
		{"version of a letter", control("1.2.3", "latest"), "version"},
		{"all architectures", control("amd64", "all"), `architecture "all"`},
		{"architecture is no word", control("amd64", "amd64.x"), "architecture"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			path := writeDeb(t, tt.raw)
			r, err := ReadDeb(path)
			wantError(t, err, path, tt.want)
			if r != (events.Release{}) {
				t.Errorf("a release came with the error: %+v", r)
			}
		})
	}
	_, err := ReadDeb(t.TempDir())
	wantError(t, err, "is no file")
	_, err = ReadDeb(filepath.Join(t.TempDir(), "missing.deb"))
	wantError(t, err, "missing.deb", "no such file")
}

// Whatever length a good package is cut to, it is refused.
func TestReadDebCutAnywhere(t *testing.T) {
	good := debSpec{payload: noise(300), comp: "gz"}.build(t)
	for n := range good {
		// An odd last part may lack its padding, as from some tools.
		if n == len(good)-1 && good[n] == '\n' {
			continue
		}
		if _, err := readDeb(bytes.NewReader(good[:n]), int64(n)); err == nil {
			t.Errorf("cut to %d of %d bytes it passed", n, len(good))
		}
	}
}

func FuzzReadDeb(f *testing.F) {
	for _, comp := range []string{"", "gz", "zst"} {
		f.Add(debSpec{payload: noise(64), comp: comp}.build(f))
	}
	f.Add([]byte(arMagic))
	f.Fuzz(func(t *testing.T, raw []byte) {
		r, err := readDeb(bytes.NewReader(raw), int64(len(raw)))
		if err == nil && (r.Validate() != nil || r.Size != int64(len(raw))) {
			t.Errorf("%+v passed", r)
		}
		if err != nil && r != (events.Release{}) {
			t.Errorf("%v came with %+v", err, r)
		}
	})
}
