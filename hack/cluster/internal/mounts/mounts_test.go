package mounts

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestParse(t *testing.T) {
	const info = `22 1 0:20 / / rw - ext4 /dev/vda rw
30 22 0:30 / /home/a\040b/.cluster/kubelet/pods/1/volumes/x rw - tmpfs tmpfs rw
31 22 0:31 / /home/a\040b/.cluster/run rw - overlay overlay rw
32 31 0:32 / /home/a\040b/.cluster/run/rootfs rw - overlay overlay rw
33 22 0:33 / /home/a\040b/.cluster-of-another/run rw - overlay overlay rw
`
	got, err := parse(strings.NewReader(info), "/home/a b/.cluster")
	require.NoError(t, err)
	require.Equal(t, []string{
		"/home/a b/.cluster/run/rootfs", "/home/a b/.cluster/run", "/home/a b/.cluster/kubelet/pods/1/volumes/x",
	}, got)
}

func TestRemoveBelowNothing(t *testing.T) {
	n, err := RemoveBelow(t.TempDir())
	require.NoError(t, err)
	require.Zero(t, n)
}
