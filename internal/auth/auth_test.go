package auth_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sandbox-broker/sandbox-broker/internal/auth"
)

// maxToken is the longest token that is looked at, in bytes.
const maxToken = 16 << 10

func TestBearer(t *testing.T) {
	t.Parallel()
	longest := strings.Repeat("t", maxToken)
	for name, tt := range map[string]struct {
		header []string
		token  string // empty: there is none
	}{
		"a token":                     {[]string{"Bearer abc.def-_~+/=="}, "abc.def-_~+/=="},
		"the scheme in small letters": {[]string{"bearer abc"}, "abc"},
		"the scheme in capitals":      {[]string{"BEARER abc"}, "abc"},
		"spaces around the token":     {[]string{"Bearer   abc  "}, "abc"},
		"the longest token":           {[]string{"Bearer " + longest}, longest},
		"the first of two headers":    {[]string{"Bearer one", "Bearer two"}, "one"},
		"no header":                   {nil, ""},
		"an empty header":             {[]string{""}, ""},
		"a scheme without a token":    {[]string{"Bearer"}, ""},
		"a scheme and a space":        {[]string{"Bearer "}, ""},
		"a scheme and many spaces":    {[]string{"Bearer    "}, ""},
		"a token without a scheme":    {[]string{"abc"}, ""},
		"a space before the scheme":   {[]string{" Bearer abc"}, ""},
		"another scheme":              {[]string{"Basic dXNlcjpwYXNz"}, ""},
		"a scheme that begins so":     {[]string{"BearerX abc"}, ""},
		"a token too long by a byte":  {[]string{"Bearer " + longest + "t"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := &http.Request{Header: http.Header{}}
			if tt.header != nil {
				r.Header["Authorization"] = tt.header
			}
			token, ok := auth.Bearer(r)
			require.Equal(t, tt.token != "", ok)
			require.Equal(t, tt.token, token)
		})
	}
}

// says answers every token alike and notes that it was asked.
type says struct {
	tenant string
	err    error
	asked  *[]string
	name   string
}

func (s says) Authenticate(_ context.Context, token string) (auth.Identity, error) {
	*s.asked = append(*s.asked, s.name+" "+token)
	if s.err != nil {
		return auth.Identity{}, s.err
	}
	return auth.Identity{Tenant: s.tenant}, nil
}

func TestChain(t *testing.T) {
	t.Parallel()
	down, later := errors.New("the API server is down"), errors.New("so is the other one")
	var (
		knows   = says{tenant: "a"}
		too     = says{tenant: "b"}
		unknown = says{err: auth.ErrUnknown}
		failing = says{err: down}
	)
	for name, tt := range map[string]struct {
		chain  []says
		tenant string
		err    error
		asked  int // how many are asked
	}{
		"nobody to ask":                             {nil, "", auth.ErrUnknown, 0},
		"the first that knows wins":                 {[]says{knows, too}, "a", nil, 1},
		"the second is asked what the first is not": {[]says{unknown, too, knows}, "b", nil, 2},
		"one that cannot tell stops nobody":         {[]says{failing, too}, "b", nil, 2},
		"nobody knows":                              {[]says{unknown, unknown}, "", auth.ErrUnknown, 2},
		"a failure is not a no, before one":         {[]says{failing, unknown}, "", down, 2},
		"a failure is not a no, after one":          {[]says{unknown, failing}, "", down, 2},
		"a failure is not a no, between two":        {[]says{unknown, failing, unknown}, "", down, 3},
		"one of two failures is told":               {[]says{failing, {err: later}}, "", later, 2},
		"a wrapped no is a no":                      {[]says{{err: errors.Join(auth.ErrUnknown)}, failing}, "", down, 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var asked, want []string
			var chain auth.Chain
			for i, s := range tt.chain {
				s.asked, s.name = &asked, string(rune('a'+i))
				chain = append(chain, s)
				if i < tt.asked {
					want = append(want, s.name+" token")
				}
			}
			id, err := chain.Authenticate(t.Context(), "token")
			require.Equal(t, want, asked)
			require.Equal(t, tt.tenant, id.Tenant)
			if tt.err == nil {
				require.NoError(t, err)
				return
			}
			require.ErrorIs(t, err, tt.err)
			require.Equal(t, errors.Is(tt.err, auth.ErrUnknown), errors.Is(err, auth.ErrUnknown), "401 or 503 hangs on it")
		})
	}
}

func hash(token string) string {
	h := sha256.Sum256([]byte(token))
	return hex.EncodeToString(h[:])
}

func TestStatic(t *testing.T) {
	t.Parallel()
	s, err := auth.NewStatic([]auth.StaticToken{
		{Token: "secret-of-a", Tenant: "a"},
		{SHA256: hash("secret-of-b"), Tenant: "b"},
		{SHA256: strings.ToUpper(hash("another-of-b")), Tenant: "b"},
	})
	require.NoError(t, err)
	for token, tenant := range map[string]string{"secret-of-a": "a", "secret-of-b": "b", "another-of-b": "b"} {
		id, err := s.Authenticate(t.Context(), token)
		require.NoError(t, err, token)
		require.Equal(t, tenant, id.Tenant)
		require.Equal(t, "token:"+hash(token)[:8], id.Subject, "the log can tell tokens apart")
		require.NotContains(t, id.Subject, token)
	}
	// Whoever has read the file with the hashes has no token.
	for _, token := range []string{"", "secret", "secret-of-a ", "SECRET-OF-A", hash("secret-of-b")} {
		id, err := s.Authenticate(t.Context(), token)
		require.ErrorIs(t, err, auth.ErrUnknown, token)
		require.Zero(t, id)
	}
	none, err := auth.NewStatic(nil)
	require.NoError(t, err)
	_, err = none.Authenticate(t.Context(), "")
	require.ErrorIs(t, err, auth.ErrUnknown)
}

func TestNewStaticNamesTheBadEntry(t *testing.T) {
	t.Parallel()
	good := auth.StaticToken{Token: "secret", Tenant: "a"}
	for name, tt := range map[string]struct {
		bad  auth.StaticToken
		want string
	}{
		"no tenant":              {auth.StaticToken{Token: "t"}, "entry 1: tenant"},
		"a bad tenant":           {auth.StaticToken{Token: "t", Tenant: "a b"}, "entry 1: tenant"},
		"no token":               {auth.StaticToken{Tenant: "a"}, "entry 1: exactly one of token and sha256"},
		"both":                   {auth.StaticToken{Token: "t", SHA256: hash("t"), Tenant: "a"}, "entry 1: exactly one of token and sha256"},
		"a short hash":           {auth.StaticToken{SHA256: hash("t")[2:], Tenant: "a"}, "entry 1: sha256"},
		"a long hash":            {auth.StaticToken{SHA256: hash("t") + "00", Tenant: "a"}, "entry 1: sha256"},
		"an odd hash":            {auth.StaticToken{SHA256: hash("t")[1:], Tenant: "a"}, "entry 1: sha256"},
		"a hash that is no hex":  {auth.StaticToken{SHA256: strings.Repeat("x", 64), Tenant: "a"}, "entry 1: sha256"},
		"the same token again":   {auth.StaticToken{Token: "secret", Tenant: "b"}, "entry 1: the token is listed twice"},
		"the same token, hashed": {auth.StaticToken{SHA256: hash("secret"), Tenant: "a"}, "entry 1: the token is listed twice"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, err := auth.NewStatic([]auth.StaticToken{good, tt.bad, {}})
			require.ErrorContains(t, err, tt.want)
			require.Nil(t, s)
			if tt.bad.Token != "" {
				require.NotContains(t, err.Error(), `"`+tt.bad.Token+`"`, "a token is not for the log")
			}
			_, err = auth.NewStatic([]auth.StaticToken{tt.bad, good})
			if strings.Contains(tt.want, "twice") {
				require.ErrorContains(t, err, tt.want, "the second of the two is named")
			} else {
				require.ErrorContains(t, err, "entry 0")
			}
		})
	}
}

func TestCheckTenant(t *testing.T) {
	t.Parallel()
	for name, ok := range map[string]bool{
		"a": true, "7": true, "Z9": true,
		"team-a": true, "org/team": true, "me@example.com": true, "ns:account": true, "a.b_c": true, "a--b": true,
		strings.Repeat("a", 253): true,

		"": false, strings.Repeat("a", 254): false,
		"-a": false, "a-": false, ".a": false, "a.": false, "/a": false, "a/": false, "@": false, ":": false, "_": false,
		"a b": false, " a": false, "a ": false, "a\tb": false, "a\x00b": false,
		// A line feed at the end is what a careless pattern lets through.
		"a\n": false, "a\nb": false, "\na": false,
		"a,b": false, "a=b": false, "a%b": false, `a\b`: false, `a"b`: false, "a*": false,
		"é": false, "aéa": false, "a\xffb": false, "ａ": false,
	} {
		err := auth.CheckTenant(name)
		if ok {
			require.NoError(t, err, "%q", name)
		} else {
			require.ErrorContains(t, err, "253 letters", "%q", name)
		}
	}
}
