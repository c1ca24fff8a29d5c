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

// The programs that packages are made around.
const (
	realHost = "./cmd/nox-mesh-host"
	badHost  = "./packaging/lab/testdata/bad"
)

// variant is one version of the host's package.
type variant struct {
	version string
	program string
	// change is made to a copy of packaging/ first, if given.
	change func(packaging string) error
}

// Versions that work, to upgrade from and to.
const (
	current  = "1.0.0" // what machines are installed with
	next     = "1.1.0"
	previous = "0.9.0" // built from git history
)

// variants are the packages of all scenarios. What the program of a bad one
// does is behind its "+".
var variants = []variant{
	{version: current, program: realHost},
	{version: next, program: realHost},
	{version: "2.0.0+crash", program: badHost},
	{version: "2.0.1+crash", program: badHost},
	{version: "2.0.0+segfault", program: badHost},
	{version: "2.0.0+unconfirmed", program: badHost},
	{version: "2.0.1+unconfirmed", program: badHost, change: replace("nox-mesh-host.service", "ExecStartPre=", "#ExecStartPre=")},
	{version: "2.0.0+hang", program: badHost},
	{version: "2.0.0+exit0", program: badHost},
	{version: "2.0.0+memory", program: badHost},
	{version: "2.0.0+late", program: badHost},
	{version: "2.0.0+fill", program: badHost},
	{version: "2.0.0+spoil", program: badHost},
	{version: "2.0.0+missing", program: badHost, change: replace("nfpm.yaml", "dst: /usr/bin/nox-mesh-host\n", "dst: /usr/bin/nox-mesh-host-astray\n")},
	{version: "2.0.0+mode", program: badHost, change: replace("nfpm.yaml",
		"dst: /usr/bin/nox-mesh-host\n    expand: true\n    file_info:\n      mode: 0755", "dst: /usr/bin/nox-mesh-host\n    expand: true\n    file_info:\n      mode: 0644")},
	{version: "2.0.0+bareunit", program: badHost, change: all(
		replace("nox-mesh-host.service", "OnFailure=", "#OnFailure="),
		replace("nox-mesh-host.service", "StartLimitIntervalSec=", "#StartLimitIntervalSec="),
		replace("nox-mesh-host.service", "StartLimitBurst=", "#StartLimitBurst="))},
	{version: "2.0.0+unloadable", program: realHost, change: replace("nox-mesh-host.service", "ExecStart=", "#ExecStart=")},
	{version: "2.0.0+prerm", program: badHost, change: replace("prerm", "set -eu\n", "set -eu\necho 'prerm: failing on purpose' >&2\nexit 1\n")},
	{version: "2.0.0+postinst", program: realHost, change: replace("postinst", "set -eu\n", "set -eu\necho 'postinst: failing on purpose' >&2\nexit 1\n")},
}

// replace gives a change of one file, which must hold what is replaced.
func replace(file, old, new string) func(string) error {
	return func(dir string) error {
		name := filepath.Join(dir, file)
		raw, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		text := strings.Replace(string(raw), old, new, 1)
		if text == string(raw) {
			return fmt.Errorf("%s does not hold %q any more: see what the scenario wants to break there", file, old)
		}
		return os.WriteFile(name, []byte(text), 0o755)
	}
}

func all(changes ...func(string) error) func(string) error {
	return func(dir string) (err error) {
		for _, c := range changes {
			err = errors.Join(err, c(dir))
		}
		return err
	}
}

// make builds the package of a variant out of a tree and gives its file.
func (v variant) make(ctx context.Context, l *Lab) (string, error) {
	program, err := l.Build(ctx, v.program, v.version)
	if err != nil {
		return "", err
	}
	if v.change == nil {
		return l.HostPackage(ctx, program, v.version)
	}
	here, err := top(ctx)
	if err != nil {
		return "", err
	}
	dir, err := l.Dir("changed-" + v.version)
	if err != nil {
		return "", err
	}
	if err := copyTree(filepath.Join(here, "packaging"), filepath.Join(dir, "packaging")); err != nil {
		return "", err
	}
	if err := v.change(filepath.Join(dir, "packaging")); err != nil {
		return "", err
	}
	return packIn(ctx, l, dir, program, v.version)
}

// packIn makes a package with the packaging/ of another tree than this one.
func packIn(ctx context.Context, l *Lab, tree, program, version string) (string, error) {
	here, err := top(ctx)
	if err != nil {
		return "", err
	}
	nfpm, err := output(ctx, "go", "tool", "-modfile="+filepath.Join(here, "tools.mod"), "-n", "nfpm")
	if err != nil {
		return "", err
	}
	packages, err := l.Dir("packages")
	if err != nil {
		return "", err
	}
	arch, err := output(ctx, "dpkg", "--print-architecture")
	if err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, nfpm, "package", "-f", "packaging/nfpm.yaml", "-p", "deb", "-t", packages)
	cmd.Dir = tree
	cmd.Env = append(os.Environ(), "VERSION="+version, "ARCH="+arch, "BINARY="+program, "SOURCE_DATE_EPOCH=1000000000")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("packing %s: %w: %s", version, err, lastLines(out, 5))
	}
	return filepath.Join(packages, fmt.Sprintf("nox-mesh-host_%s_%s.deb", version, arch)), nil
}

// copyTree copies what the package is made of; not this lab.
func copyTree(from, to string) error {
	entries, err := os.ReadDir(from)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.Name() == "lab" {
			continue
		}
		if e.IsDir() {
			err = errors.Join(err, os.CopyFS(filepath.Join(to, e.Name()), os.DirFS(filepath.Join(from, e.Name()))))
			continue
		}
		raw, readErr := os.ReadFile(filepath.Join(from, e.Name()))
		err = errors.Join(err, readErr, os.MkdirAll(to, 0o755), os.WriteFile(filepath.Join(to, e.Name()), raw, 0o755))
	}
	return err
}

func output(ctx context.Context, name string, args ...string) (string, error) {
	out, err := exec.CommandContext(ctx, name, args...).Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w", name, strings.Join(args, " "), err)
	}
	return strings.TrimSpace(string(out)), nil
}
