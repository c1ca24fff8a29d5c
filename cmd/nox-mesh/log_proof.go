package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"noxmesh/events"
	"noxmesh/projections/notary"
	"noxmesh/server"
)

// logProofs are the subcommands of log that prove, export and import.
func logProofs(o *options) []*cobra.Command {
	return []*cobra.Command{newLogCheckpoint(o), newLogVerify(o), newLogProve(o), newLogExport(o), newLogImport(o)}
}

func newLogCheckpoint(o *options) *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use:   "checkpoint",
		Short: "Have the log signed as it is now, to keep that elsewhere",
		Long: `Have the notary sign the log as it is now: its size and the root of its Merkle tree,
as a C2SP tlog-checkpoint. Kept where the mesh's servers cannot write, it shows later
that nothing was changed, removed or reordered until then: nox-mesh log verify.

With -o the notary's public key is kept beside the file, as FILE.key, the first time.
A checkpoint that is not signed by the key that is there already is refused.`,
		Example: "  nox-mesh log checkpoint -o /media/safe/mesh-$(date +%F).checkpoint",
		Args:    cobra.NoArgs,
		RunE: o.with(func(cmd *cobra.Command, _ []string, c *server.Client) error {
			r, err := c.Checkpoint(cmd.Context())
			if err != nil {
				return err
			}
			if file != "" {
				if err := keepCheckpoint(file, r.Checkpoint, r.Keys); err != nil {
					return err
				}
			}
			out := cmd.OutOrStdout()
			switch {
			case o.json:
				return printJSON(out, r)
			case file != "":
				checkpoint, err := notary.ReadUnchecked([]byte(r.Checkpoint))
				if err != nil {
					return err
				}
				fmt.Fprintf(out, "%s signed: %s, key in %s\n", plural(int(checkpoint.Size), "event"), file, keyFile(file))
				return nil
			}
			_, err = fmt.Fprint(out, r.Checkpoint)
			return err
		}),
	}
	cmd.Flags().StringVarP(&file, "out", "o", "", "file for the checkpoint")
	return o.jsonFlag(cmd)
}

// keyFile is where the notary's public key is pinned, beside a checkpoint.
func keyFile(checkpoint string) string { return checkpoint + ".key" }

// keepCheckpoint writes a checkpoint that is signed by the key beside it, which the
// first time is the first of the mesh's.
func keepCheckpoint(file, checkpoint string, keys []string) error {
	pinned, err := readKey(keyFile(file))
	first := errors.Is(err, fs.ErrNotExist) && len(keys) > 0
	if first {
		pinned, err = keys[0], nil
	}
	if err != nil {
		return err
	}
	if _, err := notary.OpenCheckpoint([]byte(checkpoint), pinned); err != nil {
		return fmt.Errorf("%w: the key in %s is %s: this is another mesh, or somebody has taken its place", err, keyFile(file), pinned)
	}
	if first {
		if err := os.WriteFile(keyFile(file), []byte(pinned+"\n"), 0o644); err != nil {
			return err
		}
	}
	return os.WriteFile(file, []byte(checkpoint), 0o644)
}

func readKey(file string) (string, error) {
	raw, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	key := strings.TrimSpace(string(raw))
	if err := events.CheckKey(events.KeyNotary, key); err != nil {
		return "", fmt.Errorf("%s: %w", file, err)
	}
	return key, nil
}

// trusted is a public key of the notary, and how it came to be trusted.
type trusted struct{ key, from string }

// trustedKey finds the notary's public key: as it was given (itself, or a file that
// holds it), or pinned beside a checkpoint, or, the first time, from the mesh.
func trustedKey(given, checkpoint string, ask func() (string, error)) (trusted, error) {
	if given != "" {
		if events.CheckKey(events.KeyNotary, given) == nil {
			return trusted{given, "as given"}, nil
		}
		key, err := readKey(given)
		if errors.Is(err, fs.ErrNotExist) {
			err = fmt.Errorf("%q is neither a notary's public key nor a file with one: nox-mesh key ls shows it", events.Printable(given, 120))
		}
		return trusted{key, "from " + given}, err
	}
	if checkpoint != "" {
		key, err := readKey(keyFile(checkpoint))
		if !errors.Is(err, fs.ErrNotExist) {
			return trusted{key, "from " + keyFile(checkpoint)}, err
		}
	}
	if ask == nil {
		return trusted{}, errors.New("whose signature should it be? Give the notary's public key with --key KEY (nox-mesh key ls shows it)")
	}
	key, err := ask()
	if err != nil {
		return trusted{}, err
	}
	if err := events.CheckKey(events.KeyNotary, key); err != nil {
		return trusted{}, err
	}
	from := "from the mesh itself, so only the mesh vouches for it: keep it elsewhere, and give it with --key"
	if checkpoint != "" {
		from = "from the mesh itself, so only the mesh vouches for it this once: kept in " + keyFile(checkpoint)
		err = os.WriteFile(keyFile(checkpoint), []byte(key+"\n"), 0o644)
	}
	return trusted{key, from}, err
}

func newLogProve(o *options) *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use:   "prove ID|SEQUENCE",
		Short: "Prove that one event is in the log, for somebody who has no access to it",
		Long: `Make a proof that an event is in the log: the event, its way to the root of the log's
Merkle tree, and a signed checkpoint, as a C2SP tlog-proof. Whoever has the notary's
public key checks it without the mesh: nox-mesh log verify --proof FILE --key KEY`,
		Example: "  nox-mesh log prove 17 -o event-17.proof",
		Args:    cobra.ExactArgs(1),
		RunE: o.with(func(cmd *cobra.Command, args []string, c *server.Client) error {
			q := server.ProveRequest{ID: args[0]}
			if seq, err := strconv.ParseUint(args[0], 10, 64); err == nil {
				q = server.ProveRequest{Seq: seq}
			}
			r, err := c.Prove(cmd.Context(), q)
			if err != nil {
				return err
			}
			p, err := notary.ParseProof([]byte(r.Proof))
			if err == nil {
				_, err = p.Verify(r.Keys...)
			}
			if err != nil {
				return fmt.Errorf("the mesh's proof does not verify: %w", err)
			}
			out := cmd.OutOrStdout()
			if file != "" {
				if err := os.WriteFile(file, []byte(r.Proof), 0o644); err != nil {
					return err
				}
			}
			switch {
			case o.json:
				return printJSON(out, r)
			case file != "":
				fmt.Fprintf(out, "proof of event %d: %s\nthe notary's key: %s\n", r.Seq, file, r.Keys[len(r.Keys)-1])
				return nil
			}
			_, err = fmt.Fprint(out, r.Proof)
			return err
		}),
	}
	cmd.Flags().StringVarP(&file, "out", "o", "", "file for the proof")
	return o.jsonFlag(cmd)
}

// verifyProof checks a proof with nothing but a key, and shows the event.
func verifyProof(o *options, out io.Writer, file, given string) error {
	raw, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	p, err := notary.ParseProof(raw)
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	by, err := trustedKey(given, file, nil)
	if err != nil {
		return err
	}
	c, err := p.Verify(by.key)
	if err != nil {
		return fmt.Errorf("%s proves nothing: %w (key %s)", file, err, by.key)
	}
	if o.json {
		return printJSON(out, map[string]any{"ok": true, "seq": p.Index + 1, "event": string(p.Event), "origin": c.Origin, "size": c.Size, "key": by.key, "key_from": by.from})
	}
	fmt.Fprintf(out, "verified: this is event %d of log %s, signed when it had %s\nkey %s, %s\n%s\n", p.Index+1, c.Origin, plural(int(c.Size), "event"), by.key, by.from, show(p.Event))
	return nil
}

// show gives stored bytes on one line.
func show(data []byte) string {
	if s := string(data); events.Printable(s, len(s)) == s {
		return s
	}
	return strconv.Quote(string(data))
}

// howFar tells on a terminal or in a log how far a long command is, at most every
// few seconds.
func howFar(err io.Writer, what string) func(done, all uint64) {
	const every = 3 * time.Second
	last := time.Now()
	return func(done, all uint64) {
		if now := time.Now(); now.Sub(last) >= every {
			last = now
			fmt.Fprintf(err, "%s %d of %d events\n", what, done, all)
		}
	}
}
