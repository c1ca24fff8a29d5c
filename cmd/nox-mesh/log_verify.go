package main

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"noxmesh/events"
	"noxmesh/projections/notary"
	"noxmesh/server"
)

// verifyOptions say what is verified, and by what.
type verifyOptions struct {
	checkpoints      []string
	file, key, proof string
}

func newLogVerify(o *options) *cobra.Command {
	var v verifyOptions
	cmd := &cobra.Command{
		Use:   "verify",
		Short: "Prove that nothing in the log was changed, removed or reordered",
		Long: `Read every byte of the log, compute its Merkle tree here, and compare that with
checkpoints: those that were kept elsewhere (--checkpoint), or, without, those that the
server kept. Each event must also be where it belongs, and none may be missing.

If something does not fit, the first event that does not is shown, and the exit code
is 1. With --file an export is verified, and no mesh is needed. With --proof a proof
that nox-mesh log prove made is, by the notary's public key alone.

The key is what --key says (a key, or a file with one), or FILE.key beside the
checkpoint, or, the first time, what the mesh says.`,
		Example: `  nox-mesh log verify --checkpoint /media/safe/mesh.checkpoint
  nox-mesh log verify --file mesh.jsonl
  nox-mesh log verify --proof event-17.proof --key nox-mesh-notary+1a2b3c4d+...`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			out := cmd.OutOrStdout()
			if v.proof != "" {
				if v.file != "" || len(v.checkpoints) > 0 {
					return errors.New("a proof has its checkpoint in it: leave --file and --checkpoint out")
				}
				return verifyProof(o, out, v.proof, v.key)
			}
			report, by, err := v.run(cmd, o)
			if err != nil {
				return err
			}
			if o.json {
				err = printJSON(out, struct {
					notary.Report
					KeyFrom string `json:"key_from"`
				}{report, by.from})
			} else {
				printVerified(out, report, by)
			}
			if err == nil && !report.OK {
				err = exitCode(1)
			}
			return err
		},
	}
	f := cmd.Flags()
	f.StringArrayVar(&v.checkpoints, "checkpoint", nil, "file with a signed checkpoint, may be repeated")
	f.StringVar(&v.file, "file", "", "verify this export instead of the mesh's log (checkpoint: FILE.checkpoint)")
	f.StringVar(&v.key, "key", "", "the notary's public key, or a file with it")
	f.StringVar(&v.proof, "proof", "", "verify the proof of one event")
	return o.jsonFlag(cmd)
}

func (v verifyOptions) run(cmd *cobra.Command, o *options) (notary.Report, trusted, error) {
	if v.file != "" {
		return v.runFile()
	}
	c, err := o.dial()
	if err != nil {
		return notary.Report{}, trusted{}, err
	}
	defer c.Close()
	ctx, tell := cmd.Context(), howFar(cmd.ErrOrStderr(), "read")
	what := notary.Verification{
		Stored: c.StoredHashes(ctx),
		Read: func(from uint64, fn func(events.Message) error) error {
			return c.ReadStream(ctx, events.StreamEvents, from, tell, fn)
		},
	}
	kept, keys, err := c.Checkpoints(ctx)
	if err != nil {
		return notary.Report{}, trusted{}, err
	}
	beside := ""
	if len(v.checkpoints) > 0 {
		beside = v.checkpoints[0]
		what.Checkpoints, err = readFiles(v.checkpoints)
	} else {
		for _, k := range kept {
			what.Checkpoints = append(what.Checkpoints, k.Checkpoint)
		}
		if len(kept) == 0 {
			err = errors.New("the server has signed nothing yet: give it a moment, or see in its log why")
		}
	}
	if err != nil {
		return notary.Report{}, trusted{}, err
	}
	by, err := trustedKey(v.key, beside, func() (string, error) {
		if len(keys) == 0 {
			return "", errors.New("the mesh has no notary's key")
		}
		return keys[0], nil
	})
	if err != nil {
		return notary.Report{}, trusted{}, err
	}
	what.Key = by.key
	report, err := notary.Verify(what)
	return report, by, err
}

// runFile needs no mesh.
func (v verifyOptions) runFile() (notary.Report, trusted, error) {
	files := v.checkpoints
	if len(files) == 0 {
		files = []string{server.CheckpointFile(v.file)}
	}
	checkpoints, err := readFiles(files)
	if err != nil {
		return notary.Report{}, trusted{}, fmt.Errorf("%w: name the checkpoint with --checkpoint", err)
	}
	by, err := trustedKey(v.key, files[0], nil)
	if err != nil {
		return notary.Report{}, trusted{}, err
	}
	report, err := notary.Verify(notary.Verification{Checkpoints: checkpoints, Key: by.key,
		Read: func(from uint64, fn func(events.Message) error) error {
			_, err := notary.ReadLines(v.file, func(m events.Message) error {
				if m.Seq < from {
					return nil
				}
				return fn(m)
			})
			return err
		}})
	return report, by, err
}

func readFiles(files []string) (out []string, err error) {
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		out = append(out, string(raw))
	}
	return out, nil
}

func printVerified(out io.Writer, r notary.Report, by trusted) {
	fmt.Fprintf(out, "log %s: %s, root %s\n", dash(r.Origin), plural(int(r.Events), "event"), dash(r.Root))
	if r.OK {
		fmt.Fprintf(out, "verified: nothing was changed, removed or reordered up to event %d (%s)\n", r.Proven, plural(r.Checkpoints, "checkpoint"))
		if later := r.Events - r.Proven; later > 0 {
			fmt.Fprintf(out, "later than the newest checkpoint, so that nothing vouches for it yet: %s\n", plural(int(later), "event"))
		}
	} else {
		where := fmt.Sprintf("event %d", r.Fault.Seq)
		if r.Fault.UpTo != r.Fault.Seq {
			where = fmt.Sprintf("one of events %d to %d", r.Fault.Seq, r.Fault.UpTo)
		}
		fmt.Fprintf(out, "THE LOG DOES NOT VERIFY\nthe first that does not fit is %s: %s\n", where, r.Fault.Reason)
		if r.Now != "" {
			fmt.Fprintf(out, "there is now: %s\n", show([]byte(r.Now)))
		}
		fmt.Fprintln(out, "what to do: docs/operations.md")
	}
	fmt.Fprintf(out, "key %s, %s\n", by.key, by.from)
}
