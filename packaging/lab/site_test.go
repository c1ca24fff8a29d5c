package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"strings"
	"time"
)

// site is one machine with one scenario on it.
type site struct {
	*Machine
	name  string // of the machine and of the node
	mesh  *mesh
	diary *diary
	lab   *Lab
	// packages by version.
	packages map[string]string

	former string    // the version that ran before the last upgrade
	target string    // the version it should run
	cause  string    // what a journal line must say if the host stays failed
	begun  time.Time // the scenario's first step
	ended  time.Time // when its end was reached; zero if never
	notes  []string  // what a reader of the table should know
	rolled string    // the rollout under way
}

var errNotYet = errors.New("not yet")

const (
	stateDir   = "/var/lib/mesh-host"
	hostBinary = "/usr/bin/nox-mesh-host"
)

// note adds to what the table says of the scenario, once.
func (s *site) note(text string) {
	for _, n := range s.notes {
		if n == text {
			return
		}
	}
	s.notes = append(s.notes, text)
}

// install brings the first version onto the machine, with a link, and returns
// when the mesh knows that it is confirmed.
func (s *site) install(ctx context.Context, version string) error {
	if err := s.prepare(ctx); err != nil {
		return err
	}
	if err := s.dpkg(ctx, version); err != nil {
		return err
	}
	s.former, s.target = "", version
	return s.confirmed(ctx, version)
}

// prepare boots the machine and has it join before its host is installed, as an
// image is made.
func (s *site) prepare(ctx context.Context) error {
	if err := s.Boot(ctx); err != nil {
		return err
	}
	flags := []string{"--label", "machine=" + s.name}
	if s.opts.OwnNetwork {
		at, err := s.relay(s.mesh.url)
		if err != nil {
			return err
		}
		flags = append(flags, "--at", at)
	}
	token, err := s.mesh.invite(ctx, s.name, flags...)
	if err != nil {
		return err
	}
	if err := errors.Join(s.WriteFile("/root/token", []byte(token), 0o600), s.CopyIn(s.packages[current], "/root/image.deb", 0o644)); err != nil {
		return err
	}
	_, err = s.sh(ctx, "dpkg-deb -x /root/image.deb /root/image && /root/image/usr/bin/nox-mesh-host join --no-start - </root/token && rm -r /root/image /root/image.deb /root/token")
	return err
}

// dpkg installs a version by hand, as whoever sets a machine up does.
func (s *site) dpkg(ctx context.Context, version string) error {
	file := "/root/nox-mesh-host_" + version + ".deb"
	if err := s.CopyIn(s.packages[version], file, 0o644); err != nil {
		return err
	}
	_, err := s.Exec(ctx, "dpkg", "-i", file)
	return err
}

// confirmed waits until the mesh has heard that a version is confirmed.
func (s *site) confirmed(ctx context.Context, version string) error {
	return s.diary.wait(ctx, s.name+" confirms "+version, 60*time.Second, func() bool {
		return s.diary.confirmations(s.name, version) > 0
	})
}

// upgrade has the mesh take the machine to a version.
func (s *site) upgrade(ctx context.Context, version string) error {
	if s.rolled != "" {
		// At most one open rollout a node. One that is over needs no end.
		_, _ = s.mesh.cli(ctx, "rollout", "abort", s.rolled)
	} else {
		s.begun = time.Now()
	}
	r, err := ask[struct{ ID string }](ctx, s.mesh, "rollout", "start", version,
		"--select", "machine="+s.name, "--batches", "100%", "--window", "5m", "--soak", "5s")
	s.rolled = r.ID
	s.former, s.target = s.target, version
	return err
}

// upgraded takes the machine to a version that works and waits for it.
func (s *site) upgraded(ctx context.Context, version string) error {
	if err := s.upgrade(ctx, version); err != nil {
		return err
	}
	return s.confirmed(ctx, version)
}

// installed waits until dpkg has installed a version: there is time for
// meddling before the host fails for the last time.
func (s *site) installed(ctx context.Context, version string) error {
	return WaitFor(ctx, s.name+" has installed "+version, 60*time.Second, func(ctx context.Context) error {
		state, err := s.Exec(ctx, "dpkg-query", "-W", "-f", "${Version} ${db:Status-Status}", "nox-mesh-host")
		if err == nil && state != version+" installed" {
			err = fmt.Errorf("dpkg says %q", state)
		}
		return err
	})
}

// sh runs shell commands in the machine.
func (s *site) sh(ctx context.Context, script string) (string, error) {
	out, err := s.Exec(ctx, "sh", "-ec", script)
	return strings.TrimSpace(out), err
}

// cut is a power cut and the power's return.
func (s *site) cut(ctx context.Context) error {
	if err := s.Kill(); err != nil {
		return err
	}
	return s.Boot(ctx)
}

// cutWhen waits for a moment, looking every millisecond, and cuts the power.
func (s *site) cutWhen(ctx context.Context, what string, now func() bool) error {
	ctx, cancel := context.WithTimeout(ctx, 60*time.Second)
	defer cancel()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !now() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("%s: waited in vain for the moment %s", s.name, what)
		}
	}
	return s.cut(ctx)
}

// has says whether there is something on the machine's disk.
func (s *site) has(path string) bool {
	there, err := s.Exists(path)
	return err == nil && there
}

// holds says whether a file on the machine's disk has such text in it.
func (s *site) holds(path, text string) bool {
	raw, err := s.ReadFile(path)
	return err == nil && strings.Contains(string(raw), text)
}

// relay makes the mesh reachable at this end of the machine's own cable, and
// gives the address for the machine.
func (s *site) relay(broker string) (string, error) {
	u, err := url.Parse(broker)
	if err != nil {
		return "", err
	}
	l, err := net.Listen("tcp", net.JoinHostPort(s.Gateway(), "0"))
	if err != nil {
		return "", err
	}
	s.lab.atEnd(func() { _ = l.Close() })
	go func() {
		for {
			from, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer from.Close()
				to, err := net.Dial("tcp", u.Host)
				if err != nil {
					return
				}
				defer to.Close()
				go func() { _, _ = io.Copy(to, from); _ = to.Close() }()
				_, _ = io.Copy(from, to)
			}()
		}
	}()
	_, port, err := net.SplitHostPort(l.Addr().String())
	return u.Scheme + "://" + net.JoinHostPort(MeshName, port), err
}
