package broker

import (
	"encoding/base64"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

func TestHandleOpensForItsTenantAlone(t *testing.T) {
	t.Parallel()
	s, other := secret(strings.Repeat("s", MinSecret)), secret(strings.Repeat("o", MinSecret))
	h := handle{claim: "sbx-1", lease: "l1", tenant: "acme", exec: "e1"}
	text := s.seal(h)

	got, err := s.open(text, "acme")
	require.NoError(t, err)
	require.Equal(t, h, got)

	body, mac, _ := strings.Cut(text, ".")
	enc := base64.RawURLEncoding
	forged := enc.EncodeToString([]byte("sbx-2\x00l1\x00acme\x00e1"))
	for name, refused := range map[string]struct {
		secret secret
		text   string
		tenant string
	}{
		"another tenant":             {s, text, "evil"},
		"no tenant":                  {s, text, ""},
		"another installation's key": {other, text, "acme"},
		"another claim, same MAC":    {s, forged + "." + mac, "acme"},
		"no MAC":                     {s, body, "acme"},
		"an empty MAC":               {s, body + ".", "acme"},
		"half a MAC":                 {s, body + "." + mac[:len(mac)/2], "acme"},
		"not base64":                 {s, "!" + text, "acme"},
		"nothing":                    {s, "", "acme"},
		"far too long":               {s, strings.Repeat("a", maxHandle+1), "acme"},
		// A channel key must not pass for a handle's MAC.
		"a MAC for another use": {s, body + "." + enc.EncodeToString(s.mac("channel key", "sbx-1\x00l1\x00acme\x00e1")[:macSize]), "acme"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := refused.secret.open(refused.text, refused.tenant)
			require.ErrorIs(t, err, wire.ErrNotFound)
			require.EqualError(t, err, wire.Errorf(wire.CodeNotFound, "no such lease or exec").Error(), "every refusal reads alike")
		})
	}
}

func TestChannelKeysDifferByClaim(t *testing.T) {
	t.Parallel()
	s := secret(strings.Repeat("s", MinSecret))
	a := s.channelKey(SandboxID{Name: "same", Claim: "uid-1"})
	require.NotEqual(t, a, s.channelKey(SandboxID{Name: "same", Claim: "uid-2"}))
	require.Equal(t, a, s.channelKey(SandboxID{Name: "same", Claim: "uid-1", Pod: "another"}), "every replica finds the key by the claim")
}
