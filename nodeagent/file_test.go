package nodeagent

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"noxmesh/events"
)

func own() string { return fmt.Sprintf("%d:%d", os.Getuid(), os.Getgid()) }

func applyFile(t *testing.T, path string, spec events.FileSpec) error {
	t.Helper()
	return fileHandler{}.Apply(t.Context(), events.ResourceFromSpec(events.ResourceFile, path, spec))
}

func TestFileIsMadeAndLeftAlone(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "new", "deep", "f.conf")
	spec := events.FileSpec{Mode: "0640", Owner: own(), Content: "one\n"}
	put(t, dir, ".f.conf.nox-mesh-new", "in another directory")
	inode := func() uint64 {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		return info.Sys().(*syscall.Stat_t).Ino
	}
	if err := applyFile(t, path, spec); err != nil {
		t.Fatal(err)
	}
	first := inode()
	if err := applyFile(t, path, spec); err != nil || inode() != first {
		t.Errorf("a right file was written again: %v", err)
	}
	for _, change := range []func(){
		func() { put(t, filepath.Dir(path), "f.conf", "two\n") },
		func() { put(t, filepath.Dir(path), "f.conf", "longer than before\n") },
		func() { must0(t, os.Chmod(path, 0o666)) },
		func() { must0(t, os.Remove(path)) },
		func() {
			put(t, filepath.Dir(path), ".f.conf.nox-mesh-new", "left by a power cut")
			must0(t, os.Remove(path))
		},
	} {
		change()
		if err := applyFile(t, path, spec); err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(path)
		if err != nil || info.Mode() != 0o640 || get(t, dir, "new/deep/f.conf") != "one\n" {
			t.Errorf("it is %v with %q, %v", info.Mode(), get(t, dir, "new/deep/f.conf"), err)
		}
	}
	if info, err := os.Stat(filepath.Dir(path)); err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("the new directory is %v, %v", info.Mode(), err)
	}
	if entries, err := os.ReadDir(filepath.Dir(path)); err != nil || len(entries) != 1 {
		t.Errorf("something was left behind: %v, %v", entries, err)
	}
}

func must0(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestFileThatCannotBe(t *testing.T) {
	dir := t.TempDir()
	put(t, dir, "target", "precious")
	must0(t, os.Symlink("target", filepath.Join(dir, "link")))
	must0(t, os.Mkdir(filepath.Join(dir, "dir"), 0o755))
	must0(t, os.Symlink("loop", filepath.Join(dir, "loop")))
	good := events.FileSpec{Mode: "0644", Owner: own(), Content: "x"}
	with := func(f func(*events.FileSpec)) events.FileSpec { s := good; f(&s); return s }
	for _, c := range []struct {
		name, path string
		spec       events.FileSpec
		want       string
	}{
		{"a link", filepath.Join(dir, "link"), good, "is a symbolic link"},
		{"a directory", filepath.Join(dir, "dir"), good, "no regular file"},
		{"under a file", filepath.Join(dir, "target", "f"), good, "directory"},
		{"a loop of links", filepath.Join(dir, "loop", "f"), good, "symbolic link"},
		{"a relative path", "etc/f", good, "no clean absolute path"},
		{"a path with dots", "/etc/../f", good, "no clean absolute path"},
		{"no mode", filepath.Join(dir, "f"), with(func(s *events.FileSpec) { s.Mode = "rw" }), "mode"},
		{"set-user-id", filepath.Join(dir, "f"), with(func(s *events.FileSpec) { s.Mode = "4755" }), "mode"},
		{"no such user", filepath.Join(dir, "f"), with(func(s *events.FileSpec) { s.Owner = "nobody-here" }), "no such user"},
		{"no such group", filepath.Join(dir, "f"), with(func(s *events.FileSpec) { s.Owner = fmt.Sprint(os.Getuid(), ":none-here") }), "no such"},
	} {
		if err := applyFile(t, c.path, c.spec); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	if get(t, dir, "target") != "precious" {
		t.Error("a link was written through")
	}
	if _, err := os.Lstat(filepath.Join(dir, "f")); err == nil {
		t.Error("a refused file was made")
	}
}

func TestFileUnderLinkedDirectories(t *testing.T) {
	dir := t.TempDir()
	must0(t, os.Mkdir(filepath.Join(dir, "real"), 0o755))
	must0(t, os.Symlink("real", filepath.Join(dir, "relative")))
	must0(t, os.Symlink(filepath.Join(dir, "relative"), filepath.Join(dir, "absolute")))
	if err := applyFile(t, filepath.Join(dir, "absolute", "f"), events.FileSpec{Mode: "0600", Owner: own(), Content: "x"}); err != nil {
		t.Errorf("links of our own are like /var/run: %v", err)
	}
	if get(t, dir, "real/f") != "x" {
		t.Error("the file is not where the links lead")
	}
	if os.Getuid() != 0 {
		t.Skip("the rest needs root: a link that somebody else made")
	}
	must0(t, os.Symlink(filepath.Join(dir, "real"), filepath.Join(dir, "theirs")))
	must0(t, os.Lchown(filepath.Join(dir, "theirs"), 65534, 65534))
	if err := applyFile(t, filepath.Join(dir, "theirs", "g"), events.FileSpec{Mode: "0600", Content: "x"}); err == nil {
		t.Error("somebody's link was followed")
	}
	if get(t, dir, "real/g") != "(missing)" {
		t.Error("a file was made through it")
	}
	if err := applyFile(t, filepath.Join(dir, "owned"), events.FileSpec{Mode: "0600", Owner: "65534:65534", Content: "x"}); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(filepath.Join(dir, "owned"))
	if err != nil || info.Sys().(*syscall.Stat_t).Uid != 65534 || info.Sys().(*syscall.Stat_t).Gid != 65534 {
		t.Errorf("owner: %+v, %v", info, err)
	}
}
