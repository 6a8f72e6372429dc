// Package hostnet makes and removes what the cluster has in the machine's
// network: a bridge that carries the node's address, two network namespaces
// that play the internet, a firewall table that keeps pods from leaving the
// machine, and a few kernel settings. It also removes the chains and sets that
// kube-proxy and kube-router leave behind.
//
// Making is idempotent: what is there is brought into shape, not made again.
package hostnet

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"syscall"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"github.com/sandbox-broker/sandbox-broker/hack/cluster/internal/plan"
)

// netnsDir is where named network namespaces live; the tool ip uses it, too.
const netnsDir = "/run/netns"

// NamespacePath is the file that names a network namespace.
func NamespacePath(name string) string { return filepath.Join(netnsDir, name) }

// Owner returns the alias of the bridge, which says whose cluster made it;
// exists is false when there is no bridge.
func Owner() (owner string, exists bool, err error) {
	link, err := netlink.LinkByName(plan.Bridge)
	if notFound(err) {
		return "", false, nil
	}
	if err != nil {
		return "", false, fmt.Errorf("looking for %s: %w", plan.Bridge, err)
	}
	return link.Attrs().Alias, true, nil
}

// EnsureBridge makes the bridge with the node's addresses. owner becomes its
// alias. Services get a route to it, so that a packet to a Service without
// endpoints stays here instead of following the machine's default route.
func EnsureBridge(owner string, fam plan.Families) error {
	host, err := netlink.NewHandle()
	if err != nil {
		return err
	}
	defer host.Close()
	link, err := ensureLink(host, &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: plan.Bridge}})
	if err != nil {
		return err
	}
	if err := host.LinkSetAlias(link, owner); err != nil {
		return fmt.Errorf("marking %s as ours: %w", plan.Bridge, err)
	}
	if err := configure(host, link, withPrefixes(fam, plan.NodeIP, plan.NodeNet)); err != nil {
		return err
	}
	for _, network := range fam.Of(plan.ServiceNet) {
		if err := ensureRoute(host, network, nil, link); err != nil {
			return err
		}
	}
	return nil
}

// EnsureInternet makes one internet namespace and its cable to the host.
func EnsureInternet(i plan.Internet, fam plan.Families) error {
	if err := ensureNamespace(i.Name); err != nil {
		return fmt.Errorf("making the network namespace %s: %w", i.Name, err)
	}
	ns, err := netns.GetFromName(i.Name)
	if err != nil {
		return fmt.Errorf("opening the network namespace %s: %w", i.Name, err)
	}
	defer ns.Close()
	host, err := netlink.NewHandle()
	if err != nil {
		return err
	}
	defer host.Close()
	inside, err := netlink.NewHandleAt(ns)
	if err != nil {
		return err
	}
	defer inside.Close()
	if err := ensureCable(host, inside, i, ns); err != nil {
		return fmt.Errorf("connecting %s: %w", i.Name, err)
	}
	return configureInternet(host, inside, i, fam)
}

// ensureCable makes a pair of links unless both ends are where they belong.
func ensureCable(host, inside *netlink.Handle, i plan.Internet, ns netns.NsHandle) error {
	hostEnd, err := host.LinkByName(i.HostLink)
	if err != nil && !notFound(err) {
		return err
	}
	if err == nil {
		if _, err := inside.LinkByName(i.PeerLink); err == nil {
			return nil
		}
		// The other end went with an older namespace.
		if err := host.LinkDel(hostEnd); err != nil {
			return err
		}
	}
	return host.LinkAdd(&netlink.Veth{
		LinkAttrs: netlink.LinkAttrs{Name: i.HostLink},
		PeerName:  i.PeerLink, PeerNamespace: netlink.NsFd(ns),
	})
}

func configureInternet(host, inside *netlink.Handle, i plan.Internet, fam plan.Families) error {
	hostEnd, err := host.LinkByName(i.HostLink)
	if err != nil {
		return err
	}
	if err := configure(host, hostEnd, withPrefixes(fam, i.Gateway, i.Net)); err != nil {
		return err
	}
	loopback, err := inside.LinkByName("lo")
	if err != nil {
		return err
	}
	if err := inside.LinkSetUp(loopback); err != nil {
		return err
	}
	peer, err := inside.LinkByName(i.PeerLink)
	if err != nil {
		return err
	}
	if err := configure(inside, peer, withPrefixes(fam, i.Address, i.Net)); err != nil {
		return err
	}
	everywhere := plan.Range{V4: "0.0.0.0/0", V6: "::/0"}
	for n, gateway := range fam.Of(i.Gateway) {
		if err := ensureRoute(inside, fam.Of(everywhere)[n], net.ParseIP(gateway), peer); err != nil {
			return err
		}
	}
	return nil
}

// withPrefixes joins addresses with the prefix lengths of their networks.
func withPrefixes(fam plan.Families, address, network plan.Range) []*net.IPNet {
	var out []*net.IPNet
	for n, a := range fam.Of(address) {
		_, network, err := net.ParseCIDR(fam.Of(network)[n])
		if err != nil {
			panic("the address plan holds a bad network: " + err.Error())
		}
		out = append(out, &net.IPNet{IP: net.ParseIP(a), Mask: network.Mask})
	}
	return out
}

func ensureLink(h *netlink.Handle, want netlink.Link) (netlink.Link, error) {
	name := want.Attrs().Name
	if err := h.LinkAdd(want); err != nil && !errors.Is(err, syscall.EEXIST) {
		return nil, fmt.Errorf("making the link %s: %w", name, err)
	}
	return h.LinkByName(name)
}

// configure gives the link its addresses and brings it up.
func configure(h *netlink.Handle, link netlink.Link, addresses []*net.IPNet) error {
	name := link.Attrs().Name
	for _, a := range addresses {
		addr := &netlink.Addr{IPNet: a}
		if a.IP.To4() == nil {
			// Nobody else can have it here: skip the second of waiting for
			// duplicates, during which nothing may bind to it.
			addr.Flags = syscall.IFA_F_NODAD
		}
		if err := h.AddrReplace(link, addr); err != nil {
			return fmt.Errorf("giving %s the address %s: %w", name, a, err)
		}
	}
	if err := h.LinkSetUp(link); err != nil {
		return fmt.Errorf("bringing up %s: %w", name, err)
	}
	return nil
}

func ensureRoute(h *netlink.Handle, network string, via net.IP, link netlink.Link) error {
	_, dst, err := net.ParseCIDR(network)
	if err != nil {
		return err
	}
	route := &netlink.Route{Dst: dst, Gw: via, LinkIndex: link.Attrs().Index}
	if err := h.RouteReplace(route); err != nil {
		return fmt.Errorf("routing %s: %w", network, err)
	}
	return nil
}

// ensureNamespace makes a named network namespace. A file that is no longer a
// namespace, as after a reboot without a clean run folder, is replaced.
func ensureNamespace(name string) error {
	if ns, err := netns.GetFromName(name); err == nil {
		usable := isNamespace(NamespacePath(name))
		ns.Close()
		if usable {
			return nil
		}
	}
	if err := RemoveNamespace(name); err != nil {
		return err
	}
	// Making one moves the calling thread into it: do it on a thread that is
	// thrown away, by ending its goroutine while locked to it.
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		ns, err := netns.NewNamed(name)
		if err == nil {
			ns.Close()
		}
		result <- err
	}()
	return <-result
}

// nsfsMagic is the kernel's name for the file system that namespaces are on.
const nsfsMagic = 0x6e736673

func isNamespace(path string) bool {
	var fs syscall.Statfs_t
	return syscall.Statfs(path, &fs) == nil && fs.Type == nsfsMagic
}

// RemoveNamespace removes a named network namespace, mounted or not.
func RemoveNamespace(name string) error {
	path := NamespacePath(name)
	for isNamespace(path) {
		if err := syscall.Unmount(path, syscall.MNT_DETACH); err != nil {
			return fmt.Errorf("unmounting %s: %w", path, err)
		}
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// RemoveLinks removes the bridge, the internet namespaces and their cables.
func RemoveLinks() error {
	var problems []error
	names := []string{plan.Bridge}
	for _, i := range plan.Internets {
		problems = append(problems, RemoveNamespace(i.Name))
		names = append(names, i.HostLink)
	}
	for _, name := range names {
		problems = append(problems, removeLink(name))
	}
	return errors.Join(problems...)
}

func removeLink(name string) error {
	link, err := netlink.LinkByName(name)
	if notFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := netlink.LinkDel(link); err != nil && !errors.Is(err, syscall.ENODEV) {
		return fmt.Errorf("removing the link %s: %w", name, err)
	}
	return nil
}

func notFound(err error) bool {
	var missing netlink.LinkNotFoundError
	return errors.As(err, &missing)
}
