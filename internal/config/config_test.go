package config

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const good = `
listen: 127.0.0.1:0
provider: {agentSandbox: {namespace: sandboxes}}
pools:
- name: p
  maxSandboxes: 3
  codeLimit: 2MiB
  timeout: {default: 10s, max: 1m}
`

func TestGoodFile(t *testing.T) {
	c, err := Parse("f.yaml", []byte(good))
	require.NoError(t, err)
	p := c.Pools[0].Broker().WithDefaults()
	require.Equal(t, 2<<20, p.CodeLimit)
	require.Equal(t, time.Minute, p.MaxTimeout)
	require.Equal(t, 10*time.Second, p.DefaultTimeout)
	require.Equal(t, "p", p.WarmPool)
	require.Equal(t, "default", c.Instance)
}

// Every refusal names the file, the line and the key.
func TestBadFiles(t *testing.T) {
	for name, tc := range map[string]struct{ text, want string }{
		"empty":                     {"", "f.yaml: the file is empty"},
		"not YAML":                  {"a: [", "f.yaml: yaml: line 1"},
		"unknown key":               {"listen: 127.0.0.1:1\nlsten: x\n", "f.yaml:2: lsten: unknown key; here auth, "},
		"unknown nested key":        {"pools:\n- name: p\n  timeout:\n    maximum: 3s\n", "f.yaml:4: pools[0].timeout.maximum: unknown key; here default, max are known"},
		"repeated key":              {"listen: a\nlisten: b\n", "f.yaml:2: listen: the key is given twice"},
		"not a mapping":             {"pools:\n- 7\n", "f.yaml:2: pools[0]: a mapping of "},
		"alias":                     {"auth: &a {}\ntls: *a\n", "f.yaml:2: tls: aliases are not allowed"},
		"wrong type":                {"pools:\n- name: p\n  stock: many\n", "line 3: cannot unmarshal"},
		"bad duration":              {"pools:\n- name: p\n  linger: 5\n", `line 3: "5" is no duration; write one like 30s`},
		"negative duration":         {"pools:\n- name: p\n  linger: -5s\n", "line 3: the duration \"-5s\" must be positive"},
		"bad size":                  {"pools:\n- name: p\n  codeLimit: 1TiB\n", "line 3: \"1TiB\" is no size"},
		"open without auth":         {"listen: :8443\nprovider: {agentSandbox: {namespace: n}}\npools: [{name: p}]\n", "f.yaml:1: listen: \":8443\" is reachable from other machines, but auth is empty: set auth.tokenReview or auth.tokensFile, or listen on 127.0.0.1"},
		"bad address":               {"listen: x\n", "f.yaml:1: listen: \"x\" is not HOST:PORT"},
		"half a certificate":        {"tls: {certFile: x}\n", "f.yaml:1: tls: certFile and keyFile belong together"},
		"no audience":               {"auth:\n  tokenReview: {}\n", "f.yaml:2: auth.tokenReview.audiences: at least one is needed"},
		"no provider":               {"listen: 127.0.0.1:1\n", "provider: exactly one of agentSandbox and local is needed"},
		"no namespace":              {"provider:\n  agentSandbox: {}\n", "f.yaml:2: provider.agentSandbox.namespace: the namespace"},
		"no pools":                  {"provider: {agentSandbox: {namespace: n}}\n", "pools: at least one is needed"},
		"twice the same pool":       {"provider: {agentSandbox: {namespace: n}}\npools:\n- name: p\n- name: p\n", "f.yaml:4: pools[1].name: the name \"p\" is taken"},
		"pool without a name":       {"provider: {agentSandbox: {namespace: n}}\npools:\n- stock: 1\n", "f.yaml:3: pools[0].name: a pool needs a name"},
		"refills below one":         {"provider: {agentSandbox: {namespace: n}}\npools:\n- name: p\n  refills: -1\n", "f.yaml:4: pools[0].refills: at least 1 is needed, not -1"},
		"stock over maximum":        {"provider: {agentSandbox: {namespace: n}}\npools:\n- name: p\n  maxSandboxes: 2\n  stock: 3\n", "f.yaml:5: pools[0].stock: a stock of 3 must lie between 0 and maxSandboxes (2)"},
		"timeout too long":          {"provider: {agentSandbox: {namespace: n}}\npools:\n- name: p\n  timeout:\n    max: 301s\n", "f.yaml:5: pools[0].timeout.max: 5m1s must lie between 1s and 5m0s"},
		"bad tenant":                {"provider: {agentSandbox: {namespace: n}}\npools:\n- name: p\n  tenants: [a, 'b c']\n", "f.yaml:4: pools[0].tenants[1]: \"b c\" is not"},
		"two providers":             {"provider: {agentSandbox: {namespace: n}, local: {}}\n", "f.yaml:1: provider: exactly one of"},
		"local keys elsewhere":      {"provider: {agentSandbox: {namespace: n}}\npools:\n- name: p\n  local: {}\n", "f.yaml:4: pools[0].local: it is for the provider local"},
		"reviews without a cluster": {"auth: {tokenReview: {audiences: [a]}}\nprovider: {local: {}}\n", "f.yaml:1: auth.tokenReview: it asks the cluster"},
		"unknown network":           {"provider: {local: {}}\npools:\n- name: p\n  local: {network: all}\n", "f.yaml:4: pools[0].local.network: \"all\" is neither none nor host"},
		"too little memory":         {"provider: {local: {}}\npools:\n- name: p\n  local: {memory: 1MiB}\n", "f.yaml:4: pools[0].local.memory: 1048576 bytes are too few"},
		"disk over memory":          {"provider: {local: {}}\npools:\n- name: p\n  local: {memory: 64MiB, disk: 65MiB}\n", "pools[0].local.disk: "},
		"too many warm":             {"provider: {local: {}}\npools:\n- name: p\n  maxSandboxes: 2\n  local: {warm: 3}\n", "pools[0].local.warm: 3 must lie between 0 and maxSandboxes"},
		"bad policy":                {"provider: {agentSandbox: {namespace: n}}\npools:\n- name: p\n  cold: maybe\n", "f.yaml:4: pools[0].cold: \"maybe\" is neither queue nor allow"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Parse("f.yaml", []byte(tc.text))
			require.ErrorContains(t, err, tc.want)
		})
	}
}

func TestLargeSizes(t *testing.T) {
	c, err := Parse("f.yaml", []byte("provider: {local: {}}\npools: [{name: p, local: {memory: 4GiB}}]\n"))
	require.NoError(t, err)
	require.EqualValues(t, 4<<30, c.Pools[0].Provider().Limits.Memory)
}

func TestTokensFile(t *testing.T) {
	write := func(text string) string {
		path := filepath.Join(t.TempDir(), "tokens.yaml")
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	s, err := LoadTokens(write("tokens: [{tenant: a, token: secret-token}]"))
	require.NoError(t, err)
	id, err := s.Authenticate(t.Context(), "secret-token")
	require.NoError(t, err)
	require.Equal(t, "a", id.Tenant)
	for text, want := range map[string]string{
		"tokens: []":                                             "the list is empty",
		"tokens: [{tenant: a}]":                                  "exactly one of token and sha256",
		"tokens: [{tenant: a, sha256: zz}]":                      "not 64 hex digits",
		"tokens: [{token: secret-token}]":                        "tenant",
		"tokens: [{tenant: a, token: secret-token, x: 1}]":       "unknown key",
		"tokens: [{tenant: a, token: t}, {tenant: b, token: t}]": "listed twice",
	} {
		_, err := LoadTokens(write(text))
		require.ErrorContains(t, err, want)
		require.NotContains(t, err.Error(), "secret-token", "an error never repeats a token")
	}
}

// FuzzParse: no file makes the parser crash, and what it accepts holds what it
// promises.
func FuzzParse(f *testing.F) {
	f.Add([]byte(good))
	f.Add([]byte("pools: [{name: p, timeout: {max: 3s}}]"))
	f.Add([]byte("a: &x [*x]"))
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := Parse("f", b)
		if err != nil {
			return
		}
		for _, p := range c.Pools {
			if err := p.Broker().WithDefaults().Check(); err != nil {
				t.Fatalf("an accepted pool does not hold: %v", err)
			}
		}
	})
}
