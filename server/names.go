package server

import (
	"cmp"
	"crypto/x509"
	"fmt"
	"net"
	"os"
	"regexp"
	"slices"
)

// serverNames are what the server may be called: what it was told first, then what
// it finds out.
func serverNames(hosts []string, listen string) []string {
	names := slices.Clone(hosts)
	if ip := net.ParseIP(listen); ip == nil || !ip.IsUnspecified() {
		names = append(names, listen)
	}
	names = append(names, "localhost", "127.0.0.1", "::1")
	if name, err := os.Hostname(); err == nil {
		names = append(names, name)
	}
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return names // those above will do
	}
	for _, a := range addrs {
		if n, ok := a.(*net.IPNet); ok && !n.IP.IsLinkLocalUnicast() {
			names = append(names, n.IP.String())
		}
	}
	return names
}

var hostForm = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]{0,252}[A-Za-z0-9])?$`)

// checkHosts refuses what can be in no certificate.
func checkHosts(hosts []string) error {
	for _, h := range hosts {
		if _, _, err := net.SplitHostPort(h); err == nil {
			return fmt.Errorf("--host %s: give the name or address alone, with no port", h)
		}
		if net.ParseIP(h) == nil && !hostForm.MatchString(h) {
			return fmt.Errorf("--host %q is neither a host name nor an IP address", h)
		}
	}
	return nil
}

// reachable is the host under which other machines find the server, as far as
// it knows: the first it was told, or an address of this machine.
func reachable(hosts []string, listen string) string {
	if len(hosts) > 0 {
		return hosts[0]
	}
	if ip := net.ParseIP(listen); ip == nil || !ip.IsUnspecified() {
		return listen
	}
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return "127.0.0.1"
	}
	best := ""
	for _, a := range addrs {
		if n, ok := a.(*net.IPNet); ok && n.IP.IsGlobalUnicast() && (best == "" || net.ParseIP(best).To4() == nil && n.IP.To4() != nil) {
			best = n.IP.String()
		}
	}
	return cmp.Or(best, "127.0.0.1")
}

func namesOf(c *x509.Certificate) []string {
	names := slices.Clone(c.DNSNames)
	for _, ip := range c.IPAddresses {
		names = append(names, ip.String())
	}
	return unite(names, nil)
}

// unite gives the names in two lists, sorted, each once.
func unite(a, b []string) []string {
	out := slices.Concat(a, b)
	for i, n := range out {
		if ip := net.ParseIP(n); ip != nil {
			out[i] = ip.String() // one spelling
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}
