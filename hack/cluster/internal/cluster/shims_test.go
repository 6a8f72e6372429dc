package cluster

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestEmptyShims(t *testing.T) {
	lines := map[int][][]byte{}
	for pid, line := range map[int]string{
		1: "/cache/containerd-shim-runsc-v1 -namespace k8s.io -address /run/containerd.sock -id full",
		2: "runsc-sandbox --root=/run/x boot --bundle=/b full",
		3: "/cache/containerd-shim-runsc-v1 -namespace k8s.io -address /run/containerd.sock -id empty",
		4: "runsc-gofer --root=/run/x gofer empty",
		5: "/cache/containerd-shim-runc-v2 -namespace k8s.io -id other",
		6: "/cache/containerd-shim-runsc-v1 -v",
		7: "/cache/kubelet -id empty",
	} {
		lines[pid] = bytes.Split([]byte(line), []byte(" "))
	}
	require.Equal(t, []int{3}, emptyShims(lines))
}
