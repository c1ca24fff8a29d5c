package nodeagent

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"noxmesh/events"
)

// RollbackRecord is what the rollback script writes when it fires. While it is
// there, the script does not fire again.
type RollbackRecord struct {
	ID       string   `json:"id"`
	From     string   `json:"from"` // the version that did not start
	To       string   `json:"to"`   // known-good
	SHA256   string   `json:"sha256,omitempty"`
	Revision uint64   `json:"revision,omitempty"`
	At       string   `json:"at"` // RFC 3339
	Restarts int      `json:"restarts"`
	Exit     string   `json:"exit"`
	Result   string   `json:"result"`
	Systemd  string   `json:"systemd,omitempty"`
	Status   string   `json:"status"` // begun, done or failed
	Reason   string   `json:"reason"`
	Journal  []string `json:"journal,omitempty"`
}

// Encode gives the lines of the record, as the script writes them.
func (r RollbackRecord) Encode() []byte {
	var b strings.Builder
	line := func(k, v string) { fmt.Fprintf(&b, "%s=%s\n", k, events.Printable(v, 2000)) }
	revision := ""
	if r.Revision != 0 {
		revision = fmt.Sprint(r.Revision)
	}
	line("id", r.ID)
	line("from", r.From)
	line("to", r.To)
	line("sha256", r.SHA256)
	line("revision", revision)
	line("at", r.At)
	line("restarts", fmt.Sprint(r.Restarts))
	line("exit", r.Exit)
	line("result", r.Result)
	line("systemd", r.Systemd)
	line("status", r.Status)
	line("reason", r.Reason)
	for _, l := range r.Journal {
		line("journal", l)
	}
	return []byte(b.String())
}

// pairs reads key=value lines. The last line of a key counts, but for those
// that repeat. A line that is none is skipped: the record is read after the
// worst has happened, and half of it is better than nothing.
func pairs(raw []byte) map[string][]string {
	m := map[string][]string{}
	for line := range strings.Lines(string(raw)) {
		if k, v, ok := strings.Cut(strings.TrimRight(line, "\r\n"), "="); ok {
			m[k] = append(m[k], v)
		}
	}
	return m
}

func last(values []string) string {
	if len(values) == 0 {
		return ""
	}
	return values[len(values)-1]
}

func parseRollback(raw []byte) RollbackRecord {
	m := pairs(raw)
	text := func(key string) string { return events.Printable(strings.TrimSpace(last(m[key])), 400) }
	r := RollbackRecord{
		ID: events.Printable(text("id"), 64), From: text("from"), To: text("to"), SHA256: text("sha256"), At: text("at"),
		Exit: text("exit"), Result: text("result"), Systemd: text("systemd"), Status: text("status"), Reason: text("reason"),
		Journal: m["journal"],
	}
	r.Revision, _ = strconv.ParseUint(text("revision"), 10, 64)
	r.Restarts, _ = strconv.Atoi(text("restarts"))
	if n := len(r.Journal) - 20; n > 0 {
		r.Journal = r.Journal[n:]
	}
	for i, l := range r.Journal {
		r.Journal[i] = events.Printable(l, 400)
	}
	return r
}

// Rollback reads the record of a rollback that no host has taken note of yet.
// Its bare presence says that the rollback fired, so it is true for a damaged
// record as well.
func (s *State) Rollback() (RollbackRecord, bool) {
	raw, ok := s.read(fileRollback)
	return parseRollback(raw), ok
}

// LastRollback reads the record of the last rollback that a host reported.
func (s *State) LastRollback() (RollbackRecord, bool) {
	raw, ok := s.read(fileRollbackLast)
	return parseRollback(raw), ok
}

// WriteRollback writes the record, for a simulated machine.
func (s *State) WriteRollback(r RollbackRecord) error { return s.write(fileRollback, r.Encode()) }

// Installing is what the host last set out to install.
type Installing struct {
	Version  string
	SHA256   string
	Revision uint64
}

// Installing reads that note; false when nothing is under way.
func (s *State) Installing() (Installing, bool) {
	raw, ok := s.read(fileInstalling)
	if !ok {
		return Installing{}, false
	}
	m := pairs(raw)
	i := Installing{Version: last(m["version"]), SHA256: last(m["sha256"])}
	i.Revision, _ = strconv.ParseUint(last(m["revision"]), 10, 64)
	if err := events.CheckVersion(i.Version); err != nil {
		s.setAside(fileInstalling, err.Error())
		return Installing{}, false
	}
	return i, true
}

func (s *State) writeInstalling(i Installing) error {
	return s.write(fileInstalling, fmt.Appendf(nil, "version=%s\nsha256=%s\nrevision=%d\n", i.Version, i.SHA256, i.Revision))
}

// Refusal is a version that this machine does not install again by itself.
type Refusal struct {
	Version string `json:"version"`
	// SHA256 of the package; empty means every package of that version.
	SHA256 string `json:"sha256,omitempty"`
	// Revision of the declaration that asked for it. A later one may say retry.
	Revision uint64    `json:"revision"`
	Reason   string    `json:"reason"`
	At       time.Time `json:"at"`
}

// Refused lists what the machine refuses.
func (s *State) Refused() []Refusal {
	var list []Refusal
	if !s.readJSON(fileRefused, &list) {
		return nil
	}
	return list
}

// refuse adds or renews a refusal.
func (s *State) refuse(r Refusal) error {
	list := slices.DeleteFunc(s.Refused(), func(o Refusal) bool {
		return o.Version == r.Version && o.SHA256 == r.SHA256
	})
	return s.writeJSON(fileRefused, append(list, r))
}

// unrefuse forgets the refusals of a version that works after all.
func (s *State) unrefuse(version string) error {
	list := s.Refused()
	kept := slices.DeleteFunc(slices.Clone(list), func(o Refusal) bool { return o.Version == version })
	if len(kept) == len(list) {
		return nil
	}
	return s.writeJSON(fileRefused, kept)
}

// refusal finds what speaks against installing a release. A retry counts only
// against refusals from before its own declaration: the same declaration must
// not bring the machine up and down for ever.
func refusal(list []Refusal, spec events.HostSpec, revision uint64) (Refusal, bool) {
	for _, r := range slices.Backward(list) {
		if r.Version != spec.Version || (r.SHA256 != "" && r.SHA256 != spec.SHA256) {
			continue
		}
		if spec.Retry && revision > r.Revision {
			continue
		}
		return r, true
	}
	return Refusal{}, false
}
