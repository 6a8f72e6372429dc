package cgroups

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestParseMount(t *testing.T) {
	for name, c := range map[string]struct {
		line        string
		version     int
		dir         string
		controllers []string
	}{
		"version 1": {
			"30 25 0:26 / /sys/fs/cgroup/cpu rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct", 1,
			"/sys/fs/cgroup/cpu", []string{"rw", "cpu", "cpuacct"},
		},
		"named": {
			"31 25 0:27 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd", 1,
			"/sys/fs/cgroup/systemd", []string{"rw", "name=systemd"},
		},
		"version 2": {"32 25 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw", 2, "/sys/fs/cgroup", nil},
		"other":     {"33 25 0:29 / /tmp rw - tmpfs tmpfs rw", 0, "", nil},
		"cut off":   {"33 25", 0, "", nil},
	} {
		t.Run(name, func(t *testing.T) {
			m, version := parseMount(c.line)
			require.Equal(t, c.version, version)
			if version != 0 {
				require.Equal(t, mount{c.dir, c.controllers}, m)
			}
		})
	}
}

func TestSettleSaysWhatIsMissing(t *testing.T) {
	t.Run("no cgroup at all", func(t *testing.T) {
		require.ErrorContains(t, (&Tree{}).settle(""), "no cgroup file system is mounted")
	})
	t.Run("version 1 without pids", func(t *testing.T) {
		tree := &Tree{mounts: []mount{{"/x", []string{"cpu", "cpuset", "memory", "freezer"}}}}
		require.ErrorContains(t, tree.settle(""), "pids is not among")
	})
	t.Run("version 2", func(t *testing.T) {
		dir := t.TempDir()
		controllers := filepath.Join(dir, "cgroup.controllers")
		require.NoError(t, os.WriteFile(controllers, []byte("cpuset cpu io memory\n"), 0o644))
		require.ErrorContains(t, (&Tree{}).settle(dir), "pids is not among")
		require.NoError(t, os.WriteFile(controllers, []byte("cpuset cpu io memory pids\n"), 0o644))
		tree := &Tree{name: "ours"}
		require.NoError(t, tree.settle(dir))
		require.True(t, tree.V2())
		require.Equal(t, filepath.Join(dir, "ours"), tree.memberDir())
	})
}

func TestPodsHaveTheirContainers(t *testing.T) {
	dir := t.TempDir()
	tree := &Tree{name: "ours", mounts: []mount{{dir, []string{"freezer"}}}}
	all, err := tree.Pods()
	require.NoError(t, err)
	require.Empty(t, all, "no group yet")
	for path, text := range map[string]string{
		"ours/daemons": "12\n", "ours/kubepods": "", "ours/kubepods/burstable": "",
		"ours/kubepods/burstable/pod1": "14\n", "ours/kubepods/burstable/pod1/a": "", "ours/kubepods/burstable/pod1/b": "15\n", "ours/kubepods/pod2": "",
	} {
		require.NoError(t, os.MkdirAll(filepath.Join(dir, path), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(dir, path, "cgroup.procs"), []byte(text), 0o644))
	}
	all, err = tree.Pods()
	require.NoError(t, err)
	require.ElementsMatch(t, []Pod{{"1", []string{"a", "b"}, []int{15, 14}}, {"2", nil, nil}}, all)
}

func TestProcessesAreReadFromTheWholeTree(t *testing.T) {
	dir := t.TempDir()
	tree := &Tree{name: "ours", mounts: []mount{{"/elsewhere", []string{"cpu"}}, {dir, []string{"freezer"}}}}
	pids, err := tree.Processes()
	require.NoError(t, err)
	require.Empty(t, pids, "no group yet")
	for path, text := range map[string]string{
		"ours/daemons": "12\n13\n", "ours/kubepods/pod1": "14\n", "ours/kubepods": "", "theirs": "15\n",
	} {
		require.NoError(t, os.MkdirAll(filepath.Join(dir, path), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(dir, path, "cgroup.procs"), []byte(text), 0o644))
	}
	pids, err = tree.Processes()
	require.NoError(t, err)
	require.ElementsMatch(t, []int{12, 13, 14}, pids)
}
