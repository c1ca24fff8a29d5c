package server

import (
	"context"
	"fmt"

	"noxmesh/events"
	"noxmesh/projections"
)

func (a *api) addRelease(ctx context.Context, by caller, q ReleaseAddRequest) (ReleaseAddReply, error) {
	if err := q.Release.Validate(); err != nil {
		return ReleaseAddReply{}, err
	}
	if err := CheckPackage(ctx, a.js, q.Release); err != nil {
		return ReleaseAddReply{}, err
	}
	out := ReleaseAddReply{Release: q.Release}
	_, err := a.change(ctx, by, func(m *projections.Mesh) (string, events.Fact, uint64, error) {
		have := m.Releases[q.Release.Key()]
		if have == nil {
			return q.Release.Key(), &events.ReleaseAdded{Release: q.Release}, 0, nil
		}
		if have.SHA256 != q.Release.SHA256 {
			if q.Replace {
				return q.Release.Key(), &events.ReleaseAdded{Release: q.Release}, have.Seq, nil
			}
			return "", nil, 0, fmt.Errorf("%s for %s is there already with other content (sha256 %.12s..., this one %.12s...): give the rebuilt package a version of its own, like %s+1, or add it with --replace (nodes that run the former one keep it)",
				have.Version, have.Architecture, have.SHA256, q.Release.SHA256, have.Version)
		}
		out.Already = true
		return "", nil, 0, nil
	})
	return out, err
}

func (a *api) listReleases(context.Context, caller, struct{}) (out ReleaseList, err error) {
	a.runner.View(func(m *projections.Mesh) {
		out.Releases, out.EventSeq = m.ReleaseViews(), m.EventSeq
	})
	return out, nil
}
