package cluster

import (
	"encoding/json"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pelletier/go-toml/v2"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	"github.com/sandbox-broker/sandbox-broker/hack/cluster/internal/plan"
)

var (
	dirs = plan.Dirs{Project: "/home/a b/project", State: "/home/a b/project/.cluster", Cache: "/home/a b/cache"}
	both = plan.Families{V6: true}
)

// strings of a decoded file, wherever they are in it.
func texts(value any) []string {
	var all []string
	switch v := value.(type) {
	case string:
		all = append(all, v)
	case map[string]any:
		for _, one := range v {
			all = append(all, texts(one)...)
		}
	case []any:
		for _, one := range v {
			all = append(all, texts(one)...)
		}
	}
	return all
}

// allowed are the folders outside the cluster's own that files may name.
var allowed = []string{"/usr/lib/cni", "/" + plan.CgroupRoot, plan.RunscRoot}

func TestConfigurationsNameOnlyTheClustersFolders(t *testing.T) {
	cni, err := cniConfig(dirs, both)
	require.NoError(t, err)
	kubeletYAML, err := kubeletConfig(dirs, dirs.In("pki", "ca.crt"))
	require.NoError(t, err)
	proxyYAML, err := proxyConfig(dirs, both)
	require.NoError(t, err)
	decoded := map[string]any{}
	decode := func(name string, unmarshal func([]byte, any) error, text []byte) {
		var v map[string]any
		require.NoError(t, unmarshal(text, &v), name)
		decoded[name] = v
	}
	decode("containerd", toml.Unmarshal, containerdConfig(dirs))
	decode("runsc", toml.Unmarshal, runscConfig())
	decode("cni", json.Unmarshal, cni)
	fromYAML := func(b []byte, v any) error { return yaml.Unmarshal(b, v) }
	decode("kubelet", fromYAML, kubeletYAML)
	decode("kube-proxy", fromYAML, proxyYAML)
	for name, v := range decoded {
		for _, s := range texts(v) {
			path := strings.TrimPrefix(s, "unix://")
			if _, err := netip.ParsePrefix(path); err == nil || !strings.HasPrefix(path, "/") {
				continue
			}
			if !strings.HasPrefix(path, dirs.State+"/") {
				require.Contains(t, allowed, path, name)
			}
		}
	}
}

func TestCNIConfigFollowsTheFamilies(t *testing.T) {
	v4, err := cniConfig(dirs, plan.Families{})
	require.NoError(t, err)
	require.NotContains(t, string(v4), "::")
	v6, err := cniConfig(dirs, both)
	require.NoError(t, err)
	require.Contains(t, string(v6), plan.PodNet.V6)
}

func TestServersStayOffTheMachinesInterfaces(t *testing.T) {
	c := &Cluster{dirs: dirs, families: both}
	for _, command := range []struct {
		args  []string
		flags []string
	}{
		{c.etcdCommand().Args, []string{"--listen-client-urls=http://127.0.0.1:2379", "--listen-peer-urls=http://127.0.0.1:2380"}},
		{c.apiServerCommand().Args, []string{"--bind-address=10.89.0.1"}},
		{c.controllerManagerCommand().Args, []string{"--bind-address=127.0.0.1"}},
		{c.schedulerCommand().Args, []string{"--bind-address=127.0.0.1"}},
		{c.agentSandboxCommand().Args, []string{"--metrics-bind-address=127.0.0.1:18080"}},
	} {
		for _, flag := range command.flags {
			require.Contains(t, command.args, flag)
		}
	}
	require.Equal(t, []string{"10.89.0.1/32", "fd5b:6f78:89::1/128"}, withLength(both.Of(plan.NodeIP)))
}

func TestStopOrderHasEveryComponent(t *testing.T) {
	components := names()[:len(names())-len(plan.Internets)]
	require.ElementsMatch(t, components, stopOrder)
	position := map[string]int{}
	for n, name := range stopOrder {
		position[name] = n
	}
	require.Zero(t, position[kubelet])
	require.Less(t, position[agentSandbox], position[apiServer])
	require.Less(t, position[apiServer], position[etcd])
}

func TestComponentOf(t *testing.T) {
	const bin = "/p/.cluster/bin"
	for cmdline, want := range map[string]string{
		bin + "/etcd\x00--name=x\x00":                                             etcd,
		bin + "/containerd-shim-runsc-v1\x00-id\x00x\x00":                         "",
		"/usr/bin/etcd\x00":                                                       "",
		"/p/bin/cluster\x00internet\x00--name=sbx-internet-b\x00--ipv6=false\x00": "sbx-internet-b",
		"": "",
	} {
		require.Equal(t, want, componentOf([]byte(cmdline), bin), cmdline)
	}
}

func TestQuote(t *testing.T) {
	for in, want := range map[string]string{
		"/home/x/.cluster/admin.kubeconfig": "/home/x/.cluster/admin.kubeconfig",
		"/home/a b/it's":                    `'/home/a b/it'\''s'`,
		"/home/é":                           "'/home/é'",
	} {
		require.Equal(t, want, quote(in))
	}
}

func TestLockIsExclusive(t *testing.T) {
	c := &Cluster{dirs: plan.Dirs{State: t.TempDir()}}
	unlock, err := c.lock()
	require.NoError(t, err)
	_, err = c.lock()
	require.ErrorIs(t, err, errBusy)
	unlock()
	unlock, err = c.lock()
	require.NoError(t, err)
	unlock()
}

func TestRemoveStateKeepsLogs(t *testing.T) {
	c := &Cluster{dirs: plan.Dirs{State: t.TempDir()}}
	for _, file := range []string{"logs/etcd.log", "etcd/member/wal", "run/etcd.json", "admin.kubeconfig", "lock"} {
		require.NoError(t, writeFile(c.dirs.In(file), []byte("x"), 0o600))
	}
	require.NoError(t, c.removeState())
	left, err := filepath.Glob(c.dirs.In("*"))
	require.NoError(t, err)
	require.ElementsMatch(t, []string{c.dirs.In("logs"), c.dirs.In("lock")}, left)
	_, err = os.Stat(c.dirs.In("logs", "etcd.log"))
	require.NoError(t, err)
}

func TestShimSocketsAreReadFromBothForms(t *testing.T) {
	bundle := t.TempDir()
	require.Empty(t, shimSockets(bundle))
	require.NoError(t, os.WriteFile(filepath.Join(bundle, "address"), []byte("unix:///run/containerd/s/aa"), 0o600))
	require.Equal(t, []string{"/run/containerd/s/aa"}, shimSockets(bundle))
	bootstrap := `{"version":3,"address":"unix:///run/containerd/s/bb","protocol":"ttrpc"}`
	require.NoError(t, os.WriteFile(filepath.Join(bundle, "bootstrap.json"), []byte(bootstrap), 0o600))
	require.Equal(t, []string{"/run/containerd/s/aa", "/run/containerd/s/bb"}, shimSockets(bundle))
}
