package server

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"noxmesh/events"
	"noxmesh/projections"
)

func (a *api) storePart(ctx context.Context, _ caller, q PartRequest) (PartReply, error) {
	already, err := storePart(ctx, a.js, q.Name, q.Data)
	if err != nil {
		return PartReply{}, fmt.Errorf("storing a part of a package: %w", err)
	}
	return PartReply{Already: already}, nil
}

func (a *api) addRelease(ctx context.Context, by caller, q ReleaseAddRequest) (ReleaseAddReply, error) {
	if err := q.Release.Validate(); err != nil {
		return ReleaseAddReply{}, err
	}
	if err := CheckPackage(ctx, a.js, q.Release); err != nil {
		return ReleaseAddReply{}, err
	}
	out := ReleaseAddReply{Release: q.Release}
	_, err := a.change(ctx, by, func(m *projections.Mesh) (string, events.Fact, uint64, error) {
		if err := m.Signed(q.Release); err != nil {
			return "", nil, 0, fmt.Errorf("nodes would refuse %s for %s by the release key in force, %s: %w: give that key with --sign-key FILE (nox-mesh key ls shows the keys)",
				q.Release.Version, q.Release.Architecture, m.Key(events.KeyRelease), err)
		}
		have := m.Releases[q.Release.Key()]
		if have == nil {
			return q.Release.Key(), &events.ReleaseAdded{Release: q.Release}, 0, nil
		}
		if have.Held != nil {
			out.Held = have.Held.Fact.Reason
		}
		if have.SHA256 == q.Release.SHA256 {
			out.Already = true
			if m.Signed(have.Release) == nil {
				return "", nil, 0, nil
			}
			// It was added unsigned, or a former key signed it.
			out.Signed = true
			again := have.Release
			again.Signature = q.Release.Signature
			return q.Release.Key(), &events.ReleaseAdded{Release: again}, have.LastSeq, nil
		}
		if !q.Replace {
			return "", nil, 0, fmt.Errorf("%s for %s is there already with other content (sha256 %.12s..., this one %.12s...): give the rebuilt package a version of its own, like %s+1, or add it with --replace (nodes that run the former one keep it)",
				have.Version, have.Architecture, have.SHA256, q.Release.SHA256, have.Version)
		}
		if have.Held != nil {
			// A replaced release starts anew, and the hold must not get lost by that.
			return "", nil, 0, fmt.Errorf("%s for %s is held (%s): give the rebuilt package a version of its own, like %s+1, or lift the hold first with nox-mesh release lift %s",
				have.Version, have.Architecture, have.Held.Fact.Reason, have.Version, have.Version)
		}
		return q.Release.Key(), &events.ReleaseAdded{Release: q.Release}, have.LastSeq, nil
	})
	return out, err
}

func (a *api) listReleases(ctx context.Context, _ caller, q AtRequest) (out ReleaseList, err error) {
	out.Past, err = a.state(ctx, q.At, func(m *projections.Mesh, _ time.Time) {
		out.Releases, out.EventSeq = m.ReleaseViews(), m.EventSeq
	})
	return out, err
}

func (a *api) holdRelease(ctx context.Context, by caller, q HoldRequest) (HoldReply, error) {
	reason := reasonText(q.Reason)
	if strings.TrimSpace(reason) == "" {
		return HoldReply{}, errors.New("say why the release is held, for those who find it so: --reason TEXT")
	}
	return a.eachRelease(ctx, by, q.Version, func(r *projections.Release) events.Fact {
		if r.Held != nil {
			return nil
		}
		return &events.ReleaseHeld{Reason: reason}
	})
}

func (a *api) liftRelease(ctx context.Context, by caller, q HoldRequest) (HoldReply, error) {
	return a.eachRelease(ctx, by, q.Version, func(r *projections.Release) events.Fact {
		if r.Held == nil {
			return nil
		}
		return &events.ReleaseHoldLifted{Reason: reasonText(q.Reason)}
	})
}

// eachRelease carries a command out on each release of a version, one event for
// each architecture. fn gives no fact where there is nothing to do.
func (a *api) eachRelease(ctx context.Context, by caller, version string, fn func(*projections.Release) events.Fact) (HoldReply, error) {
	out := HoldReply{Version: version, Changed: []string{}}
	var releases []events.Release
	var known []string
	a.runner.View(func(m *projections.Mesh) { releases, known = m.ReleasesOf(version), m.Versions() })
	if len(releases) == 0 {
		have := "none is there yet"
		if len(known) > 0 {
			have = "there are " + strings.Join(known[:min(len(known), 5)], ", ")
		}
		return out, fmt.Errorf("no release has version %q (%s): nox-mesh release ls shows all", version, have)
	}
	for _, rel := range releases {
		done := false
		_, err := a.append(ctx, by, func(m *projections.Mesh) (string, events.Fact, uint64, error) {
			r := m.Releases[rel.Key()]
			// The command may be given again after a server stopped between two
			// of its events. What has an event since the first was done then.
			if first := m.Releases[m.Commands[by.command]]; first != nil && r.LastSeq >= first.LastSeq {
				done = true
				return rel.Key(), nil, 0, nil
			}
			fact := fn(r)
			done = fact != nil
			return rel.Key(), fact, r.LastSeq, nil
		})
		if err != nil {
			return out, err
		}
		if done {
			out.Changed = append(out.Changed, rel.Architecture)
		} else {
			out.Already = append(out.Already, rel.Architecture)
		}
	}
	a.runner.View(func(m *projections.Mesh) {
		for _, r := range m.InOrder() {
			if r.State.Open() && r.Plan.Version == version {
				out.Rollouts = append(out.Rollouts, r.ID)
			}
		}
	})
	return out, nil
}
