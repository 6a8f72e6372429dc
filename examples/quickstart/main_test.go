package main

import (
	"encoding/pem"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sandbox-broker/sandbox-broker/sandboxclient"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient/brokertest"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

// The README's example is this program.
func TestREADMEShowsThisProgram(t *testing.T) {
	readme, err := os.ReadFile(filepath.Join("..", "..", "README.md"))
	require.NoError(t, err)
	source, err := os.ReadFile("main.go")
	require.NoError(t, err)
	_, rest, ok := strings.Cut(string(readme), "```go\n")
	require.True(t, ok)
	shown, _, ok := strings.Cut(rest, "```")
	require.True(t, ok)
	assert.Equal(t, string(source), shown)
}

// And it works.
func TestMainPrintsTheOutput(t *testing.T) {
	broker := brokertest.NewTLS(t, brokertest.Each(func(s *brokertest.Stream) {
		s.Respond(wire.Response{})
		if s.Code == "print(1+1)" && s.Conn.Header.Get("Authorization") == "Bearer secret" {
			s.Stdout("2\n")
		}
		s.Exit(wire.Ending{Reason: wire.ReasonExited})
	}))
	dir := t.TempDir()
	token, ca := filepath.Join(dir, "token"), filepath.Join(dir, "ca.crt")
	require.NoError(t, os.WriteFile(token, []byte("secret"), 0o600))
	block := &pem.Block{Type: "CERTIFICATE", Bytes: broker.Certificate().Raw}
	require.NoError(t, os.WriteFile(ca, pem.EncodeToMemory(block), 0o600))
	t.Setenv(sandboxclient.EnvURL, broker.URL)
	t.Setenv(sandboxclient.EnvTokenFile, token)
	t.Setenv(sandboxclient.EnvCAFile, ca)

	r, w, err := os.Pipe()
	require.NoError(t, err)
	defer r.Close()
	stdout := os.Stdout
	os.Stdout = w
	defer func() { os.Stdout = stdout }()
	main()
	require.NoError(t, w.Close())
	out, err := io.ReadAll(r)
	require.NoError(t, err)
	assert.Equal(t, "2\n", string(out))
}
