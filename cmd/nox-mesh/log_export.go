package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/rs/zerolog"
	"github.com/spf13/cobra"

	"noxmesh/server"
)

func newLogExport(o *options) *cobra.Command {
	return o.jsonFlag(&cobra.Command{
		Use:   "export FILE",
		Short: "Write the whole log to a file, for backup, search or another mesh",
		Long: `Write the log to a file: one event a line, byte for byte as it is stored, line n being
event n. A file that is there is gone on with, so a backup takes only what is new.
FILE.checkpoint is the notary's signature over what is in the file, and
FILE.checkpoint.key its public key. nox-mesh log verify --file FILE checks both;
nox-mesh log import brings the log back.`,
		Args: cobra.ExactArgs(1),
		RunE: o.with(func(cmd *cobra.Command, args []string, c *server.Client) error {
			file := args[0]
			r, err := c.Export(cmd.Context(), file, howFar(cmd.ErrOrStderr(), "exported"))
			if err != nil {
				return err
			}
			if err := keepCheckpoint(server.CheckpointFile(file), r.Checkpoint, r.Keys); err != nil {
				return err
			}
			out := cmd.OutOrStdout()
			if o.json {
				return printJSON(out, r)
			}
			fmt.Fprintf(out, "%s in %s, %d of them new; signed: %s\n", plural(int(r.Events), "event"), file, r.Events-r.Resumed, server.CheckpointFile(file))
			return nil
		}),
	})
}

func newLogImport(o *options) *cobra.Command {
	var checkpoint, key string
	cmd := &cobra.Command{
		Use:   "import FILE --data-dir DIR",
		Short: "Bring an exported log into the data directory of a server that has none",
		Long: `Bring an exported log back, so that the same events are there under the same sequences:
the same projections, the same proofs. The file is verified against its checkpoint
before anything is written. No server may run on the data directory, its log must be
empty (or the beginning of the file: an import that was cut off goes on), and the
mesh's identity and keys must have been restored. Step by step: docs/operations.md`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			file := args[0]
			if checkpoint == "" {
				checkpoint = server.CheckpointFile(file)
			}
			signed, err := os.ReadFile(checkpoint)
			if errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("%w: an export has its checkpoint beside it; name another one with --checkpoint", err)
			}
			if err != nil {
				return err
			}
			by, err := trustedKey(key, checkpoint, nil)
			if err != nil {
				return err
			}
			tell := howFar(cmd.ErrOrStderr(), "imported")
			r, err := server.Import{
				File: file, Checkpoint: string(signed), Key: by.key, DataDir: o.dataDir,
				Logger:   zerolog.New(zerolog.ConsoleWriter{Out: cmd.ErrOrStderr(), NoColor: true}).Level(zerolog.WarnLevel),
				Progress: func(done, all int64) { tell(uint64(done), uint64(all)) },
			}.Run(cmd.Context())
			if err != nil {
				return err
			}
			out := cmd.OutOrStdout()
			if o.json {
				return printJSON(out, r)
			}
			fmt.Fprintf(out, "%s in %s, %d of them new, verified by key %s, %s\n", plural(int(r.Events), "event"), o.dataDir, r.Events-r.Resumed, by.key, by.from)
			return nil
		},
	}
	cmd.Flags().StringVar(&checkpoint, "checkpoint", "", "signed checkpoint of the export (default FILE.checkpoint)")
	cmd.Flags().StringVar(&key, "key", "", "the notary's public key, or a file with it (default: FILE.checkpoint.key)")
	return o.jsonFlag(cmd)
}
