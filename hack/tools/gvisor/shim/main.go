// Command containerd-shim-runsc-v1 is gVisor's containerd shim with one
// difference: it starts on hosts that do not let a process lower its OOM score.
//
// The shim of the gVisor release lowers the score of the process it leaves
// behind and gives up when that is refused. Containers and many CI machines
// lack CAP_SYS_RESOURCE, so there no gVisor pod would ever start. Everything
// else here is gVisor's: only the step that launches the shim is ours, and it
// treats the score as a wish. It lowers it where that is allowed.
package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"syscall"

	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/pkg/shim"
	"github.com/containerd/containerd/v2/pkg/sys"
	runsc "gvisor.dev/gvisor/pkg/shim/v1"
	// Registers gVisor's task service, which the launched shim serves.
	_ "gvisor.dev/gvisor/pkg/shim/v1/plugin"
)

const (
	runtimeName = "io.containerd.runsc.v1"
	// wantedOOMScore spares the shim when memory runs out: without it nobody
	// reports the end of the pod.
	wantedOOMScore = -999
	// The two files in the bundle (our working folder) by which containerd
	// finds a shim again after its own restart.
	pidFile     = "shim.pid"
	addressFile = "address"
)

func main() {
	shim.Run(context.Background(), manager{runsc.NewShimManager(runtimeName)})
}

// manager is gVisor's shim manager with a Start of its own.
type manager struct{ shim.Manager }

// Start launches the shim of one container and returns where it listens.
// containerd calls it in the container's bundle folder.
func (manager) Start(ctx context.Context, id string, opts shim.StartOpts) (shim.BootstrapParams, error) {
	namespace, err := namespaces.NamespaceRequired(ctx)
	if err != nil {
		return shim.BootstrapParams{}, fmt.Errorf("finding the namespace of container %s: %w", id, err)
	}
	address, err := shim.SocketAddress(ctx, opts.Address, id, opts.Debug)
	if err != nil {
		return shim.BootstrapParams{}, fmt.Errorf("naming the socket of container %s: %w", id, err)
	}
	params := shim.BootstrapParams{Version: 2, Address: address, Protocol: "ttrpc"}

	running, listener, err := listen(address)
	if err != nil {
		return shim.BootstrapParams{}, fmt.Errorf("opening the socket of container %s: %w", id, err)
	}
	if running {
		return params, os.WriteFile(addressFile, []byte(address), 0o644)
	}
	if err := launch(namespace, id, opts, listener); err != nil {
		return shim.BootstrapParams{}, errors.Join(
			fmt.Errorf("launching the shim of container %s: %w", id, err), shim.RemoveSocket(address))
	}
	return params, os.WriteFile(addressFile, []byte(address), 0o644)
}

// listen opens the socket at address. A socket left by a dead shim is replaced;
// running reports that a live one answers there.
func listen(address string) (running bool, listener *os.File, err error) {
	socket, err := shim.NewSocket(address)
	if shim.SocketEaddrinuse(err) {
		if shim.CanConnect(address) {
			return true, nil, nil
		}
		if err := shim.RemoveSocket(address); err != nil {
			return false, nil, err
		}
		socket, err = shim.NewSocket(address)
	}
	if err != nil {
		return false, nil, err
	}
	listener, err = socket.File()
	return false, listener, err
}

// launch starts this program again as the shim itself, with the socket as its
// descriptor 3, and leaves it running.
func launch(namespace, id string, opts shim.StartOpts, listener *os.File) error {
	defer listener.Close()
	self, err := os.Executable()
	if err != nil {
		return err
	}
	args := []string{"-namespace", namespace, "-address", opts.Address, "-id", id}
	if opts.Debug {
		args = append(args, "-debug")
	}
	cmd := exec.Command(self, args...)
	// A shim mostly waits; two threads spare a small machine with many pods.
	cmd.Env = append(os.Environ(), "GOMAXPROCS=2")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.ExtraFiles = []*os.File{listener}
	if err := cmd.Start(); err != nil {
		return err
	}
	// Reaps the shim in case it dies before this process ends.
	go func() { _ = cmd.Wait() }()
	if err := record(cmd.Process.Pid); err != nil {
		return errors.Join(err, cmd.Process.Kill())
	}
	return nil
}

// record writes down the shim's process ID and asks for its protection.
func record(pid int) error {
	if err := shim.WritePidFile(pidFile, pid); err != nil {
		return err
	}
	if err := sys.SetOOMScore(pid, wantedOOMScore); err != nil && !errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("protecting process %d from the OOM killer: %w", pid, err)
	}
	return nil
}
