package nodeagent

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"runtime"
	"slices"
	"time"

	"noxmesh/events"
)

// Status is what the running host last wrote about itself.
type Status struct {
	At        time.Time  `json:"at"`
	Node      string     `json:"node,omitempty"`
	PID       int        `json:"pid"`
	Started   time.Time  `json:"started"`
	StartID   string     `json:"start_id"`
	Version   string     `json:"version"`
	Confirmed bool       `json:"confirmed"`
	Applied   uint64     `json:"applied_revision"`
	Link      LinkStatus `json:"link"`
	// Pins are the keys that declarations are verified by; nil: by none.
	Pins     *events.Pins `json:"pins,omitempty"`
	Problems []string     `json:"problems,omitempty"`
}

// keepStatus writes status.json whenever something changed. It is for people,
// so it may be lost with the power.
func (a *Agent) keepStatus(ctx context.Context) {
	for {
		a.mu.Lock()
		s := Status{
			At: time.Now().UTC(), Node: a.node, PID: os.Getpid(), Started: a.started.UTC(), StartID: a.startID,
			Version: a.cfg.Version, Confirmed: a.confirmed, Applied: a.applied, Problems: a.problemLines(),
		}
		a.mu.Unlock()
		s.Link = a.link.status()
		if pins, err := events.LoadPins(a.cfg.PinsFile); err == nil {
			s.Pins = &pins
		}
		raw, err := json.MarshalIndent(s, "", "  ")
		if err == nil {
			err = writeBeside(a.state.path(fileStatus), append(raw, '\n'), 0o644, false)
		}
		if err != nil {
			a.log.Warn().Err(err).Msg("status.json")
		}
		line := "running " + a.cfg.Version
		if s.Link.Up {
			line += ", link up"
		} else {
			line += ", link down: " + s.Link.Reason
		}
		a.cfg.Status(line)
		select {
		case <-ctx.Done():
			return
		case <-a.dirty:
		}
	}
}

// Finding is one thing that is not well, and what a person can do about it.
type Finding struct {
	What string   `json:"what"`
	Next []string `json:"next,omitempty"` // commands
}

// Overview is all that can be told about a node at the machine itself, with
// the host running or not.
type Overview struct {
	StateDir  string `json:"state_dir"`
	Node      string `json:"node,omitempty"`
	Running   bool   `json:"running"` // a host works in the state directory now
	Installed string `json:"installed,omitempty"`
	// PackageState is dpkg's, like "ii", of the installed package.
	PackageState string `json:"package_state,omitempty"`
	KnownGood    string `json:"known_good,omitempty"`
	// Host is what the host last wrote about itself, nil if it never ran.
	Host *Status `json:"host,omitempty"`
	// Parachute is "retained", "missing" or what is wrong with the package.
	Parachute string           `json:"parachute"`
	Drill     *DrillResult     `json:"drill,omitempty"` // of known-good
	Declared  *DeclaredSummary `json:"declared,omitempty"`
	Refused   []Refusal        `json:"refused,omitempty"`
	// Pending is a rollback that no host has reported yet, Last the one before.
	Pending  *RollbackRecord `json:"pending_rollback,omitempty"`
	Last     *RollbackRecord `json:"last_rollback,omitempty"`
	Outbox   int             `json:"outbox"`
	Problems []string        `json:"problems,omitempty"`
	// Findings say why all is not well; none means that it is.
	Findings []Finding `json:"findings,omitempty"`

	upgraded bool // this is not the first version that was confirmed here
}

// DeclaredSummary is the newest declaration that the node has.
type DeclaredSummary struct {
	Revision  uint64                  `json:"revision"`
	Because   events.DeclarationCause `json:"because"`
	Actor     string                  `json:"actor"`
	At        time.Time               `json:"at"` // the mesh's clock
	Version   string                  `json:"version,omitempty"`
	Resources []string                `json:"resources,omitempty"`
	host      *events.HostSpec
}

// Installed is what the package manager says about the host's package; empty
// when it says nothing.
type Installed struct {
	Version string
	State   string // dpkg's two or three letters, "ii" when all is well
}

// Look reads a state directory without changing anything there. It works when
// the host is dead, and when it never ran.
func Look(stateDir, credsFile string, installed Installed) Overview {
	s := LookAtState(stateDir)
	o := Overview{StateDir: stateDir, Installed: installed.Version, PackageState: installed.State, KnownGood: s.KnownGood(),
		Running: s.hostRuns(), Refused: s.Refused()}
	if node, err := NodeName(credsFile); err == nil {
		o.Node = node
	} else {
		o.Findings = append(o.Findings, Finding{What: err.Error()})
	}
	var st Status
	if s.readJSON(fileStatus, &st) {
		o.Host = &st
		if o.Running {
			o.Problems = st.Problems
		}
	}
	o.Outbox = len(outboxFiles(s))
	switch _, err := s.Retained(o.KnownGood, architecture()); {
	case o.KnownGood == "" || errors.Is(err, ErrNotRetained):
		o.Parachute = "missing"
	case err != nil:
		o.Parachute = err.Error()
	default:
		o.Parachute = "retained"
	}
	if d, ok := s.LastDrill(); ok && d.Version == o.KnownGood {
		o.Drill = &d
	}
	if trouble := s.kitTrouble(o.KnownGood); trouble != "" && o.KnownGood != "" {
		s.note("%s", trouble)
	}
	o.upgraded = s.readVersion(filePrevious) != ""
	if raw, ok := s.read(fileDeclaration); ok {
		if d, err := parseDeclaration(raw, ""); err != nil {
			s.note("%s does not read: %v", fileDeclaration, err)
		} else {
			o.Declared = summarize(d)
		}
	}
	if r, ok := s.Rollback(); ok {
		o.Pending = &r
	}
	if r, ok := s.LastRollback(); ok {
		o.Last = &r
	}
	for _, line := range s.Trouble() {
		if !slices.Contains(o.Problems, line) {
			o.Problems = append(o.Problems, line)
		}
	}
	o.judge()
	return o
}

// architecture is this machine's, in Debian's words.
func architecture() string { return DebianArchitecture(runtime.GOARCH) }

func summarize(d declaration) *DeclaredSummary {
	sum := &DeclaredSummary{Revision: d.Revision, Because: d.Because, Actor: d.event.Actor, At: d.event.Time, host: d.Host()}
	if sum.host != nil {
		sum.Version = sum.host.Version
	}
	for _, r := range d.Resources {
		sum.Resources = append(sum.Resources, events.Printable(r.String(), 200))
	}
	return sum
}
