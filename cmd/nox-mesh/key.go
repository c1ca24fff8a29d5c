package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"noxmesh/events"
	"noxmesh/server"
)

func newKey(o *options) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "key",
		Short: "List the signing keys, and rotate those that nodes trust",
		Long: `Nodes trust two keys, which they get to know when they join. The delivery key is the
server's and signs what each node is declared. The release key signs packages and
belongs where they are built. The notary's key, which no node needs, is the server's
too and signs checkpoints of the log (nox-mesh log verify). What each is worth to a thief: docs/security.md`,
	}
	rotate := &cobra.Command{Use: "rotate", Short: "Put a new key in the place of one"}
	rotate.AddCommand(newRotateDelivery(o), newRotateRelease(o))
	cmd.AddCommand(newKeyList(o), rotate)
	return cmd
}

func newKeyList(o *options) *cobra.Command {
	return o.jsonFlag(&cobra.Command{
		Use:   "ls",
		Short: "List the public keys, and which of them sign now",
		Args:  cobra.NoArgs,
		RunE: o.with(func(cmd *cobra.Command, _ []string, c *server.Client) error {
			list, err := c.Keys(cmd.Context())
			if err != nil {
				return err
			}
			out := cmd.OutOrStdout()
			if o.json {
				return printJSON(out, list)
			}
			t := newTable(out, "ROLE", "STATE", "PUBLIC KEY")
			for _, k := range list.Keys {
				state := "replaced"
				if k.InForce {
					state = "in force"
				}
				t.row(k.Role, state, k.Key)
			}
			t.end()
			fmt.Fprintf(out, "as of event %d\n", list.EventSeq)
			return nil
		}),
	})
}

func newRotateDelivery(o *options) *cobra.Command {
	return o.jsonFlag(&cobra.Command{
		Use:   "delivery",
		Short: "Have the server make a new delivery key",
		Long: `Have the server make a new delivery key, introduced by the old one. Each node follows
with the next thing it is declared, and from then on takes nothing that the old key
signed. Take a new backup of the server's delivery.key afterwards.`,
		Args: cobra.NoArgs,
		RunE: o.with(func(cmd *cobra.Command, _ []string, c *server.Client) error {
			r, err := c.RotateDelivery(cmd.Context())
			if err != nil {
				return err
			}
			out := cmd.OutOrStdout()
			if o.json {
				return printJSON(out, r)
			}
			fmt.Fprintf(out, "delivery key in force: %s\nnodes follow with the next thing they are declared; take a new backup of the server's delivery.key\n", r.Key)
			return nil
		}),
	})
}

func newRotateRelease(o *options) *cobra.Command {
	var (
		oldFile, newFile string
		noResign         bool
	)
	cmd := &cobra.Command{
		Use:   "release --sign-key OLD --out NEW",
		Short: "Put a new release key in the place of the old one",
		Long: `Make a new release key here, introduced by the old one, and have the mesh record it.
The secret stays in the file NEW. Releases that the old key signed are signed by the
new one too, so that they can be declared on; if the old key was stolen, leave that
out with --no-resign and add again the packages that you trust.

A key that is in NEW already is used, so the command can be given again after a
failure.`,
		Example: "  nox-mesh key rotate release --sign-key release.key --out release-2.key",
		Args:    cobra.NoArgs,
		RunE: o.with(func(cmd *cobra.Command, _ []string, c *server.Client) error {
			if newFile == "" {
				return errors.New("say where to keep the new key: --out FILE")
			}
			old, err := o.releaseKey(oldFile)
			if err != nil {
				return err
			}
			next, err := makeReleaseKey(newFile)
			if err != nil {
				return err
			}
			if next.Public == old.Public {
				return fmt.Errorf("%s holds the old key: name another file with --out", newFile)
			}
			r, err := c.RotateRelease(cmd.Context(), old, next, !noResign)
			if err != nil {
				return fmt.Errorf("%w\nthe new key is in %s: keep it unless nox-mesh key ls shows that another one is in force", err, newFile)
			}
			out := cmd.OutOrStdout()
			if o.json {
				return printJSON(out, r)
			}
			fmt.Fprintf(out, "release key in force: %s\nits secret is in %s: releases are signed with it from now on\n", r.Key, newFile)
			if r.Signed > 0 {
				fmt.Fprintf(out, "%s that the old key had signed: signed anew\n", plural(r.Signed, "release"))
			}
			for _, rel := range r.Unsigned {
				fmt.Fprintf(out, "not signed by it: %s for %s; add that package again to sign it\n", rel.Version, rel.Architecture)
			}
			return nil
		}),
	}
	cmd.Flags().StringVar(&oldFile, "sign-key", "", "the release key in force (default DATA-DIR/release.key)")
	cmd.Flags().StringVar(&newFile, "out", "", "file for the new key")
	cmd.Flags().BoolVar(&noResign, "no-resign", false, "do not sign again what the old key signed; for when it was stolen")
	return o.jsonFlag(cmd)
}

// releaseKey reads the release key from a file, or from where the server made it.
func (o *options) releaseKey(file string) (*events.SigningKey, error) {
	if file != "" {
		return server.ReadSigningKey(events.KeyRelease, file)
	}
	file = server.ReleaseKeyFile(o.dataDir)
	key, err := server.ReadSigningKey(events.KeyRelease, file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("the release key is not at %s: name the file it is in with --sign-key FILE (the server's first start made it in its data directory; nox-mesh key ls shows its public half)", file)
	}
	return key, err
}

// makeReleaseKey makes a release key in a file, or takes the one that is there.
func makeReleaseKey(file string) (*events.SigningKey, error) {
	key, secret, err := events.NewKey(events.KeyRelease)
	if err != nil {
		return nil, err
	}
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return server.ReadSigningKey(events.KeyRelease, file)
	}
	if err != nil {
		return nil, err
	}
	_, err = f.Write(secret)
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = syncDir(filepath.Dir(file))
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("keeping the new release key: %w", err), os.Remove(file))
	}
	return key, nil
}

// syncDir makes sure that a new file's name is on disk as well.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
