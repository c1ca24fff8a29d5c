package nodeagent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"noxmesh/events"
)

// mend finishes what the package manager left half done: a power cut between
// dpkg's steps, or a package whose scripts fail. What runs and is confirmed then
// disagrees with what the package manager has on its books, and nothing else
// would ever put that right. It installs the package of the running version
// again, which is known-good.
func (a *Agent) mend(ctx context.Context) (mended bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, a.cfg.Timings.Install)
	defer cancel()
	mended, err = a.cfg.Packages.Mend(ctx, a.state.PackagePath(a.cfg.Version, a.cfg.Architecture))
	switch {
	case errors.Is(err, ErrBusy):
		// Somebody is at work, so what is half done may well be about to be done.
		a.problem("package", "")
	case err != nil:
		err = fmt.Errorf("the package is half-installed and could not be put right: %w", err)
		a.problem("package", err.Error())
	default:
		a.problem("package", "")
	}
	if mended {
		a.log.Warn().Str("version", a.cfg.Version).Msg("the package was half-installed: installed again")
	}
	return mended, err
}

// failedInstall puts the running version back if the declared one was left half
// installed, and then refuses that one: it is the package that is at fault, and
// trying it again would take the machine through the same for ever.
func (h hostHandler) failedInstall(spec events.HostSpec, cause error) error {
	a := h.a
	cause = fmt.Errorf("installing version %s: %w", spec.Version, cause)
	mended, err := a.mend(h.run)
	if err != nil || !mended {
		return errors.Join(cause, err)
	}
	err = a.state.refuse(Refusal{Version: spec.Version, SHA256: spec.SHA256, Revision: h.revision,
		Reason: events.Printable(cause.Error(), 300), At: time.Now().UTC()})
	return errors.Join(cause, err, a.state.remove(fileInstalling))
}
