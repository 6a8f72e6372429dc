package cluster

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sandbox-broker/sandbox-broker/hack/cluster/internal/cgroups"
)

func TestEmptyShims(t *testing.T) {
	const shim = "/cache/containerd-shim-runsc-v1 -namespace k8s.io -address /run/containerd.sock -id "
	lines := map[int][][]byte{}
	for pid, line := range map[int]string{
		1:  shim + "full",
		2:  "runsc-sandbox --root=/run/x boot --bundle=/b full",
		3:  shim + "program-of-full",
		4:  shim + "empty",
		5:  "runsc-gofer --root=/run/x gofer empty",
		6:  shim + "program-of-empty",
		7:  "/cache/containerd-shim-runc-v2 -namespace k8s.io -id other",
		8:  "/cache/containerd-shim-runsc-v1 -v",
		9:  "/cache/kubelet -id empty",
		10: shim + "of-no-pod",
	} {
		lines[pid] = bytes.Split([]byte(line), []byte(" "))
	}
	require.Equal(t, []int{4, 6, 10}, emptyShims(lines, []cgroups.Pod{
		{Containers: []string{"program-of-full", "full"}, Processes: []int{77, 2}},
		{Containers: []string{"empty", "program-of-empty"}, Processes: []int{5}},
	}))
}
