package server

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/minio/highwayhash"

	"noxmesh/events"
)

// record is a message as the broker's file store has it: 22 bytes of header
// (length, sequence, time, length of the subject), subject, headers, data, and
// eight bytes of checksum with a key that everybody can work out.
type record struct {
	seq     uint64
	ts      uint64
	subject string
	headers []byte
	data    []byte
	// sum is left as it is if it is set.
	sum []byte
}

const withHeaders = 1 << 31

// blockKey is of the first block of a stream; the logs of tests have one.
func (r record) encode(key []byte) []byte {
	le := binary.LittleEndian
	length := uint32(22 + len(r.subject) + len(r.data) + 8)
	var headers []byte
	if len(r.headers) > 0 {
		headers = append(le.AppendUint32(nil, uint32(len(r.headers))), r.headers...)
		length = (length + uint32(len(headers))) | withHeaders
	}
	out := le.AppendUint32(nil, length)
	out = le.AppendUint64(out, r.seq)
	out = le.AppendUint64(out, r.ts)
	out = le.AppendUint16(out, uint16(len(r.subject)))
	sum := r.sum
	if sum == nil {
		h, err := highwayhash.NewDigest64(key)
		if err != nil {
			panic(err)
		}
		h.Write(out[4:20])
		h.Write([]byte(r.subject))
		h.Write(r.headers)
		h.Write(r.data)
		sum = h.Sum(nil)
	}
	out = append(append(append(out, r.subject...), headers...), r.data...)
	return append(out, sum...)
}

func decodeRecord(raw []byte) (r record, rest []byte) {
	le := binary.LittleEndian
	length := le.Uint32(raw)
	headers := length&withHeaders != 0
	length &^= withHeaders
	body := raw[22 : length-8]
	r.seq, r.ts = le.Uint64(raw[4:]), le.Uint64(raw[12:])
	n := le.Uint16(raw[20:])
	r.subject, body = string(body[:n]), body[n:]
	if headers {
		n := le.Uint32(body)
		r.headers, body = bytes.Clone(body[4:4+n]), body[4+n:]
	}
	r.data = bytes.Clone(body)
	return r, raw[length:]
}

// tamper rewrites the log's file under a stopped broker, with checksums that are
// right. With reindexed the broker has to build its index anew.
func tamper(t testing.TB, dir string, reindexed bool, fn func([]record) []record) {
	t.Helper()
	blocks, err := filepath.Glob(filepath.Join(dir, "jetstream", "*", "streams", events.StreamEvents, "msgs", "*.blk"))
	if err != nil || len(blocks) != 1 {
		t.Fatal(blocks, err)
	}
	raw, err := os.ReadFile(blocks[0])
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "%s-1", events.StreamEvents))
	var records []record
	for rest := raw; len(rest) > 0; {
		var r record
		r, rest = decodeRecord(rest)
		records = append(records, r)
	}
	var same []byte
	for _, r := range records {
		same = append(same, r.encode(sum[:])...)
	}
	if !bytes.Equal(same, raw) {
		t.Fatal("the broker writes its records otherwise than this test does")
	}
	var out []byte
	for _, r := range fn(records) {
		out = append(out, r.encode(sum[:])...)
	}
	if err := os.WriteFile(blocks[0], out, 0o600); err != nil {
		t.Fatal(err)
	}
	if reindexed {
		if err := os.Remove(filepath.Join(filepath.Dir(blocks[0]), "index.db")); err != nil {
			t.Fatal(err)
		}
	}
}
