package preflight

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
)

// Package is a Debian package that the cluster needs.
type Package struct {
	Name string
	// Why is shown to who has to install it.
	Why string
}

// Needed are the Debian packages of the cluster. Everything else is built from
// source.
var Needed = []Package{
	{"runc", "runs the broker's pod"},
	{"containernetworking-plugins", "connects pods to the network"},
	{"iproute2", "shows the network; for you rather than for the cluster"},
	{"iptables", "kube-router's firewall"},
	{"ipset", "kube-router's address lists"},
	{"nftables", "kube-proxy's Services and the cluster's own guard"},
	{"conntrack", "kube-proxy drops stale connections with it"},
	{"mount", "kubelet mounts volumes with it"},
	{"util-linux", "nsenter starts servers in a network namespace"},
	{"mmdebstrap", "makes the sandbox image's file system"},
	{"debian-archive-keyring", "checks the packages in the sandbox image"},
	{"ca-certificates", "the Go module proxy speaks TLS"},
}

// installed is what dpkg calls a package that is wholly there.
const installed = "install ok installed"

// Missing returns the needed packages that dpkg does not know as installed.
func Missing(ctx context.Context, needed []Package) ([]Package, error) {
	if _, err := exec.LookPath("dpkg-query"); err != nil {
		return nil, fmt.Errorf("this machine has no dpkg: the cluster's packages come from Debian or a system made from it")
	}
	args := []string{"--show", "--showformat=${Package}\t${Status}\n"}
	for _, p := range needed {
		args = append(args, p.Name)
	}
	// It fails when it does not know one of the names; the list says which.
	out, err := exec.CommandContext(ctx, "dpkg-query", args...).Output()
	if err != nil && len(out) == 0 && ctx.Err() != nil {
		return nil, ctx.Err()
	}
	return missingFrom(needed, out), nil
}

func missingFrom(needed []Package, dpkg []byte) []Package {
	have := map[string]bool{}
	for line := range bytes.Lines(dpkg) {
		name, status, _ := strings.Cut(strings.TrimSpace(string(line)), "\t")
		have[name] = have[name] || status == installed
	}
	return slices.DeleteFunc(slices.Clone(needed), func(p Package) bool { return have[p.Name] })
}

// InstallCommands are what a person would type to install the packages.
func InstallCommands(packages []Package) []string {
	names := make([]string, len(packages))
	for n, p := range packages {
		names[n] = p.Name
	}
	return []string{
		"apt-get update",
		"apt-get install --yes --no-install-recommends " + strings.Join(names, " "),
	}
}

// Install installs the packages. The package lists are fetched first: a fresh
// machine often has none, or old ones that name files long gone.
func Install(ctx context.Context, packages []Package) error {
	for _, line := range InstallCommands(packages) {
		words := strings.Fields(line)
		// Another installation may run; wait for it instead of failing.
		args := append([]string{"-o", "DPkg::Lock::Timeout=300"}, words[1:]...)
		cmd := exec.CommandContext(ctx, words[0], args...)
		cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w\n%s", line, err, bytes.TrimSpace(out))
		}
	}
	return nil
}

// MissingError says which packages are missing and how to get them.
func MissingError(missing []Package) error {
	var found Problems
	for _, p := range missing {
		found = append(found, Problem{"Debian package " + p.Name + " is not installed", p.Why})
	}
	return fmt.Errorf("%w\nTo install them:\n  %s", found, strings.Join(InstallCommands(missing), "\n  "))
}
