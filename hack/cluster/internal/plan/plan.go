// Package plan holds every fixed choice of the local cluster in one place:
// addresses, names, ports and folders. Nothing else in the program spells out
// an address or a path of its own.
//
// The addresses are private or documentation ranges. Nothing of the cluster
// listens on an interface of the machine itself: servers bind to loopback or to
// the bridge that the cluster makes.
package plan

import "strings"

// Interfaces and network namespaces that the cluster makes. They share a prefix
// so that anyone can see whose they are.
const (
	// Bridge carries the node's address.
	Bridge = "sbx-br0"
	// FirewallTable is the nftables table that keeps pods on this machine.
	FirewallTable = "sandbox-broker-cluster"
	// NodeName is the one node.
	NodeName = "sandbox-node"
	// CgroupRoot holds every process of the cluster, so that each can be
	// recognised as ours without looking at its name.
	CgroupRoot = "sandbox-broker-cluster"
)

// RunscRoot is the one folder outside the state folder. runsc puts a socket with
// a name of 75 letters into it, and the kernel takes paths of 107: below most
// state folders it would not fit, and runsc would scatter it over the machine.
const RunscRoot = "/run/sbx-cluster"

// MaxStateDir is the longest path of a state folder below which the sockets of
// kubelet and containerd fit into the same limit.
const MaxStateDir = 107 - len("/kubelet/device-plugins/kubelet.sock")

// Namespaces and objects in Kubernetes, as the manifests in deploy/ name them.
const (
	BrokerNamespace       = "sandbox-broker"
	BrokerName            = "sandbox-broker"
	BrokerTLSSecret       = "sandbox-broker-tls"
	BrokerHandleKeySecret = "sandbox-broker-handle-key"
	BrokerPort            = 8443
	TokenAudience         = "sandbox-broker"
	SandboxNamespace      = "sandboxes"
	WarmPool              = "python-gvisor"
	ControllerNamespace   = "agent-sandbox-system"
	RuntimeClass          = "gvisor"
	RuntimeHandler        = "runsc"
	// The two callers that tests act as; each namespace is one tenant.
	AgentNamespace = "agents"
	OtherNamespace = "others"
	AgentAccount   = "agent"
)

// Images that the cluster builds and imports.
const (
	SandboxImage = "localhost/sandbox-broker/sandbox:dev"
	RunnerImage  = "localhost/sandbox-broker/runner:dev"
	BrokerImage  = "localhost/sandbox-broker/broker:dev"
	PauseImage   = "localhost/sandbox-broker/pause:dev"
	// PeerImage is the sandbox image with agent-sandbox's own daemon in it: what
	// the benchmark compares the broker with.
	PeerImage = "localhost/sandbox-broker/sandbox-sandboxd:dev"
	// NonRootUser is who the images run as when the pod does not say.
	NonRootUser = 65532
)

// Ports. All but APIServerPort and KubeletPort, which are on the bridge, are on
// loopback.
const (
	APIServerPort       = 6443
	KubeletPort         = 10250
	EtcdClientPort      = 2379
	EtcdPeerPort        = 2380
	ControllerPort      = 10257
	SchedulerPort       = 10259
	KubeletHealthPort   = 10248
	ProxyHealthPort     = 10256
	ProxyMetricsPort    = 10249
	AgentSandboxMetrics = 18080
	AgentSandboxHealth  = 18081
	InternetHTTPPort    = 80
	InternetDNSPort     = 53
)

// Range is one network in both families. V6 is used where the kernel has IPv6.
type Range struct{ V4, V6 string }

// The cluster's networks, and the addresses taken from them.
var (
	NodeNet    = Range{"10.89.0.0/16", "fd5b:6f78:89::/64"}
	NodeIP     = Range{"10.89.0.1", "fd5b:6f78:89::1"}
	PodNet     = Range{"10.90.0.0/16", "fd5b:6f78:90::/64"}
	ServiceNet = Range{"10.96.0.0/16", "fd5b:6f78:96::/112"}
	// APIServiceIP is the address of the Service kubernetes.default: always the
	// first of the range.
	APIServiceIP = Range{"10.96.0.1", "fd5b:6f78:96::1"}
)

// Internet is a network namespace that plays a host on the internet.
type Internet struct {
	// Name is of the namespace and, as <Name>.internet.test, in its DNS.
	Name string
	// HostLink and PeerLink are the ends of the cable: ours, and the one inside.
	HostLink, PeerLink string
	// Net is the network between; Gateway our end of it, Address the inner.
	Net, Gateway, Address Range
	// DNS says that a name server listens there, too.
	DNS bool
}

// Internets are the two of them. Their ranges are set aside for documentation,
// so no real host should be meant. Yet some closed networks put their mirrors
// there, so the networks are as small as can be, and the preflight makes sure
// that none of the hosts that a build needs is hidden by them.
var Internets = []Internet{
	{
		Name: "sbx-internet-a", HostLink: "sbx-inet-a", PeerLink: "eth0",
		Net:     Range{"198.51.100.8/29", "2001:db8:a::/64"},
		Gateway: Range{"198.51.100.9", "2001:db8:a::1"},
		Address: Range{"198.51.100.10", "2001:db8:a::10"},
		DNS:     true,
	},
	{
		Name: "sbx-internet-b", HostLink: "sbx-inet-b", PeerLink: "eth0",
		Net:     Range{"203.0.113.8/29", "2001:db8:b::/64"},
		Gateway: Range{"203.0.113.9", "2001:db8:b::1"},
		Address: Range{"203.0.113.10", "2001:db8:b::10"},
	},
}

// InternetDomain is what the DNS of the internet namespaces answers for.
const InternetDomain = "internet.test"

// Host is the internet namespace's name in DNS, such as a.internet.test.
func (i Internet) Host() string {
	return strings.TrimPrefix(i.Name, "sbx-internet-") + "." + InternetDomain
}

// Families says which address families the cluster uses. IPv4 always; V6 where
// the kernel has it.
type Families struct{ V6 bool }

// Of lists r's members in the families, IPv4 first, as Kubernetes wants them.
func (f Families) Of(r Range) []string {
	if f.V6 {
		return []string{r.V4, r.V6}
	}
	return []string{r.V4}
}

// List is Of in the comma-separated form that command lines take.
func (f Families) List(r Range) string { return strings.Join(f.Of(r), ",") }

// Networks lists every network of the cluster, for finding clashes with the
// machine's own.
func (f Families) Networks() []string {
	ranges := []Range{NodeNet, PodNet, ServiceNet}
	for _, i := range Internets {
		ranges = append(ranges, i.Net)
	}
	var all []string
	for _, r := range ranges {
		all = append(all, f.Of(r)...)
	}
	return all
}
