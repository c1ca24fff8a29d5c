package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// top is the directory of this project's go.mod.
func top(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "go", "env", "GOMOD").Output()
	if err != nil {
		return "", fmt.Errorf("asking go where the project is: %w", err)
	}
	if mod := strings.TrimSpace(string(out)); filepath.Base(mod) == "go.mod" {
		return filepath.Dir(mod), nil
	}
	return "", errors.New("this is run from outside the project's tree: the lab builds its packages from source")
}

// Build builds one of the project's programs, static, and gives its file. The
// package is a path from the top, like ./cmd/nox-mesh-host.
func (l *Lab) Build(ctx context.Context, pkg, version string) (string, error) {
	dir, err := l.Dir("bin-" + version)
	if err != nil {
		return "", err
	}
	file := filepath.Join(dir, filepath.Base(pkg))
	return file, inTop(ctx, []string{"CGO_ENABLED=0"}, "go", "build", "-trimpath", "-ldflags", "-s -w -X main.version="+version, "-o", file, pkg)
}

// HostPackage makes the Debian package of a host's version around a program,
// as "make package" does, and gives its file.
func (l *Lab) HostPackage(ctx context.Context, program, version string) (string, error) {
	return l.pack(ctx, "packaging/nfpm.yaml", "nox-mesh-host", program, version)
}

// ServerPackage makes the Debian package of a server's version, likewise.
func (l *Lab) ServerPackage(ctx context.Context, program, version string) (string, error) {
	return l.pack(ctx, "packaging/server/nfpm.yaml", "nox-mesh", program, version)
}

func (l *Lab) pack(ctx context.Context, manifest, name, program, version string) (string, error) {
	dir, err := l.Dir("packages")
	if err != nil {
		return "", err
	}
	out, err := exec.CommandContext(ctx, "dpkg", "--print-architecture").Output()
	if err != nil {
		return "", fmt.Errorf("dpkg --print-architecture: %w", err)
	}
	arch := strings.TrimSpace(string(out))
	env := []string{"VERSION=" + version, "ARCH=" + arch, "BINARY=" + program, "SOURCE_DATE_EPOCH=1000000000"}
	err = inTop(ctx, env, "go", "tool", "-modfile=tools.mod", "nfpm", "package", "-f", manifest, "-p", "deb", "-t", dir)
	return filepath.Join(dir, fmt.Sprintf("%s_%s_%s.deb", name, version, arch)), err
}

// inTop runs a program at the top of the tree.
func inTop(ctx context.Context, env []string, name string, args ...string) error {
	dir, err := top(ctx)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w: %s", name, args[0], err, lastLines(out, 5))
	}
	return nil
}
