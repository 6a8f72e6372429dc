package hostile

import (
	"bufio"
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandbox-broker/sandbox-broker/sandboxclient"
)

// Witness is a program in an honest sandbox, which must not notice what others do. Its
// methods are for one goroutine.
type Witness struct {
	in      io.WriteCloser
	out     *bufio.Reader
	slowest time.Duration
}

const (
	// answerWithin is how soon a witness's echo must be back, whatever others do, also
	// on a machine whose processors they keep busy.
	answerWithin = 30 * time.Second
	// askEvery is the pause between two questions.
	askEvery = 50 * time.Millisecond
	// witnessLife bounds the whole of it; pools allow no program more by default.
	witnessLife = 5 * time.Minute
)

// Attack runs the program in a lease, under the eyes of a witness, and checks that it ends
// as it can, at most late after its timeout.
func (p Program) Attack(ctx context.Context, t *testing.T, lease *sandboxclient.Lease, w *Witness, late time.Duration) sandboxclient.Ending {
	t.Helper()
	var out strings.Builder
	cmd := lease.Script("python", p.Source)
	cmd.Timeout = p.Timeout
	if p.Prints != "" {
		cmd.Stdout, cmd.Stderr = &out, &out
	}
	began, ended := time.Now(), make(chan error, 1)
	go func() { ended <- cmd.Run(ctx) }()
	n := w.Until(t, ended)
	t.Logf("%s after %s: %s %s", n.Reason, time.Since(began).Round(10*time.Millisecond), n.Cause, n.Message)
	require.Contains(t, p.Reasons, n.Reason)
	require.Less(t, time.Since(began), p.Timeout+late)
	if n.Reason == sandboxclient.ReasonLost {
		require.False(t, n.Complete)
	}
	if p.Prints != "" {
		require.Equal(t, p.Prints, out.String())
	}
	if p.Survives {
		require.True(t, n.Complete)
	}
	return n
}

// NewWitness starts the witness in a lease. At the test's end it must end well.
func NewWitness(t *testing.T, lease *sandboxclient.Lease) *Witness {
	t.Helper()
	in, w := io.Pipe()
	r, out := io.Pipe()
	cmd := lease.Command("cat")
	cmd.Stdin, cmd.Stdout, cmd.Timeout = in, out, witnessLife
	ctx, cancel := context.WithTimeout(context.Background(), witnessLife)
	ended := make(chan error, 1)
	go func() {
		err := cmd.Run(ctx)
		_ = out.CloseWithError(errors.Join(errors.New("the witness has ended"), err))
		ended <- err
	}()
	t.Cleanup(func() {
		defer cancel()
		_ = w.Close()
		require.NoError(t, <-ended, "the honest program ends well")
	})
	wit := &Witness{in: w, out: bufio.NewReader(r)}
	wit.Answers(t)
	return wit
}

// Answers has the program echo a line.
func (w *Witness) Answers(t *testing.T) {
	t.Helper()
	const line = "still here\n"
	began := time.Now()
	_, err := io.WriteString(w.in, line)
	require.NoError(t, err)
	got, err := w.out.ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, line, got)
	took := time.Since(began)
	require.Less(t, took, answerWithin)
	w.slowest = max(w.slowest, took)
}

// Until asks until another program has ended, and returns that one's ending.
func (w *Witness) Until(t *testing.T, ended <-chan error) sandboxclient.Ending {
	t.Helper()
	w.slowest = 0
	tick := time.NewTicker(askEvery)
	defer tick.Stop()
	for {
		w.Answers(t)
		select {
		case err := <-ended:
			w.Answers(t)
			t.Logf("the slowest answer of an honest program meanwhile took %s", w.slowest.Round(time.Millisecond))
			var exit *sandboxclient.ExitError
			if errors.As(err, &exit) {
				return exit.Ending
			}
			require.NoError(t, err)
			return sandboxclient.Ending{Reason: sandboxclient.ReasonExited, Complete: true}
		case <-tick.C:
		}
	}
}
