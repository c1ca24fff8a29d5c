package events

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"
	"unicode"
	"unicode/utf8"
)

// Limits on what a node may send, in bytes. The streams enforce them too.
const (
	MaxHeartbeat = 16 << 10
	MaxReport    = 64 << 10
)

// Heartbeat is a node saying what it runs. It is a claim of the node, with the
// node's identity in the subject and the mesh's clock on the stored message.
type Heartbeat struct {
	At           time.Time `json:"at"`       // node's clock
	StartID      string    `json:"start_id"` // one process start
	Version      string    `json:"version"`  // running
	KnownGood    string    `json:"known_good,omitempty"`
	Revision     uint64    `json:"revision"` // applied declaration
	Architecture string    `json:"architecture"`
	OS           string    `json:"os,omitempty"`
	Kernel       string    `json:"kernel,omitempty"`
	// Retained: the package of known-good is on the machine and whole, so the
	// node could roll back.
	Retained bool `json:"retained"`
	// Drill is the last try whether the node could roll back, if there was one.
	Drill *Drill `json:"drill,omitempty"`
	// Problems are one line for each thing that does not apply, bounded.
	Problems []string `json:"problems,omitempty"`
}

// Drill is the result of a rehearsed rollback: checksum and simulated install of
// the retained package.
type Drill struct {
	At    time.Time `json:"at"` // node's clock
	OK    bool      `json:"ok"`
	Error string    `json:"error,omitempty"`
}

// Confirmed says whether the running version completed a reconcile.
func (h Heartbeat) Confirmed() bool { return h.Version != "" && h.Version == h.KnownGood }

// DecodeHeartbeat reads and checks a node's heartbeat.
func DecodeHeartbeat(raw []byte) (Heartbeat, error) {
	var h Heartbeat
	if len(raw) > MaxHeartbeat {
		return h, fmt.Errorf("heartbeat of %d bytes is over the limit of %d", len(raw), MaxHeartbeat)
	}
	if err := json.Unmarshal(raw, &h); err != nil {
		return Heartbeat{}, fmt.Errorf("heartbeat does not read: %w", err)
	}
	if err := CheckVersion(h.Version); err != nil {
		return Heartbeat{}, fmt.Errorf("heartbeat: version: %w", err)
	}
	if h.StartID == "" || len(h.StartID) > 64 {
		return Heartbeat{}, errors.New("heartbeat: start_id is missing or longer than 64 bytes")
	}
	if len(h.Problems) > 20 {
		h.Problems = h.Problems[:20]
	}
	for i, p := range h.Problems {
		h.Problems[i] = Printable(p, 300)
	}
	if h.Drill != nil {
		h.Drill.Error = Printable(h.Drill.Error, 300)
	}
	h.Architecture, h.OS, h.Kernel = Printable(h.Architecture, 32), Printable(h.OS, 64), Printable(h.Kernel, 64)
	if h.KnownGood != "" {
		if err := CheckVersion(h.KnownGood); err != nil {
			return Heartbeat{}, fmt.Errorf("heartbeat: known_good: %w", err)
		}
	}
	return h, nil
}

// Pulse is the mesh's own heartbeat, on the subject of [PulseID]. Pulses tell
// when the mesh was listening, so that deaf time can be told from silence.
type Pulse struct {
	Server string `json:"server"`
	// Since is when this server began to listen without a gap.
	Since time.Time `json:"since"`
}

// Kinds of report.
const (
	ReportConfirmed     = "confirmed"
	ReportRolledBack    = "rolled-back"
	ReportRefused       = "refused"
	ReportFailedToApply = "failed-to-apply"
)

// ReportKinds are all kinds. A node may send these and no other: with kinds of
// its own making it could fill the stream.
var ReportKinds = []string{ReportConfirmed, ReportRolledBack, ReportRefused, ReportFailedToApply}

// Report is a node stating a fact about itself. The kind is in the subject.
type Report struct {
	ID   string          `json:"id"` // made by the node; the same when sent again
	At   time.Time       `json:"at"` // node's clock
	Data json.RawMessage `json:"data"`
}

// NewReport makes a report of one of the node's facts.
func NewReport(id string, at time.Time, data ReportFact) Report {
	raw, err := json.Marshal(data)
	if err != nil {
		panic(fmt.Sprintf("events: %T does not marshal: %v", data, err))
	}
	return Report{ID: id, At: at.UTC(), Data: raw}
}

// ReportFact is a fact that a node reports about itself.
type ReportFact interface {
	Fact
	SetReceipt(Receipt)
	// ReportKind is the last token of the report's subject.
	ReportKind() string
	// check refuses what cannot be, and makes free text safe to show.
	check() error
}

func (*NodeConfirmed) ReportKind() string     { return ReportConfirmed }
func (*NodeRolledBack) ReportKind() string    { return ReportRolledBack }
func (*NodeRefused) ReportKind() string       { return ReportRefused }
func (*NodeFailedToApply) ReportKind() string { return ReportFailedToApply }

func (f *NodeConfirmed) check() error {
	if f.StartID == "" || len(f.StartID) > 64 {
		return errors.New("start_id is missing or longer than 64 bytes")
	}
	return CheckVersion(f.Version)
}

func (f *NodeRolledBack) check() error {
	if len(f.Journal) > 50 {
		return fmt.Errorf("%d journal lines are over the limit of 50", len(f.Journal))
	}
	for i, line := range f.Journal {
		f.Journal[i] = Printable(line, 400)
	}
	for _, s := range []*string{&f.SHA256, &f.At, &f.Reason, &f.Exit, &f.Result, &f.Systemd} {
		*s = Printable(*s, 400)
	}
	return errors.Join(CheckVersion(f.From), CheckVersion(f.To))
}

func (f *NodeRefused) check() error {
	f.SHA256, f.Reason = Printable(f.SHA256, 64), Printable(f.Reason, 400)
	return CheckVersion(f.Version)
}

func (f *NodeFailedToApply) check() error {
	if f.Resource == "" || f.Error == "" {
		return errors.New("resource or error is missing")
	}
	f.Resource, f.Error = Printable(f.Resource, 200), Printable(f.Error, 400)
	return nil
}

// DecodeReport reads and checks a node's report of one kind. The error says
// what is wrong with it in words fit for the record.
func DecodeReport(kind string, raw []byte) (Report, ReportFact, error) {
	var f ReportFact
	switch kind {
	case ReportConfirmed:
		f = &NodeConfirmed{}
	case ReportRolledBack:
		f = &NodeRolledBack{}
	case ReportRefused:
		f = &NodeRefused{}
	case ReportFailedToApply:
		f = &NodeFailedToApply{}
	default:
		return Report{}, nil, fmt.Errorf("unknown kind of report %q", Printable(kind, 40))
	}
	if len(raw) > MaxReport {
		return Report{}, nil, fmt.Errorf("report of %d bytes is over the limit of %d", len(raw), MaxReport)
	}
	var r Report
	if err := json.Unmarshal(raw, &r); err != nil {
		return Report{}, nil, fmt.Errorf("report does not read: %s", Printable(err.Error(), 200))
	}
	if r.ID == "" || len(r.ID) > 64 {
		return Report{}, nil, errors.New("report id is missing or longer than 64 bytes")
	}
	if err := json.Unmarshal(r.Data, f); err != nil {
		return Report{}, nil, fmt.Errorf("report data does not read: %s", Printable(err.Error(), 200))
	}
	if err := f.check(); err != nil {
		return Report{}, nil, fmt.Errorf("report data: %s", Printable(err.Error(), 200))
	}
	return r, f, nil
}

// Printable makes a line of text that came from outside safe to show: one
// line, valid UTF-8, at most max bytes.
func Printable(s string, max int) string {
	out := make([]rune, 0, len(s))
	size := 0
	for _, r := range s {
		if !unicode.IsPrint(r) || r == utf8.RuneError {
			r = '?'
		}
		if size += utf8.RuneLen(r); size > max {
			break
		}
		out = append(out, r)
	}
	return string(out)
}
