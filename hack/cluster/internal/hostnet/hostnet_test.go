package hostnet

import (
	"net"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sandbox-broker/sandbox-broker/hack/cluster/internal/plan"
)

func TestGuardKeepsEveryClusterNetworkInside(t *testing.T) {
	v4 := guardRules(plan.Families{})
	require.NotContains(t, v4, "ip6")
	require.Contains(t, v4, "ip saddr { 10.89.0.0/16, 10.90.0.0/16, 198.51.100.8/29, 203.0.113.8/29 } "+
		"ip daddr != { 10.89.0.0/16, 10.90.0.0/16, 198.51.100.8/29, 203.0.113.8/29 } drop")
	both := guardRules(plan.Families{V6: true})
	require.Contains(t, both, "ip6 saddr { fd5b:6f78:89::/64, fd5b:6f78:90::/64, 2001:db8:a::/64, 2001:db8:b::/64 } ip6 daddr != {")
	require.Less(t, strings.Index(both, "delete table"), strings.Index(both, "chain forward"))
}

func TestRouterCleanupTakesOnlyKubeRoutersPart(t *testing.T) {
	const saved = `# Generated
*filter
:INPUT ACCEPT [10:200]
:FORWARD DROP [0:0]
:OUTPUT ACCEPT [0:0]
:DOCKER - [0:0]
:KUBE-ROUTER-INPUT - [0:0]
:KUBE-POD-FW-ABC - [0:0]
:KUBE-NWPLCY-DEFAULT - [0:0]
-A INPUT -m comment --comment "kube-router netpol - ABC" -j KUBE-ROUTER-INPUT
-A INPUT -p tcp --dport 22 -j ACCEPT
-A FORWARD -j DOCKER
-A KUBE-ROUTER-INPUT -d 10.90.0.5/32 -j KUBE-POD-FW-ABC
-A KUBE-POD-FW-ABC -j KUBE-NWPLCY-DEFAULT
COMMIT
`
	require.Equal(t, `*filter
:KUBE-ROUTER-INPUT - [0:0]
:KUBE-POD-FW-ABC - [0:0]
:KUBE-NWPLCY-DEFAULT - [0:0]
-D INPUT -m comment --comment "kube-router netpol - ABC" -j KUBE-ROUTER-INPUT
-X KUBE-ROUTER-INPUT
-X KUBE-POD-FW-ABC
-X KUBE-NWPLCY-DEFAULT
COMMIT
`, routerCleanup(saved))
	require.Empty(t, routerCleanup("*filter\n:INPUT ACCEPT [0:0]\n-A INPUT -p tcp -j ACCEPT\nCOMMIT\n"))
	require.Empty(t, routerCleanup(""))
}

func TestEmptyTable(t *testing.T) {
	for name, c := range map[string]struct {
		text string
		want bool
	}{
		"chains only": {"table ip filter {\n\tchain INPUT {\n\t\ttype filter hook input priority filter; policy accept;\n\t}\n}\n", true},
		"a warning":   {"# Warning: managed by iptables-nft\ntable ip filter {\n}\n", true},
		"a rule":      {"table ip filter {\n\tchain INPUT {\n\t\ttcp dport 22 accept\n\t}\n}\n", false},
		"a set":       {"table inet x {\n\tset s {\n\t\ttype ipv4_addr\n\t}\n}\n", false},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, c.want, emptyTable(c.text)) })
	}
}

func TestOverlaps(t *testing.T) {
	parse := func(s string) *net.IPNet {
		ip, n, err := net.ParseCIDR(s)
		require.NoError(t, err)
		return &net.IPNet{IP: ip, Mask: n.Mask}
	}
	mine := []string{"10.90.0.0/16", "2001:db8:a::/64"}
	for theirs, want := range map[string]int{
		"10.90.3.4/24":      1, // inside ours
		"10.0.0.0/8":        1, // around ours
		"10.91.0.1/16":      0,
		"2001:db8:a::7/128": 1,
		"fd00::1/64":        0,
	} {
		require.Len(t, overlaps(mine, []*net.IPNet{parse(theirs)}, "eth0"), want, theirs)
	}
}

func TestOurLinks(t *testing.T) {
	for name, want := range map[string]bool{
		plan.Bridge: true, "sbx-inet-a": true, "veth1234": true, "eth0": false, "docker0": false,
	} {
		require.Equal(t, want, ours(name), name)
	}
}
