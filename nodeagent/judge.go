package nodeagent

import (
	"fmt"
	"strings"
	"time"

	"noxmesh/events"
	"noxmesh/events/anchor"
)

const (
	restartCommand = "systemctl restart nox-mesh-host"
	journalCommand = "journalctl -u nox-mesh-host -n 50"
	resetCommand   = "systemctl reset-failed nox-mesh-host && systemctl start nox-mesh-host"
)

// judge finds what is not well.
//
// A link that is down is no finding by itself: a disconnected node is ordinary,
// and a monitor that runs "status" on a laptop in a train must not ring. It is
// one where waiting does not help: no address, or credentials that are refused.
// Reports that wait for the link are then ordinary too.
func (o *Overview) judge() {
	o.judgeHost()
	o.judgeLink()
	o.judgeWayBack()
	if d := o.Declared; d != nil && d.host != nil && o.Host != nil && d.Version != o.Host.Version {
		if r, refused := refusal(o.Refused, *d.host, d.Revision); refused {
			o.find([]string{"nox-mesh rollout status latest   (on an operator's machine)"}, "version %s is declared (revision %d) and refused here: %s", d.Version, d.Revision, r.Reason)
		} else {
			o.find([]string{journalCommand}, "version %s is declared (revision %d) and %s runs", d.Version, d.Revision, o.Host.Version)
		}
	}
	for _, p := range o.Problems {
		o.find(nil, "%s", p)
	}
}

func (o *Overview) find(next []string, format string, args ...any) {
	o.Findings = append(o.Findings, Finding{fmt.Sprintf(format, args...), next})
}

func (o *Overview) judgeHost() {
	switch {
	case !o.Running && o.Host == nil:
		o.find([]string{"systemctl start nox-mesh-host", journalCommand}, "the host has never run to the end of a reconcile on this machine")
	case !o.Running && o.Pending != nil:
		o.find([]string{journalCommand, "journalctl -u nox-mesh-host-rollback", resetCommand},
			"the host does not run, and the rollback from %s to %s has been used (%s): the machine is the likelier cause now", o.Pending.From, o.Pending.To, o.Pending.Reason)
	case !o.Running:
		o.find([]string{"systemctl status nox-mesh-host", journalCommand, resetCommand}, "the host does not run")
	case o.Pending != nil:
		o.find([]string{journalCommand}, "a rollback from %s to %s was made and is not confirmed yet", o.Pending.From, o.Pending.To)
	}
	if o.Running && o.Host != nil {
		switch h := o.Host; {
		case !h.Confirmed:
			o.find([]string{journalCommand}, "version %s runs and is not confirmed", h.Version)
		case h.Version != o.Installed && o.Installed != "":
			o.find([]string{restartCommand}, "version %s runs and %s is installed", h.Version, o.Installed)
		}
	}
	// Wanted, state, error: "hi" is a held package, which is somebody's wish.
	if s := strings.TrimSpace(o.PackageState); s != "" && s != "ii" && s != "hi" {
		next := []string{"dpkg --audit"}
		if o.Parachute == "retained" {
			next = append(next, "dpkg -i "+o.StateDir+"/packages/"+events.PackageFile(o.KnownGood, architecture()))
		}
		o.find(next, "the package is not properly installed: dpkg says %q", events.Printable(s, 10))
	}
}

func (o *Overview) judgeLink() {
	if !o.Running || o.Host == nil {
		if o.Outbox > 0 {
			o.find(nil, "reports that wait to be sent: %d", o.Outbox)
		}
		return
	}
	switch l := o.Host.Link; {
	case l.Up && o.Outbox > 0:
		o.find(nil, "the link is up and reports still wait to be sent: %d", o.Outbox)
	case l.Up:
	case l.URL == "":
		o.find([]string{restartCommand}, "the link to the mesh is down: %s", l.Reason)
	case refusedLink(l.Reason):
		o.find([]string{"nox-mesh node invite " + or(o.Node, "NAME") + "   (on an operator's machine, if it may come back)", "nox-mesh-host join TOKEN"}, "the mesh does not let this node in: %s", l.Reason)
	}
}

// refusedLink tells the broker's no from a network that is not there.
func refusedLink(reason string) bool {
	reason = strings.ToLower(reason)
	for _, no := range []string{"authorization", "authentication", ErrRefused.Error(), anchor.ErrNotThisMesh.Error()} {
		if strings.Contains(reason, strings.ToLower(no)) {
			return true
		}
	}
	return false
}

// staleDrill is when the daily drill has been missed for so long that something
// keeps it from being made.
const staleDrill = 3 * 24 * time.Hour

func (o *Overview) judgeWayBack() {
	drill := []string{"nox-mesh-host drill"}
	switch d := o.Drill; {
	case o.Parachute == "missing" && !o.upgraded:
		// As installed by hand: nothing to go back to before the first upgrade,
		// and that one brings the package along or is refused.
	case o.Parachute == "missing":
		o.find(drill, "the machine could not roll back: the package of %s is not kept here", o.KnownGood)
	case o.Parachute != "retained":
		o.find(append([]string{"cd " + o.StateDir + "/packages && sha256sum -c *.sha256"}, drill...), "the machine could not roll back: %s", o.Parachute)
	case d == nil:
	case !d.OK:
		o.find(append(drill, d.Next...), "the machine could not roll back when it was rehearsed: %s", d.Error)
	case o.Running && o.Host != nil && o.Host.At.Sub(d.At) > staleDrill && o.Host.At.Sub(o.Host.Started) > staleDrill:
		o.find(drill, "the rollback was last rehearsed at %s, and should be daily", d.At.UTC().Format(time.DateTime+"Z"))
	}
}
