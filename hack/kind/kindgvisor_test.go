package kindgvisor_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const (
	runsc = "runsc"
	shim  = "containerd-shim-runsc-v1"
)

// machine is a made-up host: stand-ins on the PATH, a world, a cache folder.
type machine struct {
	t     *testing.T
	world world
	env   []string
}

// newMachine has a node whose containerd configuration is of the given version,
// and an upstream that offers the binaries that the script is told to expect.
func newMachine(t *testing.T, configVersion string) *machine {
	t.Helper()
	m := &machine{t: t, world: world(t.TempDir())}
	self, err := os.Executable()
	require.NoError(t, err)
	bin := t.TempDir()
	for name := range standins {
		require.NoError(t, os.Symlink(self, filepath.Join(bin, name)))
	}
	for _, folder := range []string{"node", "upstream", "cache"} {
		require.NoError(t, os.Mkdir(m.world.path(folder), 0o755))
	}
	m.write("arch", "x86_64")
	m.write("node/config.toml", "version = "+configVersion+"\n")
	m.write("upstream/"+runsc, "the runsc binary")
	m.write("upstream/"+shim, "the shim binary")
	m.env = []string{
		"PATH=" + bin + ":/usr/bin:/bin",
		"XDG_CACHE_HOME=" + m.world.path("cache"),
		worldVariable + "=" + string(m.world),
		"GVISOR_SHA512_RUNSC=" + sum("the runsc binary"),
		"GVISOR_SHA512_SHIM=" + sum("the shim binary"),
	}
	return m
}

func (m *machine) write(name, text string) {
	m.t.Helper()
	require.NoError(m.t, os.WriteFile(m.world.path(name), []byte(text), 0o644))
}

// run starts the script and gives its exit code, its output and the calls that
// it made this time.
func (m *machine) run(args ...string) (code int, output string, calls []string) {
	m.t.Helper()
	m.write("calls", "")
	var out bytes.Buffer
	cmd := exec.CommandContext(m.t.Context(), "../kind-gvisor.sh", args...)
	cmd.Env, cmd.Stdout, cmd.Stderr = m.env, &out, &out
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil {
		require.ErrorAs(m.t, err, &exit, out.String())
	}
	return cmd.ProcessState.ExitCode(), out.String(), strings.Split(strings.TrimSpace(m.world.read("calls")), "\n")
}

func containing(calls []string, text string) []string {
	var found []string
	for _, call := range calls {
		if strings.Contains(call, text) {
			found = append(found, call)
		}
	}
	return found
}

func TestUpMakesAClusterWithGVisor(t *testing.T) {
	m := newMachine(t, "3")
	code, output, calls := m.run("up")
	require.Zero(t, code, output)

	create := containing(calls, "kind create cluster")
	require.Len(t, create, 1)
	assert.Regexp(t, `--name sandbox-broker --image kindest/node:v[0-9.]+@sha256:[0-9a-f]{64} `, create[0])
	for _, binary := range []string{runsc, shim} {
		assert.Len(t, containing(calls, "/"+binary+" sandbox-broker-control-plane:/usr/local/bin/"+binary), 1)
		assert.Len(t, containing(calls, "chmod 0755 /usr/local/bin/"+binary), 1)
		assert.Regexp(t, `curl --fail .*/release/[0-9.]+/x86_64/`+binary+`$`, strings.Join(containing(calls, "x86_64/"+binary+".part"), ""))
	}
	assert.Contains(t, m.world.read("node", "config.toml"), `[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runsc]`)
	assert.Len(t, containing(calls, "systemctl restart containerd"), 1)
	assert.Len(t, containing(calls, "kubectl --context kind-sandbox-broker wait --for=condition=Ready node"), 1)
	last := calls[len(calls)-1]
	assert.Regexp(t, `^kubectl --context kind-sandbox-broker apply -f .*/deploy/gvisor/runtimeclass.yaml$`, last)
	assert.FileExists(t, strings.Fields(last)[5])
}

// TestUpAgainChangesNothing: the second run only looks.
func TestUpAgainChangesNothing(t *testing.T) {
	m := newMachine(t, "3")
	code, output, _ := m.run("up")
	require.Zero(t, code, output)
	before := m.world.read("node", "config.toml")

	code, output, calls := m.run("up")
	require.Zero(t, code, output)
	for _, change := range []string{"kind create", "curl", "docker cp", "tee", "chmod", "systemctl"} {
		assert.Empty(t, containing(calls, change))
	}
	assert.Equal(t, before, m.world.read("node", "config.toml"))
}

func TestOldContainerdConfiguration(t *testing.T) {
	m := newMachine(t, "2")
	code, output, _ := m.run("up")
	require.Zero(t, code, output)
	assert.Contains(t, m.world.read("node", "config.toml"), `[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runsc]`)
}

func TestUnknownContainerdConfiguration(t *testing.T) {
	m := newMachine(t, "4")
	code, output, calls := m.run("up")
	assert.Equal(t, 1, code)
	assert.Contains(t, output, "neither version 2 nor 3")
	assert.Empty(t, containing(calls, "tee"))
}

// TestWrongBinaryIsRefused: nothing reaches the node, and no half of it stays in
// the cache to be taken for good the next time.
func TestWrongBinaryIsRefused(t *testing.T) {
	m := newMachine(t, "3")
	m.write("upstream/"+runsc, "something else")
	code, output, calls := m.run("up")
	assert.Equal(t, 1, code)
	assert.Contains(t, output, "does not have the expected SHA-512")
	assert.Empty(t, containing(calls, "docker cp"))
	assert.Empty(t, containing(calls, "kubectl"))
	assert.Empty(t, cached(t, m))
}

// TestPinnedChecksumsAreUsed: without overrides the made-up binary is refused,
// for each architecture that is pinned.
func TestPinnedChecksumsAreUsed(t *testing.T) {
	for _, arch := range []string{"x86_64", "aarch64"} {
		m := newMachine(t, "3")
		m.env = m.env[:3]
		m.write("arch", arch)
		code, output, _ := m.run("up")
		assert.Equal(t, 1, code)
		assert.Contains(t, output, "does not have the expected SHA-512", arch)
	}
	script, err := os.ReadFile("../kind-gvisor.sh")
	require.NoError(t, err)
	assert.Len(t, regexp.MustCompile(`\b[0-9a-f]{128}\b`).FindAll(script, -1), 4, "two binaries, two architectures")
}

func TestUnknownArchitecture(t *testing.T) {
	m := newMachine(t, "3")
	m.env = m.env[:3]
	m.write("arch", "riscv64")
	code, output, calls := m.run("up")
	assert.Equal(t, 1, code)
	assert.Contains(t, output, "riscv64")
	assert.Empty(t, containing(calls, "curl"))
}

func TestAnotherReleaseNeedsItsChecksums(t *testing.T) {
	m := newMachine(t, "3")
	m.env = append(m.env[:3], "GVISOR_RELEASE=20990101.0")
	code, output, calls := m.run("up")
	assert.Equal(t, 1, code)
	assert.Contains(t, output, "GVISOR_SHA512_RUNSC")
	assert.Empty(t, containing(calls, "curl"))
}

func TestFailedDownloadStopsTheRun(t *testing.T) {
	m := newMachine(t, "3")
	m.env = append(m.env, failVariable+"=curl")
	code, _, calls := m.run("up")
	assert.NotZero(t, code)
	assert.Empty(t, containing(calls, "docker cp"))
	assert.Empty(t, cached(t, m))
}

// TestUpAfterAnInterruptedRun: the first run ended before containerd was
// restarted. The second sees that in containerd, not in the file.
func TestUpAfterAnInterruptedRun(t *testing.T) {
	m := newMachine(t, "3")
	whole := m.env
	m.env = append(whole, failVariable+"=docker exec sandbox-broker-control-plane systemctl")
	code, _, _ := m.run("up")
	require.NotZero(t, code)

	m.env = whole
	code, output, calls := m.run("up")
	require.Zero(t, code, output)
	assert.Empty(t, containing(calls, "tee"))
	assert.Len(t, containing(calls, "systemctl restart containerd"), 1)
}

// TestOtherClustersAreLeftAlone: a name that begins like ours is not ours.
func TestOtherClustersAreLeftAlone(t *testing.T) {
	m := newMachine(t, "3")
	m.write("clusters", "sandbox-broker-2\n")
	code, output, calls := m.run("down")
	require.Zero(t, code, output)
	assert.Equal(t, []string{"kind get clusters"}, calls)

	m.write("clusters", "sandbox-broker-2\nsandbox-broker\n")
	code, output, calls = m.run("down")
	require.Zero(t, code, output)
	assert.Equal(t, []string{"kind get clusters", "kind delete cluster --name sandbox-broker"}, calls)
	assert.Equal(t, "sandbox-broker-2", strings.TrimSpace(m.world.read("clusters")))
}

func TestKindThatCannotList(t *testing.T) {
	for _, command := range []string{"up", "down"} {
		m := newMachine(t, "3")
		m.env = append(m.env, failVariable+"=kind get clusters")
		code, output, calls := m.run(command)
		assert.Equal(t, 1, code)
		assert.Contains(t, output, "is Docker running?")
		assert.Len(t, calls, 1)
	}
}

func TestMissingToolsAreNamed(t *testing.T) {
	m := newMachine(t, "3")
	bin := strings.TrimPrefix(strings.Split(m.env[0], ":")[0], "PATH=")
	for _, tool := range []string{"docker", "kind"} {
		require.NoError(t, os.Remove(filepath.Join(bin, tool)))
	}
	// Only what the script itself needs before it looks, so that tools of this
	// machine do not fill the gap.
	for _, tool := range []string{"bash", "dirname", "env"} {
		path, err := exec.LookPath(tool)
		require.NoError(t, err)
		require.NoError(t, os.Symlink(path, filepath.Join(bin, tool)))
	}
	m.env[0] = "PATH=" + bin
	code, output, calls := m.run("up")
	assert.Equal(t, 1, code)
	assert.Contains(t, output, "not found: docker kind")
	assert.Equal(t, []string{""}, calls)
}

func TestUsage(t *testing.T) {
	m := newMachine(t, "3")
	for _, args := range [][]string{{"--help"}, {"-h"}, {"help"}} {
		code, output, calls := m.run(args...)
		assert.Zero(t, code)
		assert.Contains(t, output, "Usage: hack/kind-gvisor.sh up|down")
		assert.Equal(t, []string{""}, calls)
	}
	for _, args := range [][]string{{}, {"sideways"}, {"up", "down"}} {
		code, output, calls := m.run(args...)
		assert.Equal(t, 2, code)
		assert.Contains(t, output, "Usage:")
		assert.Equal(t, []string{""}, calls)
	}
}

func cached(t *testing.T, m *machine) []string {
	t.Helper()
	var files []string
	require.NoError(t, filepath.WalkDir(m.world.path("cache"), func(path string, entry os.DirEntry, err error) error {
		if err == nil && !entry.IsDir() {
			files = append(files, path)
		}
		return err
	}))
	return files
}
