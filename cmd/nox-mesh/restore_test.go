package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"noxmesh/nodeagent/simnode"
)

// documented gives the shell commands of one section of docs/operations.md.
func documented(t *testing.T, title string) string {
	t.Helper()
	raw, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, ok := strings.Cut(string(raw), "\n## "+title+"\n")
	if !ok {
		t.Fatalf("docs/operations.md has no section %q", title)
	}
	section, _, _ = strings.Cut(section, "\n## ")
	var out strings.Builder
	for _, block := range strings.Split(section, "\n```sh\n")[1:] {
		commands, _, _ := strings.Cut(block, "\n```\n")
		out.WriteString(commands + "\n")
	}
	return out.String()
}

// What the machine of a server has, as far as the page's commands need it.
var machineTools = map[string]string{
	// The package starts the server when it is installed.
	"apt": "exec systemctl start nox-mesh\n",
	"systemctl": `case $1 in
start)
	nox-mesh server --data-dir "$NOX_MESH_DATA_DIR" --listen 127.0.0.1:0 >"$MACHINE/server.log" 2>&1 &
	echo $! >"$MACHINE/pid"
	until nox-mesh fleet >/dev/null 2>&1; do kill -0 "$(cat "$MACHINE/pid")" || { cat "$MACHINE/server.log"; exit 1; }; done ;;
stop)
	pid=$(cat "$MACHINE/pid") && kill "$pid" && tail --pid="$pid" -f /dev/null ;;
esac
`,
	"chown": "test \"$*\" = \"-R nox-mesh:nox-mesh $NOX_MESH_DATA_DIR\"\n",
}

// The backup and the restore of docs/operations.md, command by command: afterwards
// the log is the same, and so is what it proves.
func TestRestoreAsDocumented(t *testing.T) {
	dir := t.TempDir()
	tools := filepath.Join(dir, "tools")
	for _, d := range []string{tools, filepath.Join(dir, "backup"), filepath.Join(dir, "safe"), filepath.Join(dir, "mesh")} {
		if err := os.Mkdir(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for name, script := range machineTools {
		if err := os.WriteFile(filepath.Join(tools, name), []byte("#!/bin/sh\nset -eu\n"+script), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	deb, err := os.Create(filepath.Join(dir, "nox-mesh-host_1.1.0_amd64.deb"))
	if err == nil {
		err = simnode.WriteDeb(deb, "nox-mesh-host", "1.1.0", "amd64", []byte("payload"))
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := deb.Close(); err != nil {
		t.Fatal(err)
	}
	here := strings.NewReplacer("/var/lib/nox-mesh", filepath.Join(dir, "mesh"), "/backup/", filepath.Join(dir, "backup")+"/", "/media/safe/", filepath.Join(dir, "safe")+"/")
	run := func(script string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "sh", "-eu")
		cmd.Stdin = strings.NewReader(here.Replace(script))
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "PATH="+tools+":"+os.Getenv("PATH"), "MACHINE="+dir, "NOX_MESH_DATA_DIR="+filepath.Join(dir, "mesh"))
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v:\n%s\nof\n%s", err, out, script)
		}
		return string(out)
	}
	t.Cleanup(func() { _ = exec.Command("sh", "-c", `kill "$(cat "$0")"`, filepath.Join(dir, "pid")).Run() })

	run("systemctl start nox-mesh\nnox-mesh release add nox-mesh-host_1.1.0_amd64.deb\nmv /var/lib/nox-mesh/release.key release.key\nnox-mesh user add aud --role auditor --out aud.creds")
	before := run("nox-mesh log")
	run(documented(t, "Back up"))
	run("nox-mesh log verify --file /backup/log.jsonl; systemctl stop nox-mesh; rm -r /var/lib/nox-mesh/*")

	out := run(documented(t, "Restore"))
	for _, want := range []string{"verified: nothing was changed, removed or reordered", "there already: 1.1.0"} {
		if !strings.Contains(out, want) {
			t.Errorf("the restore does not say %q:\n%s", want, out)
		}
	}
	if after := run("nox-mesh log"); after != before {
		t.Errorf("the log is\n%s, and was\n%s", after, before)
	}
	// Credentials of before are let in.
	run("nox-mesh log --creds aud.creds")
	out = run(documented(t, "Prove that nothing was changed"))
	if strings.Count(out, "verified: nothing") != 2 || !strings.Contains(out, "verified: this is event 1 of log") {
		t.Errorf("the proofs say\n%s", out)
	}
	run("systemctl stop nox-mesh")
}
