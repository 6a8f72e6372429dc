package cluster

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/sandbox-broker/sandbox-broker/hack/cluster/internal/cgroups"
)

const (
	// shimProgram is gVisor's shim, one process for each container.
	shimProgram = "containerd-shim-runsc-v1"
	// shimPatience is how long one may take to answer.
	shimPatience = 2 * time.Second
	// shimTasks are the folders of containers, in containerd's state.
	shimTasks = "io.containerd.runtime.v2.task/k8s.io"
)

// endHungShims ends the shims on which the next containerd would hang at its start, while
// none is there. It asks each for its processes, without a bound, and has one without any
// delete its container. One in which an exec was starting when containerd was killed never
// lets go of that exec's lock (gvisor.dev/gvisor/pkg/shim/v1/proc), and one whose container
// was half there may never end the deletion. Of a shim that is gone containerd clears away
// what is left, and the pod has failed. Each such pod is named: its end is nobody else's
// doing.
func (c *Cluster) endHungShims(context.Context) error {
	pids, err := c.shims()
	if err != nil {
		return err
	}
	pods, err := c.group.Pods()
	if err != nil {
		return err
	}
	for id, pid := range pids {
		if shimServes(filepath.Join(c.dirs.ContainerdState(), shimTasks, id, "bootstrap.json"), id) {
			continue
		}
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("ending the shim %d, which hangs: %w", pid, err)
		}
		c.say("ended a shim that hung, of pod %s", podOf(pods, id))
	}
	return nil
}

// shims are the processes of the cluster's shims, by their container's ID.
func (c *Cluster) shims() (map[string]int, error) {
	pids, err := c.group.Processes()
	if err != nil {
		return nil, err
	}
	shims := map[string]int{}
	for _, pid := range pids {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if err != nil {
			continue // it has just ended
		}
		if id := shimID(bytes.Split(bytes.TrimSuffix(text, []byte{0}), []byte{0})); id != "" {
			shims[id] = pid
		}
	}
	return shims, nil
}

// shimID is the value of a shim's flag -id; empty for another program, or without one.
func shimID(args [][]byte) string {
	if filepath.Base(string(args[0])) != shimProgram {
		return ""
	}
	for i, a := range args[:len(args)-1] {
		if string(a) == "-id" {
			return string(args[i+1])
		}
	}
	return ""
}

// podOf finds the pod of a container.
func podOf(pods []cgroups.Pod, container string) string {
	for _, p := range pods {
		if slices.Contains(p.Containers, container) {
			return p.UID
		}
	}
	return "unknown"
}

// shimServes asks a shim for its container's processes, as containerd does at its start, and
// reports whether there are any. A shim of which containerd had not noted yet how it can be
// asked, no containerd will ever find.
func shimServes(bootstrap, id string) bool {
	text, err := os.ReadFile(bootstrap)
	if errors.Is(err, fs.ErrNotExist) {
		return false
	}
	if err != nil {
		return true
	}
	var at struct{ Address string }
	if err := json.Unmarshal(text, &at); err != nil {
		return true
	}
	conn, err := net.DialTimeout("unix", strings.TrimPrefix(at.Address, "unix://"), shimPatience)
	if err != nil {
		return true // it has gone: containerd sees that
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(shimPatience))
	if _, err := conn.Write(pidsRequest(id)); err != nil {
		return true
	}
	processes, err := pidsAnswer(conn)
	return processes || err != nil && !errors.Is(err, os.ErrDeadlineExceeded)
}

// maxAnswer bounds a shim's answer, in bytes.
const maxAnswer = 1 << 20

// pidsAnswer reads the answer: a Response of status and payload. Without processes the
// payload is empty, and so it is beside an error.
func pidsAnswer(r io.Reader) (processes bool, err error) {
	head := make([]byte, 10)
	if _, err := io.ReadFull(r, head); err != nil {
		return false, err
	}
	body := make([]byte, min(binary.BigEndian.Uint32(head), maxAnswer))
	if _, err := io.ReadFull(r, body); err != nil {
		return false, err
	}
	for len(body) > 0 {
		key, n := binary.Uvarint(body)
		size, m := binary.Uvarint(body[max(n, 0):])
		if n <= 0 || m <= 0 || key&7 != 2 || size > uint64(len(body)-n-m) {
			return false, nil // no Response, nor of use to containerd
		}
		if key>>3 == 2 && size > 0 {
			return true, nil
		}
		body = body[n+m+int(size):]
	}
	return false, nil
}

// pidsRequest is the call Pids of containerd's task service, in ttrpc's framing
// (github.com/containerd/ttrpc, PROTOCOL.md): length, stream, type and flags, then a
// Request of service, method and payload.
func pidsRequest(id string) []byte {
	request := slices.Concat(field(1, "containerd.task.v2.Task"), field(2, "Pids"), field(3, string(field(1, id))))
	b := binary.BigEndian.AppendUint32(nil, uint32(len(request)))
	b = binary.BigEndian.AppendUint32(b, 1)
	return append(append(b, 1, 0), request...)
}

// field is one of a protobuf message, of bytes or text.
func field(number int, value string) []byte {
	b := binary.AppendUvarint(nil, uint64(number)<<3|2)
	return append(binary.AppendUvarint(b, uint64(len(value))), value...)
}
