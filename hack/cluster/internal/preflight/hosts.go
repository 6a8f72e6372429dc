package preflight

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"os/exec"
	"strings"
	"time"
)

// lookupWait bounds all name lookups together. A name that cannot be looked up
// is no problem here: perhaps everything is in the caches.
const lookupWait = 5 * time.Second

// HiddenHosts finds hosts that a build needs (Go's module proxy, Debian's
// packages) and that the cluster's networks would hide from the whole machine.
func HiddenHosts(ctx context.Context, networks []string) Problems {
	ctx, cancel := context.WithTimeout(ctx, lookupWait)
	defer cancel()
	var found Problems
	for _, host := range buildHosts(ctx) {
		addresses, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
		if err != nil {
			continue
		}
		for _, hidden := range within(addresses, networks) {
			found = append(found, Problem{
				What: fmt.Sprintf("%s is at %s", host, hidden),
				Why:  "the cluster uses this network for itself; packages could not be fetched while it is up",
			})
		}
	}
	return found
}

func within(addresses []netip.Addr, networks []string) []netip.Addr {
	var inside []netip.Addr
	for _, a := range addresses {
		for _, n := range networks {
			if netip.MustParsePrefix(n).Contains(a.Unmap()) {
				inside = append(inside, a)
			}
		}
	}
	return inside
}

// buildHosts asks go and apt where they fetch from.
func buildHosts(ctx context.Context) []string {
	var lists strings.Builder
	for _, command := range [][]string{
		{"go", "env", "GOPROXY"},
		{"apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"},
	} {
		out, err := exec.CommandContext(ctx, command[0], command[1:]...).Output()
		if err == nil {
			lists.Write(out)
		}
	}
	return hostsOf(lists.String())
}

// hostsOf picks the hosts, each once, out of a list of URLs.
func hostsOf(list string) []string {
	var hosts []string
	seen := map[string]bool{}
	for _, word := range strings.FieldsFunc(list, func(r rune) bool { return strings.ContainsRune(",| \t\n", r) }) {
		u, err := url.Parse(word)
		if err != nil || u.Hostname() == "" || seen[u.Hostname()] {
			continue
		}
		seen[u.Hostname()] = true
		hosts = append(hosts, u.Hostname())
	}
	return hosts
}
