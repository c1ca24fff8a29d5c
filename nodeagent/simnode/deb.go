package simnode

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/md5" // dpkg's md5sums file
	"fmt"
	"io"
	"strings"
	"time"
)

// debTime is in every package, so that the same input gives the same bytes.
var debTime = time.Unix(1700000000, 0).UTC()

// WriteDeb writes a small but whole Debian package: one file with the payload
// at /usr/bin/<name>, and nothing that dpkg would run.
func WriteDeb(w io.Writer, name, version, architecture string, payload []byte) error {
	path := "usr/bin/" + name
	control := fmt.Sprintf("Package: %s\nVersion: %s\nArchitecture: %s\nMaintainer: nox-mesh <nobody@invalid>\nSection: admin\nPriority: optional\nDescription: simulated package of %s\n", name, version, architecture, name)
	controlTar, err := tarball(
		file{"control", 0o644, []byte(control)},
		file{"md5sums", 0o644, fmt.Appendf(nil, "%x  %s\n", md5.Sum(payload), path)})
	if err != nil {
		return err
	}
	dataTar, err := tarball(file{"usr/", 0o755, nil}, file{"usr/bin/", 0o755, nil}, file{path, 0o755, payload})
	if err != nil {
		return err
	}
	if _, err := io.WriteString(w, "!<arch>\n"); err != nil {
		return err
	}
	for _, m := range []file{
		{"debian-binary", 0o644, []byte("2.0\n")},
		{"control.tar.gz", 0o644, controlTar},
		{"data.tar.gz", 0o644, dataTar},
	} {
		if _, err := fmt.Fprintf(w, "%-16s%-12d%-6d%-6d%-8o%-10d`\n", m.name, debTime.Unix(), 0, 0, 0o100644, len(m.content)); err != nil {
			return err
		}
		if len(m.content)%2 == 1 {
			m.content = append(m.content, '\n')
		}
		if _, err := w.Write(m.content); err != nil {
			return err
		}
	}
	return nil
}

type file struct {
	name    string // directories end in a slash
	mode    int64
	content []byte
}

func tarball(files ...file) ([]byte, error) {
	var buf bytes.Buffer
	zip := gzip.NewWriter(&buf)
	out := tar.NewWriter(zip)
	for _, f := range files {
		h := &tar.Header{Name: "./" + f.name, Mode: f.mode, Size: int64(len(f.content)), ModTime: debTime,
			Typeflag: tar.TypeReg, Uname: "root", Gname: "root", Format: tar.FormatGNU}
		if strings.HasSuffix(f.name, "/") {
			h.Typeflag = tar.TypeDir
		}
		if err := out.WriteHeader(h); err != nil {
			return nil, err
		}
		if _, err := out.Write(f.content); err != nil {
			return nil, err
		}
	}
	if err := out.Close(); err != nil {
		return nil, err
	}
	if err := zip.Close(); err != nil {
		return nil, err
	}
	return buf.Bytes(), nil
}
