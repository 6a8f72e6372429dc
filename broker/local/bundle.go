//go:build linux

package local

import (
	"fmt"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// Paths in a sandbox.
const (
	runnerPath    = "/opt/sandbox-runner/sandbox-runner"
	workspacePath = "/workspace"
	homePath      = "/home/sandbox"
)

// sandboxUser is the numeric user and group of everything in a sandbox.
const sandboxUser = 65532

// bundle is the OCI runtime specification of one sandbox. The root file system
// is read-only; what can be written is memory, bounded, and gone with it.
func bundle(root rootFS, runner string, c Pool, group string) *specs.Spec {
	tmpfs := func(path string) specs.Mount {
		return specs.Mount{
			Destination: path, Type: "tmpfs", Source: "tmpfs",
			Options: []string{"nosuid", "nodev", "mode=1777", fmt.Sprintf("size=%d", c.Limits.Disk)},
		}
	}
	bind := func(from, to string) specs.Mount {
		return specs.Mount{Destination: to, Type: "bind", Source: from, Options: []string{"rbind", "ro", "nosuid", "nodev"}}
	}
	mounts := []specs.Mount{{Destination: "/proc", Type: "proc", Source: "proc"}}
	for _, m := range root.mounts {
		mounts = append(mounts, bind(m, m))
	}
	mounts = append(mounts, bind(runner, runnerPath), tmpfs("/tmp"), tmpfs(workspacePath), tmpfs(homePath))
	path := root.path
	if path == "" {
		path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	}
	env := append([]string{
		"PATH=" + path, "HOME=" + homePath, "LANG=C.UTF-8", "TMPDIR=/tmp", "SANDBOX_WORKSPACE=" + workspacePath,
	}, c.Limits.environ()...)
	var namespaces []specs.LinuxNamespace
	kinds := []specs.LinuxNamespaceType{specs.PIDNamespace, specs.IPCNamespace, specs.UTSNamespace, specs.MountNamespace}
	if c.Network == NetworkNone {
		kinds = append(kinds, specs.NetworkNamespace)
	}
	for _, k := range kinds {
		namespaces = append(namespaces, specs.LinuxNamespace{Type: k})
	}
	return &specs.Spec{
		Version:  specs.Version,
		Hostname: "sandbox",
		Root:     &specs.Root{Path: root.dir, Readonly: true},
		Mounts:   mounts,
		Process: &specs.Process{
			User: specs.User{UID: sandboxUser, GID: sandboxUser},
			Args: []string{runnerPath, "serve"}, Env: env, Cwd: workspacePath,
			NoNewPrivileges: true, Capabilities: &specs.LinuxCapabilities{},
		},
		Linux: &specs.Linux{Namespaces: namespaces, CgroupsPath: group},
	}
}
