package server_test

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/sandbox-broker/sandbox-broker/internal/processtest"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient"
)

// A program that is over at once is one line of the log, another one is two. Both tell
// what ran, by its hash only.
func TestWhatRanIsLogged(t *testing.T) {
	for source, tc := range map[string]struct {
		startLog time.Duration
		want     []string
	}{
		// On the slowest machine, too, it is over before.
		"echo fast":          {time.Hour, []string{"exec ended"}},
		"sleep 1; echo slow": {0, []string{"exec", "exec ended"}},
	} {
		t.Run(source, func(t *testing.T) {
			s := &site{t: t, provider: processtest.New(t), metrics: prometheus.NewRegistry(), log: &syncBuffer{}, startLog: tc.startLog}
			s.serve()
			_, err := s.client(tokenA).Run(t.Context(), sandboxclient.Code{Language: "shell", Source: source})
			require.NoError(t, err)
			hash := sha256.Sum256([]byte(source))
			var got []string
			require.Eventually(t, func() bool {
				got = nil
				for line := range strings.Lines(s.log.String()) {
					var l struct {
						Msg      string
						Language string
						Hash     string `json:"code_sha256"`
					}
					require.NoError(t, json.Unmarshal([]byte(line), &l))
					if l.Msg != "exec" && l.Msg != "exec ended" {
						continue
					}
					got = append(got, l.Msg)
					if len(got) == 1 {
						require.Equal(t, "shell", l.Language)
						require.Equal(t, hex.EncodeToString(hash[:]), l.Hash)
					}
				}
				return len(got) == len(tc.want)
			}, 5*time.Second, 10*time.Millisecond)
			require.Equal(t, tc.want, got)
			require.NotContains(t, s.log.String(), source)
		})
	}
}
