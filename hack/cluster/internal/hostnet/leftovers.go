package hostnet

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"

	"github.com/sandbox-broker/sandbox-broker/hack/cluster/internal/plan"
)

// proxyTable is the nftables table of kube-proxy, in both families.
const proxyTable = "kube-proxy"

// routerChains and routerSets are how kube-router begins the names of its
// chains in the filter table and of its sets ("inet6:" goes before for IPv6).
var (
	routerChains = []string{"KUBE-ROUTER-", "KUBE-POD-FW-", "KUBE-NWPLCY-"}
	routerSets   = []string{"KUBE-SRC-", "KUBE-DST-"}
)

// RemoveFirewall removes our own table and what kube-proxy and kube-router left.
func RemoveFirewall(ctx context.Context) error {
	var problems []error
	now, err := tables(ctx)
	problems = append(problems, err)
	for _, t := range []string{"inet " + plan.FirewallTable, "ip " + proxyTable, "ip6 " + proxyTable} {
		if slices.Contains(now, t) {
			problems = append(problems, run(ctx, "", "nft", append([]string{"delete", "table"}, strings.Fields(t)...)...))
		}
	}
	for _, iptables := range []string{"iptables", "ip6tables"} {
		problems = append(problems, removeChains(ctx, iptables))
	}
	return errors.Join(append(problems, removeSets(ctx))...)
}

// ForeignFirewall tells whether another Kubernetes has rules on this machine.
// It is only asked while no cluster of ours is there.
func ForeignFirewall(ctx context.Context) (string, error) {
	now, err := tables(ctx)
	if err != nil {
		return "", err
	}
	for _, t := range []string{"ip " + proxyTable, "ip6 " + proxyTable} {
		if slices.Contains(now, t) {
			return "nftables table " + t, nil
		}
	}
	if !slices.Contains(now, "ip filter") {
		return "", nil
	}
	saved, err := output(ctx, "", "iptables-save", "-t", "filter")
	if err != nil {
		return "", err
	}
	if doomed := routerCleanup(saved); doomed != "" {
		return "kube-router's iptables chains", nil
	}
	return "", nil
}

// tables lists the nftables tables as "family name".
func tables(ctx context.Context) ([]string, error) {
	if _, err := exec.LookPath("nft"); err != nil {
		return nil, nil
	}
	text, err := output(ctx, "", "nft", "list", "tables")
	if err != nil {
		return nil, err
	}
	var all []string
	for line := range strings.Lines(text) {
		if t, ok := strings.CutPrefix(strings.TrimSpace(line), "table "); ok {
			all = append(all, t)
		}
	}
	return all, nil
}

// removeEmptyTable deletes the table if no chain of it holds a rule.
func removeEmptyTable(ctx context.Context, table string) error {
	args := append([]string{"list", "table"}, strings.Fields(table)...)
	text, err := output(ctx, "", "nft", args...)
	if err != nil {
		return err
	}
	if !emptyTable(text) {
		return nil
	}
	args[0] = "delete"
	return run(ctx, "", "nft", args...)
}

// emptyTable reads nft's listing: in an empty table only the lines that open a
// table or chain, declare its hook, and close it again are left.
func emptyTable(text string) bool {
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		declares := line == "" || line == "}" || strings.HasPrefix(line, "#") || strings.HasPrefix(line, "type ") ||
			strings.HasPrefix(line, "table ") || strings.HasPrefix(line, "chain ")
		if !declares {
			return false
		}
	}
	return true
}

// removeChains removes kube-router's chains from the filter table, and the
// rules that jump to them, as one transaction.
func removeChains(ctx context.Context, iptables string) error {
	if _, err := exec.LookPath(iptables + "-save"); err != nil {
		return nil
	}
	saved, err := output(ctx, "", iptables+"-save", "-t", "filter")
	if err != nil {
		return err
	}
	cleanup := routerCleanup(saved)
	if cleanup == "" {
		return nil
	}
	return run(ctx, cleanup, iptables+"-restore", "--noflush")
}

// routerCleanup turns the output of iptables-save into input of
// iptables-restore that removes kube-router's part, or "" if there is none.
func routerCleanup(saved string) string {
	var declare, jumps, remove strings.Builder
	for line := range strings.Lines(saved) {
		line = strings.TrimSpace(line)
		words := strings.Fields(line)
		if len(words) < 2 {
			continue
		}
		if chain, ok := strings.CutPrefix(words[0], ":"); ok && isRouters(chain) {
			// Declaring a chain flushes it, so that no rule of another chain of
			// kube-router holds it in use.
			fmt.Fprintf(&declare, ":%s - [0:0]\n", chain)
			fmt.Fprintf(&remove, "-X %s\n", chain)
		}
		if words[0] == "-A" && !isRouters(words[1]) && jumpsToRouter(words) {
			jumps.WriteString("-D" + strings.TrimPrefix(line, "-A") + "\n")
		}
	}
	if declare.Len() == 0 && jumps.Len() == 0 {
		return ""
	}
	return "*filter\n" + declare.String() + jumps.String() + remove.String() + "COMMIT\n"
}

// jumpsToRouter tells the rules that kube-router adds to the kernel's own chains.
func jumpsToRouter(words []string) bool {
	for n, w := range words[:len(words)-1] {
		if (w == "-j" || w == "-g") && isRouters(words[n+1]) {
			return true
		}
	}
	return false
}

func isRouters(chain string) bool { return hasAnyPrefix(chain, routerChains) }

func hasAnyPrefix(s string, prefixes []string) bool {
	return slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(s, p) })
}

// removeSets destroys kube-router's IP sets.
func removeSets(ctx context.Context) error {
	if _, err := exec.LookPath("ipset"); err != nil {
		return nil
	}
	names, err := output(ctx, "", "ipset", "list", "-name")
	if err != nil {
		return err
	}
	var destroy strings.Builder
	for name := range strings.Lines(names) {
		name = strings.TrimSpace(name)
		if hasAnyPrefix(strings.TrimPrefix(name, "inet6:"), routerSets) {
			fmt.Fprintf(&destroy, "destroy %s\n", name)
		}
	}
	if destroy.Len() == 0 {
		return nil
	}
	return run(ctx, destroy.String(), "ipset", "restore")
}
