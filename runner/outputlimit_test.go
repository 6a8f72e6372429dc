package runner_test

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

// A program that writes more than it may is ended, and what it might write has come.
func TestOutputLimit(t *testing.T) {
	const limit = 100_000
	c := startRunner(t, plainPath).open()
	for name, tc := range map[string]struct {
		script    string
		retention wire.Retention
		reason    wire.Reason
		kept      int // of both outputs; -1: whatever a ring has sent
	}{
		"exactly":              {"head -c 60000 /dev/zero; head -c 40000 /dev/zero >&2", "", wire.ReasonExited, limit},
		"one byte more":        {"head -c 60000 /dev/zero; head -c 40001 /dev/zero >&2", "", wire.ReasonOutputLimit, limit},
		"and is over":          {"head -c 100001 /dev/zero; exit 3", "", wire.ReasonOutputLimit, limit},
		"without an end":       {"yes", "", wire.ReasonOutputLimit, limit},
		"both without an end":  {"yes & yes >&2", "", wire.ReasonOutputLimit, limit},
		"from a process apart": {"setsid yes & sleep 60", "", wire.ReasonOutputLimit, limit},
		"as a ring":            {"yes", wire.RetainNewest, wire.ReasonOutputLimit, -1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := run(t, c, strings.ReplaceAll(name, " ", "-"), wire.Program{Argv: []string{"sh", "-c", tc.script}, OutputLimit: limit, Retention: tc.retention}, "")
			require.Nil(t, r.err)
			require.Equal(t, tc.reason, r.ending.Reason, r.ending.Message)
			require.EqualValues(t, min(limit, r.ending.StdoutBytes+r.ending.StderrBytes), r.ending.StdoutBytes+r.ending.StderrBytes)
			if tc.reason == wire.ReasonOutputLimit {
				require.Contains(t, r.ending.Message, "100000 bytes")
			}
			if tc.kept >= 0 {
				require.Len(t, r.stdout+r.stderr, tc.kept)
				require.EqualValues(t, tc.kept, r.ending.StdoutBytes+r.ending.StderrBytes)
			}
		})
	}
}

// A program may write too much before its start is over, and the runner lives on.
func TestOutputLimitAtTheStart(t *testing.T) {
	const programs, atOnce = 200, 20
	c := startRunner(t, plainPath).open()
	var group sync.WaitGroup
	for worker := range atOnce {
		group.Go(func() {
			for i := range programs / atOnce {
				s, err := c.Exec(deadline(t), fmt.Sprintf("e-%d-%d", worker, i), start(wire.Program{Argv: []string{"sh", "-c", "yes"}, OutputLimit: 1}), nil)
				if !assert.NoError(t, err) {
					return
				}
				var f wire.Frame
				for err == nil && f.Kind != wire.KindExit {
					f, err = s.Recv()
				}
				if !assert.NoError(t, err) {
					return
				}
				assert.NoError(t, s.Send(wire.Frame{Kind: wire.KindDone}))
				_, err = s.Recv()
				assert.Equal(t, io.EOF, err, "the exec is forgotten")
				s.Close()
			}
		})
	}
	group.Wait()
}
