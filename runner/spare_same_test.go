package runner_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sandbox-broker/sandbox-broker/internal/corpus"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

// named picks programs of the corpus.
func named(names ...string) func(corpus.Case) bool {
	return func(c corpus.Case) bool { return slices.Contains(names, c.Name) }
}

// In an image that names no locale Python adds one to its environment as it starts: it
// comes behind all that the exec was given.
func TestSpareCorpusWithoutALocale(t *testing.T) {
	for _, v := range os.Environ() {
		if name, value, _ := strings.Cut(v, "="); strings.HasPrefix(name, "LC_") || strings.HasPrefix(name, "LANG") {
			t.Setenv(name, value) // puts it back in the end
			require.NoError(t, os.Unsetenv(name))
		}
	}
	for lang := range interpreters {
		t.Run(lang, func(t *testing.T) {
			compare(t, t.TempDir(), lang, []string{plainPath}, func(c corpus.Case) bool {
				return strings.Contains(c.Name, "env") || named("identity", "state", "streams", "process", "node_identity", "node_process")(c)
			})
		})
	}
}

// In a workspace that is reached by a symbolic link programs see the same paths.
func TestSpareCorpusBehindASymlink(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "link")
	require.NoError(t, os.Symlink(t.TempDir(), dir))
	for lang := range interpreters {
		t.Run(lang, func(t *testing.T) {
			compare(t, dir, lang, []string{plainPath, "PWD=" + dir}, func(c corpus.Case) bool {
				return strings.Contains(c.Name, "identity") || strings.Contains(c.Name, "environ") ||
					named("node_argv", "node_require", "change_dir", "import_beside", "shell_source")(c)
			})
		})
	}
}

// A module that is imported ahead may change the directory: programs still start in theirs.
func TestPreloadLeavesTheDirectory(t *testing.T) {
	python := modules(t, map[string]string{"wanders": "import os\nos.chdir('/')"})
	node := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(node, "wanders.js"), []byte("process.chdir('/')"), 0o600))
	for lang, code := range map[string]string{
		"python": "import os, sys\nprint(os.getcwd(), sys.path[0], 'wanders' in sys.modules or None)",
		"node":   "console.log(process.cwd(), __dirname, require.cache[require.resolve('wanders')] ? 'True' : null)",
	} {
		t.Run(lang, func(t *testing.T) {
			needInterpreter(t, lang)
			s := startRunner(t, plainPath, "PYTHONPATH="+python, "NODE_PATH="+node, "SANDBOX_SPARES="+lang, "SANDBOX_PRELOAD="+lang+":wanders")
			c := s.open()
			require.Empty(t, waitSpare(t, c, lang).Problems)
			r := run(t, c, "x", wire.Program{Language: lang}, code)
			require.Equal(t, s.dir+" "+s.dir+" True\n", r.stdout, r.stderr)
			require.EqualValues(t, 1, spareStatus(t, c, lang).Used)
		})
	}
}
