package chaos

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

func TestEachByteOfAPatternTellsItsPlace(t *testing.T) {
	t.Parallel()
	p := pattern("abcdef")
	require.Equal(t, "abcdef:00000000\nabcdef:00000001\n", string(p.bytes(0, 32)))
	whole := p.bytes(0, 200)
	for from := range int64(40) {
		for to := from; to < 40; to++ {
			require.Equal(t, string(whole[from:to]), string(p.bytes(from, to)))
		}
	}
}

func TestTheCheckerSeesWhatIsWrong(t *testing.T) {
	t.Parallel()
	p := pattern("abcdef")
	whole := p.bytes(0, 3200)
	swapped := bytes.Clone(whole)
	swapped[1000] ^= 1
	for name, tc := range map[string]struct {
		came []byte
		want Delivery
	}{
		"all of it":        {whole, Delivery{3200, -1}},
		"a part":           {whole[:100], Delivery{100, -1}},
		"a changed byte":   {swapped, Delivery{3200, 1000}},
		"a lost record":    {append(whole[:320:320], whole[336:]...), Delivery{3184, 334}},
		"a doubled record": {append(whole[:320:320], whole[304:]...), Delivery{3216, 333}},
		"another's bytes":  {pattern("abcdex").bytes(0, 16), Delivery{16, 5}},
	} {
		for _, piece := range []int{1, 7, 16, 4096} {
			c := newChecker(p, 3200)
			for b := tc.came; len(b) > 0; b = b[min(piece, len(b)):] {
				_, err := c.Write(b[:min(piece, len(b))])
				require.NoError(t, err)
			}
			require.Equal(t, tc.want, c.delivery(), "%s in pieces of %d", name, piece)
		}
	}
	c := newChecker(p, 16)
	select {
	case <-c.full:
		t.Fatal("nothing has come")
	default:
	}
	_, _ = c.Write(whole[:16])
	<-c.full
}

// The programs do what the judge will hold them to, here without a broker.
func TestProgramsDoWhatTheySay(t *testing.T) {
	t.Parallel()
	programs := map[string]Program{
		"output":      {Stdout: 1000, Stderr: 100, Steps: 7},
		"nothing":     {Steps: 1, Code: 3},
		"few records": {Stdout: 2, Stderr: 1, Steps: 5, Pause: time.Millisecond, Code: 255},
		"a signal":    {Stdout: 1, Steps: 1, Reason: wire.ReasonSignaled, Signal: "SIGSEGV"},
		"killed":      {Stdout: 1, Steps: 1, Reason: wire.ReasonSignaled, Signal: "SIGKILL"},
		"terminated":  {Stdout: 1, Steps: 1, Reason: wire.ReasonSignaled, Signal: "SIGTERM"},
		"an echo":     {Stdout: 5000, Steps: 3, Echo: true, Code: 7},
	}
	for _, language := range []string{"python", "node", "shell"} {
		interpreter := map[string][]string{"python": {"python3", "-c"}, "node": {"node", "-e"}, "shell": {"bash", "-c"}}[language]
		if _, err := exec.LookPath(interpreter[0]); err != nil {
			t.Logf("%s is not here", interpreter[0])
			continue
		}
		for name, p := range programs {
			if p.Echo && language == "node" {
				continue // none is drawn
			}
			t.Run(fmt.Sprint(language, " ", name), func(t *testing.T) {
				t.Parallel()
				p.ID, p.Language = "id-1", language
				out, errs := newChecker(p.stdoutKey(), 0), newChecker(p.stderrKey(), 0)
				cmd := exec.Command(interpreter[0], append(interpreter[1:], p.Source())...)
				cmd.Dir, cmd.Stdout, cmd.Stderr = t.TempDir(), out, errs
				if p.Echo {
					cmd.Stdin = p.input()
				}
				err := cmd.Run()
				require.Equal(t, Delivery{size(p.Stdout), -1}, out.delivery())
				require.Equal(t, Delivery{size(p.Stderr), -1}, errs.delivery())
				var exit *exec.ExitError
				if errors.As(err, &exit) {
					err = nil
				}
				require.NoError(t, err)
				status, _ := cmd.ProcessState.Sys().(syscall.WaitStatus)
				if p.Signal != "" {
					require.True(t, status.Signaled(), status)
					require.Equal(t, p.Signal, "SIG"+strings.ToUpper(signalNames[status.Signal()]))
				} else {
					require.Equal(t, p.Code, status.ExitStatus())
				}
				ran, err := os.ReadFile(filepath.Join(cmd.Dir, ranFile))
				require.NoError(t, err)
				require.Equal(t, "id-1\n", string(ran))
			})
		}
	}
}

var signalNames = map[syscall.Signal]string{syscall.SIGSEGV: "segv", syscall.SIGKILL: "kill", syscall.SIGTERM: "term"}

func TestASourceGivesItsPattern(t *testing.T) {
	t.Parallel()
	p := Program{ID: "id", Stdout: 50, Steps: 4, Pause: time.Millisecond, Echo: true}
	got, err := io.ReadAll(p.input())
	require.NoError(t, err)
	require.Equal(t, string(p.stdoutKey().bytes(0, 800)), string(got))
}
