package runner_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sandbox-broker/sandbox-broker/internal/channel"
	"github.com/sandbox-broker/sandbox-broker/internal/corpus"
)

// runCase runs a program of the corpus.
func runCase(t *testing.T, c *channel.Client, p corpus.Case) corpus.Result {
	t.Helper()
	r, _, err := p.Exec(deadline(t), c, lease, p.Name)
	require.NoError(t, err)
	return r
}

// clear empties the workspace, so that both runs of a program find the same.
func clear(t *testing.T, dir string) {
	t.Helper()
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, f := range left {
		require.NoError(t, os.RemoveAll(filepath.Join(dir, f.Name())))
	}
}

// compare runs programs of the corpus in one language both ways, in a sandbox with that
// environment, and requires that they show the same. dir is empty.
func compare(t *testing.T, dir, lang string, env []string, which func(corpus.Case) bool) {
	t.Helper()
	needInterpreter(t, lang)
	cases, err := corpus.Cases()
	require.NoError(t, err)
	fresh := startRunnerIn(t, dir, "fresh", env...).open()
	spare := startRunnerIn(t, dir, "spare", append(env, "SANDBOX_SPARES="+lang)...).open()
	n := 0
	for _, p := range cases {
		if p.Language != lang || !which(p) {
			continue
		}
		n++
		t.Run(p.Name, func(t *testing.T) {
			before := waitSpare(t, spare, lang)
			want := runCase(t, fresh, p)
			clear(t, dir)
			got := runCase(t, spare, p)
			clear(t, dir)
			require.Empty(t, corpus.Diff(want, got))
			st, err := spare.Status(deadline(t))
			require.NoError(t, err)
			used := st.Spares[lang].Used - before.Used
			require.Equal(t, !p.Fresh, used == 1, "whether a spare was used")
		})
	}
	t.Logf("%d programs", n)
}

// Every program of the corpus behaves in a spare interpreter as in one of its own.
func TestSpareCorpus(t *testing.T) {
	for lang := range interpreters {
		t.Run(lang, func(t *testing.T) {
			// What makes a spare wait has to leave these as they are.
			env := []string{plainPath, "PYTHONPATH=/nowhere", "NODE_OPTIONS=--stack-trace-limit=10", "LAST=1"}
			compare(t, t.TempDir(), lang, env, func(corpus.Case) bool { return true })
		})
	}
}
