package lab

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// joins is in every tree whose host can be a node of a mesh of today.
const joins = "cmd/nox-mesh-host/join.go"

// previousPackage makes the package of the release before this one out of git
// history: the newest one with a tag, or, as long as there is none, the first
// commit whose host joins.
func previousPackage(ctx context.Context, l *Lab) (string, error) {
	here, err := top(ctx)
	if err != nil {
		return "", err
	}
	commit, err := output(ctx, "git", "-C", here, "describe", "--tags", "--abbrev=0", "--match", "v[0-9]*", "HEAD^")
	if err != nil {
		all, err := output(ctx, "git", "-C", here, "log", "--reverse", "--format=%H", "--", joins)
		if err != nil {
			return "", err
		}
		commit, _, _ = strings.Cut(all, "\n")
	}
	if commit == "" {
		l.Say("lab", "git history has no commit with %s: %s is built from the tree as it is", joins, previous)
		program, err := l.Build(ctx, "./cmd/nox-mesh-host", previous)
		if err != nil {
			return "", err
		}
		return l.HostPackage(ctx, program, previous)
	}
	tree, err := l.Dir("previous")
	if err != nil {
		return "", err
	}
	archive := exec.CommandContext(ctx, "sh", "-ec", `git -C "$1" archive --output="$2.tar" "$3" && tar -xf "$2.tar" -C "$2"`, "sh", here, tree, commit)
	if out, err := archive.CombinedOutput(); err != nil {
		return "", fmt.Errorf("the tree of %s: %w: %s", commit, err, lastLines(out, 3))
	}
	program := filepath.Join(tree, "dist", "nox-mesh-host")
	build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags", "-s -w -X main.version="+previous, "-o", program, "./cmd/nox-mesh-host")
	build.Dir, build.Env = tree, append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-buildvcs=false")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building %s: %w: %s", commit, err, lastLines(out, 5))
	}
	l.Say("lab", "%s is built from %.12s", previous, commit)
	return packIn(ctx, l, tree, program, previous)
}
