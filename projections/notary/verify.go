package notary

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/mod/sumdb/tlog"

	"noxmesh/events"
)

// Verification is what is to be verified, and by what.
type Verification struct {
	// Read hands over the log from a sequence on.
	Read func(from uint64, fn func(events.Message) error) error
	// Checkpoints are signed notes. One at least is needed.
	Checkpoints []string
	// Key is the public key that is trusted. Later ones follow from it in the log.
	Key string
	// Stored reads the notary's hashes, nil if there is no notary to ask.
	Stored tlog.HashReader
}

// Report is what came out.
type Report struct {
	OK     bool   `json:"ok"`
	Origin string `json:"origin"`
	Events int64  `json:"events"`
	Root   string `json:"root"` // over all of them, base64
	// Proven is the size of the newest checkpoint: what came later, nothing vouches
	// for yet.
	Proven      int64  `json:"proven"`
	Checkpoints int    `json:"checkpoints"`
	Key         string `json:"key"`
	// Fault is the first that does not fit, and Now is what is there now.
	Fault *Fault `json:"fault,omitempty"`
	Now   string `json:"now,omitempty"`
}

// Verify reads the log and says whether it is the one that was signed. An error
// means that this could not be found out.
func Verify(v Verification) (_ Report, err error) {
	if len(v.Checkpoints) == 0 {
		return Report{}, errors.New("there is no checkpoint to verify against")
	}
	dir, err := os.MkdirTemp("", "nox-mesh-verify-*")
	if err != nil {
		return Report{}, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	a, err := NewAudit(filepath.Join(dir, "hashes"))
	if err != nil {
		return Report{}, err
	}
	defer func() { err = errors.Join(err, a.Close()) }()
	if err := v.Read(1, a.Add); err != nil {
		return Report{}, err
	}
	r := Report{Events: a.Size(), Checkpoints: len(v.Checkpoints), Key: v.Key}
	if a.Size() > 0 {
		all, err := a.At(a.Size())
		if err != nil {
			return Report{}, err
		}
		r.Origin, r.Root = all.Origin, all.Root.String()
	}
	var opened []Checkpoint
	for _, signed := range v.Checkpoints {
		c, err := OpenCheckpoint([]byte(signed), a.Keys(v.Key)...)
		if err != nil {
			return Report{}, fmt.Errorf("%w; the key that is trusted is %s", err, v.Key)
		}
		opened, r.Proven = append(opened, c), max(r.Proven, c.Size)
	}
	if r.Fault, err = a.Compare(opened, v.Stored); err != nil {
		return Report{}, err
	}
	if r.OK = r.Fault == nil; r.OK {
		return r, nil
	}
	r.Now, err = stored(v, r.Fault)
	return r, err
}

// stored is what there is now where a fault is, if that is told exactly.
func stored(v Verification, f *Fault) (data string, err error) {
	if f.Seq != f.UpTo {
		return "", nil
	}
	errFound := errors.New("found")
	err = v.Read(uint64(f.Seq), func(m events.Message) error {
		if int64(m.Seq) == f.Seq {
			data = string(m.Data)
		}
		if int64(m.Seq) >= f.Seq {
			return errFound
		}
		return nil
	})
	if errors.Is(err, errFound) {
		err = nil
	}
	return data, err
}
