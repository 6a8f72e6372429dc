//go:build e2e

package e2e

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandbox-broker/sandbox-broker/sandboxclient"
)

func TestFilesGoInAndOutUnchanged(t *testing.T) {
	ctx := within(t, 2*time.Minute)
	lease, err := newClient(t).Acquire(ctx, slow)
	require.NoError(t, err)
	defer func() { require.NoError(t, lease.Release(within(t, time.Minute))) }()

	content := make([]byte, 20<<20)
	_, _ = rand.Read(content) // crypto/rand never fails
	sum := sha256.Sum256(content)
	info, err := lease.Files().Write(ctx, "data/in.bin", bytes.NewReader(content), 0o640)
	require.NoError(t, err)
	require.Equal(t, hex.EncodeToString(sum[:]), info.SHA256)
	out, err := lease.Script("shell", "stat -c %a data/in.bin; sha256sum < data/in.bin; ls -A data").Output(ctx)
	require.NoError(t, err)
	require.Equal(t, "640\n"+hex.EncodeToString(sum[:])+"  -\nin.bin\n", string(out))

	var back bytes.Buffer
	got, err := lease.Files().Read(ctx, "data/in.bin", &back)
	require.NoError(t, err)
	require.Equal(t, info.SHA256, got.SHA256)
	require.True(t, bytes.Equal(content, back.Bytes()))
	_, err = lease.Files().Read(ctx, "data/none", &back)
	require.ErrorIs(t, err, sandboxclient.ErrNotFound)
	_, err = lease.Files().Write(ctx, "/usr/in.bin", bytes.NewReader(content), 0o640)
	require.ErrorIs(t, err, sandboxclient.ErrInvalid, "the image is read-only")
}
