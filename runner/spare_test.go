package runner_test

import (
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandbox-broker/sandbox-broker/internal/channel"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

// plainPath finds the interpreters themselves, not a developer's wrappers of them,
// which take longer than the interpreters.
const plainPath = "PATH=/usr/local/bin:/usr/bin:/bin"

var interpreters = map[string]string{"python": "python3", "node": "node"}

func needInterpreter(t testing.TB, lang string) {
	t.Helper()
	if _, err := exec.LookPath(interpreters[lang]); err != nil {
		t.Skipf("this machine has no %s", interpreters[lang])
	}
}

// waitSpare waits until a spare is ready, and returns the status.
func waitSpare(t testing.TB, c *channel.Client, lang string) channel.Spare {
	t.Helper()
	var s channel.Spare
	require.Eventually(t, func() bool {
		st, err := c.Status(t.Context())
		require.NoError(t, err)
		s = st.Spares[lang]
		return s.Ready
	}, 30*time.Second, 2*time.Millisecond)
	return s
}

func TestSpareQuick(t *testing.T) {
	c := startRunner(t, "SANDBOX_SPARES=python,node", plainPath).open()
	waitSpare(t, c, "python")
	waitSpare(t, c, "node")
	r := run(t, c, "p", wire.Program{Language: "python", Argv: []string{"a"}}, "import sys,os\nprint(sys.argv, sys.orig_argv, __file__, sys.path, os.environ, os.listdir('/proc/self/fd'), sys.modules.get('sitecustomize'), list(sys.path_importer_cache), open('/proc/self/stat').read())\ndef f(): 1/0\nf()\n")
	t.Logf("%+v", r)
	r = run(t, c, "n", wire.Program{Language: "node", Argv: []string{"a"}}, "console.log(process.argv, process.env, require.cache, module.parent, require('fs').readdirSync('/proc/self/fd'));null.x\n")
	t.Logf("%+v", r)
	st, _ := c.Status(t.Context())
	t.Logf("%+v", st)
	require.EqualValues(t, 1, st.Spares["python"].Used)
	require.EqualValues(t, 1, st.Spares["node"].Used)
}
