package simnode

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"pault.ag/go/debian/deb"
)

// Odd and even payloads: ar pads members to even lengths.
func TestWriteDebIsARealPackage(t *testing.T) {
	for _, payload := range []string{"a", "ab", ""} {
		var buf bytes.Buffer
		if err := WriteDeb(&buf, "nox-mesh-host", "1.2.3~rc1+b2", "amd64", []byte(payload)); err != nil {
			t.Fatal(err)
		}
		pkg, err := deb.Load(bytes.NewReader(buf.Bytes()), "x.deb")
		if err != nil {
			t.Fatal(err)
		}
		if pkg.Control.Package != "nox-mesh-host" || pkg.Control.Version.String() != "1.2.3~rc1+b2" || pkg.Control.Architecture.String() != "amd64" {
			t.Errorf("control says %+v", pkg.Control)
		}
		if _, err := exec.LookPath("dpkg-deb"); err != nil {
			t.Log("dpkg-deb is not here: only our own reader was asked")
			continue
		}
		file := filepath.Join(t.TempDir(), "x.deb")
		if err := os.WriteFile(file, buf.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
		for _, how := range []string{"-I", "-c"} {
			if out, err := exec.Command("dpkg-deb", how, file).CombinedOutput(); err != nil {
				t.Errorf("dpkg-deb %s: %v\n%s", how, err, out)
			}
		}
	}
}
