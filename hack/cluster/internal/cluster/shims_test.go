package cluster

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sandbox-broker/sandbox-broker/hack/cluster/internal/cgroups"
)

func TestShimID(t *testing.T) {
	for line, id := range map[string]string{
		"/cache/containerd-shim-runsc-v1 -namespace k8s.io -address /run/containerd.sock -id abc": "abc",
		"/cache/containerd-shim-runc-v2 -namespace k8s.io -id other":                              "",
		"/cache/containerd-shim-runsc-v1 -v":                                                      "",
		"/cache/kubelet -id abc":                                                                  "",
	} {
		require.Equal(t, id, shimID(bytes.Split([]byte(line), []byte(" "))))
	}
}

func TestPodOfAContainer(t *testing.T) {
	pods := []cgroups.Pod{{UID: "u1", Containers: []string{"a"}}, {UID: "u2", Containers: []string{"b", "c"}}}
	require.Equal(t, "u2", podOf(pods, "c"))
	require.Equal(t, "unknown", podOf(pods, "d"))
}

// A shim that takes the question and says nothing hangs, and one without processes serves
// nothing; one that is not there needs no end.
func TestShimsThatServe(t *testing.T) {
	dir := t.TempDir()
	bootstrap := filepath.Join(dir, "bootstrap.json")
	require.False(t, shimServes(bootstrap, "abc"), "nobody can ask it")
	socket := filepath.Join(dir, "s")
	text, err := json.Marshal(map[string]any{"version": 3, "address": "unix://" + socket, "protocol": "ttrpc"})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(bootstrap, text, 0o600))
	require.True(t, shimServes(bootstrap, "abc"), "it has gone")

	l, err := net.Listen("unix", socket)
	require.NoError(t, err)
	defer l.Close()
	says := make(chan []byte, 4)
	answer := func(body []byte) {
		says <- append(binary.BigEndian.AppendUint32(nil, uint32(len(body))), append([]byte{0, 0, 0, 1, 2, 0}, body...)...)
	}
	answer(field(2, string(field(1, "a process"))))
	answer(nil)
	answer(field(1, "an error"))
	says <- nil
	asked := make(chan []byte, 4)
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			b := make([]byte, 128)
			n, _ := conn.Read(b)
			asked <- b[:n]
			_, _ = conn.Write(<-says)
		}
	}()
	require.True(t, shimServes(bootstrap, "abc"))
	require.Equal(t, "\x00\x00\x00\x26\x00\x00\x00\x01\x01\x00\x0a\x17containerd.task.v2.Task\x12\x04Pids\x1a\x05\x0a\x03abc", string(<-asked))
	require.False(t, shimServes(bootstrap, "abc"), "no processes")
	require.False(t, shimServes(bootstrap, "abc"), "an error")
	require.False(t, shimServes(bootstrap, "abc"), "no answer")
}
