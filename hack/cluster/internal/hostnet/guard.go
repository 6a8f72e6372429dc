package hostnet

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/sandbox-broker/sandbox-broker/hack/cluster/internal/plan"
)

// EnsureGuard loads the firewall table that keeps the cluster's packets on this
// machine: what comes from a pod or from the played internet is forwarded only
// to another of the cluster's networks. NetworkPolicy decides among those.
func EnsureGuard(ctx context.Context, fam plan.Families) error {
	return run(ctx, guardRules(fam), "nft", "-f", "-")
}

// guardRules replaces the table as one transaction: the first line makes sure
// that there is one to delete.
func guardRules(fam plan.Families) string {
	var b strings.Builder
	fmt.Fprintf(&b, "table inet %[1]s {}\ndelete table inet %[1]s\ntable inet %[1]s {\n", plan.FirewallTable)
	b.WriteString("\tchain forward {\n\t\ttype filter hook forward priority -10; policy accept;\n")
	families := []struct {
		keyword string
		pick    func(plan.Range) string
	}{{"ip", func(r plan.Range) string { return r.V4 }}}
	if fam.V6 {
		families = append(families, struct {
			keyword string
			pick    func(plan.Range) string
		}{"ip6", func(r plan.Range) string { return r.V6 }})
	}
	for _, f := range families {
		ours := []string{f.pick(plan.NodeNet), f.pick(plan.PodNet)}
		for _, i := range plan.Internets {
			ours = append(ours, f.pick(i.Net))
		}
		set := strings.Join(ours, ", ")
		fmt.Fprintf(&b, "\t\t%[1]s saddr { %[2]s } %[1]s daddr != { %[2]s } drop\n", f.keyword, set)
	}
	b.WriteString("\t}\n}\n")
	return b.String()
}

// Clash is a network of the machine that the cluster would hide.
type Clash struct{ Ours, Theirs, Link string }

func (c Clash) String() string {
	return fmt.Sprintf("%s of %s overlaps the cluster's %s", c.Theirs, c.Link, c.Ours)
}

// Clashes looks for addresses and routes of other links inside the cluster's
// networks.
func Clashes(fam plan.Families) ([]Clash, error) {
	links, err := netlink.LinkList()
	if err != nil {
		return nil, fmt.Errorf("listing the links: %w", err)
	}
	var found []Clash
	for _, link := range links {
		if ours(link.Attrs().Name) {
			continue
		}
		networks, err := networksOf(link)
		if err != nil {
			return nil, err
		}
		found = append(found, overlaps(fam.Networks(), networks, link.Attrs().Name)...)
	}
	return found, nil
}

// ours tells the cluster's links: those that we name, and pods' cables, which
// the CNI plugin names and which only carry the cluster's addresses.
func ours(name string) bool {
	if name == plan.Bridge || strings.HasPrefix(name, "veth") {
		return true
	}
	for _, i := range plan.Internets {
		if name == i.HostLink {
			return true
		}
	}
	return false
}

func networksOf(link netlink.Link) ([]*net.IPNet, error) {
	name := link.Attrs().Name
	addresses, err := netlink.AddrList(link, netlink.FAMILY_ALL)
	if err != nil {
		return nil, fmt.Errorf("listing the addresses of %s: %w", name, err)
	}
	var networks []*net.IPNet
	for _, a := range addresses {
		networks = append(networks, a.IPNet)
	}
	routes, err := netlink.RouteList(link, netlink.FAMILY_ALL)
	if err != nil {
		return nil, fmt.Errorf("listing the routes of %s: %w", name, err)
	}
	for _, r := range routes {
		if r.Dst != nil && !isDefault(r.Dst) {
			networks = append(networks, r.Dst)
		}
	}
	return networks, nil
}

func isDefault(n *net.IPNet) bool {
	ones, _ := n.Mask.Size()
	return ones == 0
}

func overlaps(mine []string, theirs []*net.IPNet, link string) []Clash {
	var found []Clash
	for _, m := range mine {
		_, network, err := net.ParseCIDR(m)
		if err != nil {
			panic("the address plan holds a bad network: " + err.Error())
		}
		for _, t := range theirs {
			if network.Contains(t.IP) || t.Contains(network.IP) {
				found = append(found, Clash{Ours: m, Theirs: t.String(), Link: link})
			}
		}
	}
	return found
}

// run starts a command of the machine with input and returns its complaint.
func run(ctx context.Context, input, name string, args ...string) error {
	_, err := output(ctx, input, name, args...)
	return err
}

func output(ctx context.Context, input, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stdin = strings.NewReader(input)
	out, err := cmd.Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			return "", fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, strings.TrimSpace(string(exit.Stderr)))
		}
		return "", fmt.Errorf("%s: %w", name, err)
	}
	return string(out), nil
}
