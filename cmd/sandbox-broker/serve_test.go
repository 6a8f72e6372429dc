package main

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandbox-broker/sandbox-broker/sandboxclient"
)

// configFile writes a configuration and returns its path.
func configFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config.yaml")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

func TestServeRefusals(t *testing.T) {
	t.Setenv("PATH", t.TempDir()) // neither runsc nor sandbox-runner is to be found
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = taken.Close() }()
	state := filepath.Join(t.TempDir(), "state")
	local := "listen: 127.0.0.1:0\nprovider: {local: {runner: /bin/true, stateDir: " + state + "%}}\npools: [{name: p}]\n"
	with := func(more string) string { return configFile(t, strings.Replace(local, "%", more, 1)) }
	authenticated := "auth: {tokensFile: " + configFile(t, "tokens: [{tenant: a, token: some-token}]") + "}\n"
	for name, c := range map[string]struct {
		args []string
		code int
		want []string
	}{
		"nothing given":       {[]string{}, exitUsage, []string{"--config FILE", "--provider local"}},
		"both given":          {[]string{"--provider", "local", "--config", "f"}, exitUsage, []string{"exclude each other"}},
		"another provider":    {[]string{"--provider", "docker"}, exitUsage, []string{`"docker"`, "only local"}},
		"no runner":           {[]string{"--config", configFile(t, "listen: 127.0.0.1:0\nprovider: {local: {stateDir: "+state+"}}\npools: [{name: p}]\n")}, exitBroker, []string{"sandbox-runner is neither beside", "make build", "provider.local.runner"}},
		"no runsc":            {[]string{"--config", with("")}, exitUsage, []string{"runsc is neither beside", "make runsc", "--insecure-no-isolation"}},
		"processes unasked":   {[]string{"--config", with(", runtime: process")}, exitUsage, []string{"isolates nothing", "--insecure-no-isolation"}},
		"a contradiction":     {[]string{"--insecure-no-isolation", "--config", with(", runtime: runsc")}, exitUsage, []string{"contradicts"}},
		"open to the world":   {[]string{"--provider", "local", "--listen", ":8443"}, exitBroker, []string{"listen:", "auth is empty"}},
		"the port is taken":   {[]string{"--insecure-no-isolation", "--listen", taken.Addr().String(), "--config", configFile(t, authenticated+strings.Replace(local, "%", "", 1))}, exitBroker, []string{taken.Addr().String(), "address already in use"}},
		"isolation elsewhere": {[]string{"--insecure-no-isolation", "--config", configFile(t, "provider: {agentSandbox: {namespace: n, kubeconfig: missing}}\npools: [{name: p}]\n")}, exitBroker, []string{"missing"}},
	} {
		t.Run(name, func(t *testing.T) {
			got := call(t, nil, append([]string{"serve", "--log-level", "error"}, c.args...)...)
			require.Equal(t, c.code, got.code, got.err)
			last := got.err[strings.LastIndex(strings.TrimSpace(got.err), "\n")+1:]
			for _, w := range c.want {
				require.Contains(t, last, w)
			}
			require.NoDirExists(t, state, "nothing is left behind")
		})
	}
}

// TestServeWithoutIsolation runs the real program's serve and run, as a user
// would, with plain processes: what does not need gVisor.
func TestServeWithoutIsolation(t *testing.T) {
	dir := t.TempDir()
	runner := filepath.Join(dir, "sandbox-runner")
	build := exec.Command("go", "build", "-o", runner, "../sandbox-runner")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := build.CombinedOutput()
	require.NoError(t, err, string(out))
	token := filepath.Join(dir, "token")
	require.NoError(t, os.WriteFile(token, []byte("some-token"), 0o600))
	tokens := configFile(t, "tokens: [{tenant: a, token: some-token}]")
	file := configFile(t, "listen: 127.0.0.1:0\nauth: {tokensFile: "+tokens+"}\nprovider: {local: {runner: "+runner+", stateDir: "+filepath.Join(dir, "state")+"}}\npools: [{name: only}]\n")

	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	r, w := io.Pipe()
	served := make(chan int, 1)
	go func() {
		served <- run(ctx, []string{"serve", "--insecure-no-isolation", "--config", file}, streams{out: io.Discard, err: w})
		_ = w.Close()
	}()
	warned, address := false, ""
	for d := json.NewDecoder(r); address == ""; {
		var line struct{ Level, Msg, Address string }
		require.NoError(t, d.Decode(&line))
		warned = warned || line.Level == "WARN" && strings.HasPrefix(line.Msg, "NO ISOLATION")
		if line.Msg == "listening" {
			address = line.Address
		}
	}
	go func() { _, _ = io.Copy(io.Discard, r) }()
	require.True(t, warned, "the log says that nothing is isolated")

	t.Setenv(sandboxclient.EnvURL, "http://"+address)
	t.Setenv(sandboxclient.EnvTokenFile, token)
	t.Setenv(sandboxclient.EnvCAFile, "")
	require.Equal(t, result{0, "1267650600228229401496703205376\n", ""}, call(t, nil, "run", "-l", "shell", "-e", "echo 2^100 | sed 's/.*/1267650600228229401496703205376/'"))
	got := call(t, nil, "version", "--broker")
	require.Equal(t, 0, got.code, got.err)
	require.Contains(t, got.out, "isolation: none")
	stop()
	require.Equal(t, 0, <-served)
	require.NoDirExists(t, filepath.Join(dir, "state"))
}

func TestRootIsNotGivenAway(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can give it away")
	}
	file := configFile(t, "listen: 127.0.0.1:0\nprovider: {local: {runner: /bin/true, stateDir: "+filepath.Join(t.TempDir(), "state")+"}}\npools: [{name: p}]\n")
	got := call(t, nil, "serve", "--insecure-no-isolation", "--config", file)
	require.Equal(t, exitUsage, got.code)
	require.Contains(t, got.err, "every user of this machine run programs as root")
}
