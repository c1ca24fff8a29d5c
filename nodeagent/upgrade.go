package nodeagent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"noxmesh/events"
)

// hostHandler makes the host the version that is declared. When that is
// another one, it ends with errUpgraded: the service manager starts it.
type hostHandler struct {
	a        *Agent
	run      context.Context // ends with the process only
	revision uint64
}

func (h hostHandler) Apply(ctx context.Context, r events.Resource) error {
	a := h.a
	var spec events.HostSpec
	if err := events.DecodeSpec(r, &spec); err != nil {
		return err
	}
	if err := spec.Validate(); err != nil {
		return fmt.Errorf("%s: %w", r, err)
	}
	if spec.Version == a.cfg.Version {
		// An upgrade that was recalled before it came about is over.
		if i, ok := a.state.Installing(); ok && i.Version != a.cfg.Version && a.isConfirmed() {
			return a.state.remove(fileInstalling)
		}
		return nil
	}
	if spec.Architecture != a.cfg.Architecture {
		return &refusedError{spec, fmt.Sprintf("the package of %s is for %s and this machine is %s: declare the release of its architecture",
			spec.Version, spec.Architecture, a.cfg.Architecture)}
	}
	// Again: the keys may have been pinned since the declaration was accepted.
	if t, err := a.trust(a.name()); err != nil {
		return err
	} else if t != nil {
		if err := t.releases(spec); err != nil {
			return &refusedError{spec, err.Error()}
		}
	}
	if old, ok := refusal(a.state.Refused(), spec, h.revision); ok {
		return &refusedError{spec, fmt.Sprintf("this machine rolled %s back: %s. Declare another version, or this one with retry", spec.Version, old.Reason)}
	}
	if !a.isConfirmed() {
		return fmt.Errorf("%w for the running version to be confirmed", errWaiting)
	}
	if err := h.parachute(ctx, spec); err != nil {
		return err
	}
	if err := h.have(ctx, spec.Release); err != nil {
		return err
	}
	return h.install(ctx, spec)
}

// parachute makes sure that the machine could go back: no parachute, no jump.
func (h hostHandler) parachute(ctx context.Context, spec events.HostSpec) error {
	a := h.a
	known := a.state.KnownGood()
	_, err := a.state.Retained(known, a.cfg.Architecture)
	if err != nil {
		f := spec.Fallback
		if f == nil || f.Version != known || f.Architecture != a.cfg.Architecture {
			return &refusedError{spec, fmt.Sprintf(
				"no parachute, no jump: the package of %s, which runs now, is not kept on this machine (%v) and the declaration does not bring it: add that release to the mesh, or copy %s and its .sha256 to %s",
				known, err, events.PackageFile(known, a.cfg.Architecture), a.state.path(dirPackages))}
		}
		err = h.have(ctx, *f)
	}
	if err == nil {
		a.setParachute(nil)
	}
	return err
}

// have makes sure that a release's package is retained.
func (h hostHandler) have(ctx context.Context, rel events.Release) error {
	a := h.a
	if sum, err := a.state.Retained(rel.Version, rel.Architecture); err == nil && sum == rel.SHA256 {
		return nil
	}
	if err := checkSpace(a.state.dir, rel.Size, a.cfg.FreeSpace); err != nil {
		return err
	}
	if !a.link.isUp() {
		return fmt.Errorf("%w for the link, to fetch version %s", errWaiting, rel.Version)
	}
	file := filepath.Join(a.state.path(dirIncoming), events.PackageFile(rel.Version, rel.Architecture))
	fetchCtx, cancel := context.WithTimeout(ctx, a.cfg.Timings.Fetch)
	defer cancel()
	a.cfg.Status("fetching version " + rel.Version)
	if err := fetch(fetchCtx, a.link.direct, rel, file); err != nil {
		rmErr := os.Remove(file)
		if errors.Is(rmErr, os.ErrNotExist) {
			rmErr = nil
		}
		if !a.link.isUp() {
			return fmt.Errorf("%w for the link, to fetch version %s: %v", errWaiting, rel.Version, err)
		}
		return errors.Join(fmt.Errorf("fetching version %s: %w", rel.Version, err), rmErr)
	}
	if err := a.step("fetched"); err != nil {
		return err
	}
	if err := a.state.Retain(file, rel.Version, rel.Architecture); err != nil {
		return err
	}
	return a.step("retained")
}

// spaceMargin is left free on top of what an upgrade needs, in bytes.
const spaceMargin = 50 << 20

// checkSpace wants room for the download, its unpacked files and dpkg's copies.
func checkSpace(dir string, size int64, free func(string) (int64, error)) error {
	have, err := free(dir)
	if err != nil {
		return fmt.Errorf("asking for free space: %w", err)
	}
	if need := 3*size + spaceMargin; have < need {
		return fmt.Errorf("%s has %d MiB free and the upgrade wants %d MiB: free some space", dir, have>>20, need>>20)
	}
	return nil
}

// install hands the package over, and asks for a start of what was installed.
func (h hostHandler) install(ctx context.Context, spec events.HostSpec) error {
	a := h.a
	// The last moment to hear of a recall.
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := a.state.writeInstalling(Installing{spec.Version, spec.SHA256, h.revision}); err != nil {
		return err
	}
	if err := a.step("installing"); err != nil {
		return err
	}
	a.cfg.Status("installing version " + spec.Version)
	a.log.Info().Str("from", a.cfg.Version).Str("to", spec.Version).Uint64("revision", h.revision).Msg("installing")
	installCtx, cancel := context.WithTimeout(h.run, a.cfg.Timings.Install)
	defer cancel()
	if err := a.cfg.Packages.Install(installCtx, a.state.PackagePath(spec.Version, spec.Architecture)); err != nil {
		return h.failedInstall(spec, err)
	}
	if err := a.step("installed"); err != nil {
		return err
	}
	// Not fatal: without it the new version only has fewer tries.
	if err := a.cfg.Supervisor.ResetFailed(installCtx); err != nil {
		a.log.Warn().Err(err).Msg("the service manager's start counter was not reset")
	}
	a.log.Info().Str("version", spec.Version).Msg("installed: exiting so that the service manager starts it")
	return errUpgraded
}
