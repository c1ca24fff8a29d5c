// Command nox-mesh is the mesh's server and the operator's command line.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"noxmesh/server"
)

var version = "0.0.0-dev" // set when linking

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := newRoot().ExecuteContext(ctx)
	var code exitCode
	switch {
	case err == nil:
	case errors.As(err, &code):
		os.Exit(int(code))
	default:
		fmt.Fprintln(os.Stderr, "nox-mesh:", err)
		os.Exit(1)
	}
}

// exitCode ends the program without a further message.
type exitCode int

func (c exitCode) Error() string { return fmt.Sprintf("exit code %d", int(c)) }

// options are what every command shares.
type options struct {
	dataDir, creds, url, ca string
	json                    bool
}

func newRoot() *cobra.Command {
	o := &options{}
	root := &cobra.Command{
		Use:   "nox-mesh",
		Short: "Ship new versions of a root host service to a fleet without taking it down",
		Long: `nox-mesh stages the rollout of a host service: a few nodes first, wait to hear
from them on the new version, then more; on silence it stops and reports. The
service manager on each node brings back the last version known to work.

Try it out:     nox-mesh demo
Run a mesh:     nox-mesh server
Look at it:     nox-mesh fleet, nox-mesh rollout status, nox-mesh log`,
		Version:       version,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.CompletionOptions.HiddenDefaultCmd = true
	f := root.PersistentFlags()
	f.StringVar(&o.dataDir, "data-dir", envOr("NOX_MESH_DATA_DIR", defaultDataDir()), "the server's data directory; the operator's credential is found there")
	f.StringVar(&o.creds, "creds", os.Getenv("NOX_MESH_CREDS"), "operator's credential file (default DATA-DIR/operator.creds)")
	f.StringVar(&o.url, "url", os.Getenv("NOX_MESH_URL"), "where the mesh listens (default: what the server wrote to DATA-DIR/url)")
	f.StringVar(&o.ca, "ca", os.Getenv("NOX_MESH_CA"), "CA certificate of the mesh (default DATA-DIR/tls/ca.pem)")
	root.AddCommand(newServer(o), newNode(o), newRelease(o), newKey(o), newUser(o), newRollout(o), newFleet(o), newWatch(o), newLog(o), newDemo(), newSimulate(o))
	return root
}

func envOr(name, otherwise string) string {
	if v := os.Getenv(name); v != "" {
		return v
	}
	return otherwise
}

func defaultDataDir() string {
	if os.Geteuid() == 0 {
		return "/var/lib/nox-mesh"
	}
	if home, err := os.UserHomeDir(); err == nil {
		return filepath.Join(home, ".local", "share", "nox-mesh")
	}
	return "nox-mesh-data"
}

// dial connects as the operator.
func (o *options) dial() (*server.Client, error) {
	creds := o.creds
	if creds == "" {
		creds = server.OperatorCredsFile(o.dataDir)
	}
	url := o.url
	if url == "" {
		url = "tls://127.0.0.1:4222"
		if raw, err := os.ReadFile(server.URLFile(o.dataDir)); err == nil {
			url = strings.TrimSpace(string(raw))
		}
	}
	ca := o.ca
	if ca == "" {
		ca = server.CAFile(o.dataDir)
	}
	return server.Dial(url, creds, ca)
}

// with runs a command that needs the mesh.
func (o *options) with(fn func(cmd *cobra.Command, args []string, c *server.Client) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		c, err := o.dial()
		if err != nil {
			return err
		}
		defer c.Close()
		return fn(cmd, args, c)
	}
}

func (o *options) jsonFlag(cmd *cobra.Command) *cobra.Command {
	cmd.Flags().BoolVar(&o.json, "json", false, "print JSON for machines")
	return cmd
}
