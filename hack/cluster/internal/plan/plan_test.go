package plan

import (
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestNetworksDoNotOverlap(t *testing.T) {
	networks := Families{V6: true}.Networks()
	for n, a := range networks {
		for _, b := range networks[n+1:] {
			require.False(t, netip.MustParsePrefix(a).Overlaps(netip.MustParsePrefix(b)), "%s and %s", a, b)
		}
	}
}

func TestAddressesLieInTheirNetworks(t *testing.T) {
	inside := []struct{ address, network Range }{{NodeIP, NodeNet}, {APIServiceIP, ServiceNet}}
	for _, i := range Internets {
		inside = append(inside, []struct{ address, network Range }{{i.Address, i.Net}, {i.Gateway, i.Net}}...)
		require.LessOrEqual(t, len(i.HostLink), 15, "the kernel's limit for names of links")
	}
	fam := Families{V6: true}
	for _, c := range inside {
		for n, a := range fam.Of(c.address) {
			require.True(t, netip.MustParsePrefix(fam.Of(c.network)[n]).Contains(netip.MustParseAddr(a)), "%s", a)
		}
	}
}

func TestFamilies(t *testing.T) {
	require.Equal(t, "10.89.0.1", Families{}.List(NodeIP))
	require.Equal(t, "10.89.0.1,fd5b:6f78:89::1", Families{V6: true}.List(NodeIP))
	require.Equal(t, "a.internet.test", Internets[0].Host())
}

func TestFindDirs(t *testing.T) {
	root := t.TempDir()
	deep := filepath.Join(root, "hack", "cluster")
	require.NoError(t, os.MkdirAll(deep, 0o755))
	_, err := FindDirs(deep)
	require.ErrorContains(t, err, "is not inside a checkout")

	require.NoError(t, os.WriteFile(filepath.Join(deep, "go.mod"), []byte("module "+modulePath+"/hack/cluster\n"), 0o644))
	require.NoError(t, os.WriteFile(filepath.Join(root, "go.mod"), []byte("module "+modulePath+"\n\ngo 1.26.0\n"), 0o644))
	d, err := FindDirs(deep)
	require.NoError(t, err)
	require.Equal(t, root, d.Project)
	require.Equal(t, filepath.Join(root, ".cluster", "run", "containerd.sock"), d.ContainerdSocket())
}
