package preflight

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
)

var needed = []Package{{"runc", "runs pods"}, {"ipset", "address lists"}, {"nftables", "Services"}}

func TestMissingFrom(t *testing.T) {
	for name, c := range map[string]struct {
		dpkg string
		want []string
	}{
		"all there":         {"runc\tinstall ok installed\nipset\tinstall ok installed\nnftables\tinstall ok installed\n", nil},
		"one unknown":       {"runc\tinstall ok installed\nnftables\tinstall ok installed\n", []string{"ipset"}},
		"one removed":       {"runc\tdeinstall ok config-files\nipset\tinstall ok installed\nnftables\tinstall ok installed\n", []string{"runc"}},
		"half configured":   {"runc\tinstall ok half-configured\nipset\tinstall ok installed\nnftables\tinstall ok installed\n", []string{"runc"}},
		"two architectures": {"runc\tunknown ok not-installed\nrunc\tinstall ok installed\nipset\tinstall ok installed\nnftables\tinstall ok installed\n", nil},
		"dpkg knows none":   {"", []string{"runc", "ipset", "nftables"}},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, p := range missingFrom(needed, []byte(c.dpkg)) {
				got = append(got, p.Name)
			}
			require.Equal(t, c.want, got)
		})
	}
}

func TestMissingErrorSaysWhatWhyAndHow(t *testing.T) {
	err := MissingError(needed[:2])
	var problems Problems
	require.ErrorAs(t, err, &problems)
	require.Len(t, problems, 2)
	require.ErrorContains(t, err, "nothing was changed")
	require.ErrorContains(t, err, "runc is not installed: runs pods")
	require.ErrorContains(t, err, "apt-get install --yes --no-install-recommends runc ipset")
}

func TestHostsOf(t *testing.T) {
	list := "https://proxy.test,direct\nhttp://packages.test/debian/\nhttp://packages.test/debian-security/\noff\n"
	require.Equal(t, []string{"proxy.test", "packages.test"}, hostsOf(list))
}

func TestWithin(t *testing.T) {
	addresses := []netip.Addr{
		netip.MustParseAddr("203.0.113.10"), netip.MustParseAddr("203.0.113.80"), netip.MustParseAddr("::ffff:203.0.113.12"),
	}
	got := within(addresses, []string{"198.51.100.8/29", "203.0.113.8/29", "2001:db8:a::/64"})
	require.Equal(t, []netip.Addr{addresses[0], addresses[2]}, got)
}
