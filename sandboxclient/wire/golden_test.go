package wire_test

import (
	"encoding/hex"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

var update = flag.Bool("update", false, "write the golden files anew")

// goldenFrame is one frame with what it says.
type goldenFrame struct {
	from  string // server or client
	says  string
	frame wire.Frame
}

// goldenFrames are the frames of one run that prints "2\n" with its input given,
// and one frame of each other kind. docs/protocol.md shows the first of them.
func goldenFrames() []goldenFrame {
	return append(exchange(exampleRun),
		goldenFrame{"client", "cancel", wire.Frame{Kind: wire.KindCancel, Stream: 1}},
		goldenFrame{"client", "signal", wire.JSONFrame(wire.KindSignal, 1, wire.Signal{Name: "SIGTERM"})},
		goldenFrame{"server", "stderr from 4096", wire.Frame{Kind: wire.KindStderr, Stream: 1, Offset: 4096, Payload: []byte("oops\n")}},
		goldenFrame{"client", "stdout taken up to 131072, may go to 393216",
			wire.Window{FD: wire.Stdout, Acked: 131072, Limit: 393216}.Frame(1)},
		goldenFrame{"client", "signal with a number", wire.Frame{Kind: wire.KindSignal, Stream: 1, Offset: 7, Payload: wire.Marshal(wire.Signal{Name: "SIGINT"})}},
		goldenFrame{"client", "attach", wire.RequestFrame(2, wire.Request{
			Op: wire.OpAttach, Exec: "exec-1", Stdout: &wire.Credit{Acked: 2, Limit: 262146}, Stderr: &wire.Credit{Limit: 262144},
		}, nil)},
		goldenFrame{"client", "run: keep the newest output", wire.RequestFrame(3, wire.Request{
			Op: wire.OpRun, Pool: "python-gvisor", Program: &wire.Program{Argv: []string{"top"}, Retention: wire.RetainNewest},
		}, nil)},
		goldenFrame{"server", "stdout goes on at 4096", wire.Discarded{FD: wire.Stdout, To: 4096}.Frame(3)},
		goldenFrame{"server", "exit after a gap", wire.JSONFrame(wire.KindExit, 3, wire.Ending{Reason: wire.ReasonExited, StdoutBytes: 5000, StdoutDiscardedTo: 4096})},
		goldenFrame{"server", "goaway", wire.JSONFrame(wire.KindGoAway, 0, wire.GoAway{Reason: "restart"})},
		goldenFrame{"server", "error of a stream", wire.JSONFrame(wire.KindError, 3, wire.Error{
			Code: wire.CodeInvalid, Message: "timeout of 500s is out of range", Field: "program.timeout_ms", Limit: 300_000, RequestID: "r-42",
		})},
		goldenFrame{"client", "release", wire.RequestFrame(4, wire.Request{Op: wire.OpRelease, Lease: "lease-1"}, nil)},
		goldenFrame{"client", "exec: write a file", wire.RequestFrame(5, wire.Request{Op: wire.OpExec, Lease: "lease-1", Program: &wire.Program{
			Stdin: true, File: &wire.FileOp{Op: wire.FileWrite, Path: "data/in.csv", Mode: 0o600},
		}}, nil)},
		goldenFrame{"client", "exec: read a file", wire.RequestFrame(6, wire.Request{Op: wire.OpExec, Lease: "lease-1", Program: &wire.Program{
			File: &wire.FileOp{Op: wire.FileRead, Path: "out.csv"},
		}}, nil)},
		goldenFrame{"server", "stdout of a write", wire.Frame{Kind: wire.KindStdout, Stream: 5, Payload: append(wire.Marshal(wire.FileReport{Size: 2, SHA256: exampleSum}), '\n')}},
		goldenFrame{"server", "stderr of a read", wire.Frame{Kind: wire.KindStderr, Stream: 6, Payload: append(wire.Marshal(wire.FileReport{Size: 2, SHA256: exampleSum, Mode: 0o644}), '\n')}},
		goldenFrame{"server", "stderr of one that failed", wire.Frame{Kind: wire.KindStderr, Stream: 6, Payload: append(wire.Marshal(wire.FileFailure{
			Error: &wire.Error{Code: wire.CodeNotFound, Message: "opening the file: no such file or directory", Field: wire.FieldFilePath},
		}), '\n')}},
	)
}

// exampleSum is the SHA-256 of "1\n".
const exampleSum = "4355a46b19d348dc2f57c046f8ef63d4538ebb936000f3c9ee954a27460dd865"

var exampleRun = wire.Request{
	Op: wire.OpRun, Pool: "python-gvisor",
	Program: &wire.Program{Language: "python", Stdin: true},
}

// exchange is a whole run, frame by frame.
func exchange(run wire.Request) []goldenFrame {
	return []goldenFrame{
		{"server", "hello", wire.JSONFrame(wire.KindHello, 0, wire.Hello{Version: "v0.1.0", HeartbeatMS: 10_000, MaxStreams: 100})},
		{"client", "request: run code", wire.RequestFrame(1, run, []byte("print(int(input())+1)"))},
		{"server", "response: a sandbox is there", wire.JSONFrame(wire.KindResponse, 1, wire.Response{
			Lease: "lease-1", Exec: "exec-1", DetachGraceMS: 10_000, Isolation: "gvisor", RequestID: "r-1",
		})},
		{"server", "stdin may go to 65536", wire.Window{FD: wire.Stdin, Limit: 65536}.Frame(1)},
		{"client", "stdin from 0", wire.Frame{Kind: wire.KindStdin, Stream: 1, Payload: []byte("1\n")}},
		{"client", "stdin ends at 2", wire.Frame{Kind: wire.KindStdinEnd, Stream: 1, Offset: 2}},
		{"server", "stdout from 0", wire.Frame{Kind: wire.KindStdout, Stream: 1, Payload: []byte("2\n")}},
		{"server", "exit", wire.JSONFrame(wire.KindExit, 1, wire.Ending{Reason: wire.ReasonExited, StdoutBytes: 2, Complete: true})},
		{"client", "done", wire.Frame{Kind: wire.KindDone, Stream: 1}},
	}
}

// dump shows frames as the golden file and docs/protocol.md do.
func dump(frames []goldenFrame) string {
	var b strings.Builder
	for _, g := range frames {
		fmt.Fprintf(&b, "%s: %s\n%s", g.from, g.says, hex.Dump(g.frame.Append(nil)))
	}
	return b.String()
}

// The bytes on the wire are a promise: they change only on purpose.
func TestGoldenFrames(t *testing.T) {
	path := filepath.Join("testdata", "frames.golden")
	got := dump(goldenFrames())
	if *update {
		require.NoError(t, os.MkdirAll("testdata", 0o755))
		require.NoError(t, os.WriteFile(path, []byte(got), 0o644))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	assert.Equal(t, string(want), got, "run go test ./sandboxclient/wire -update if this is on purpose")
}

// protocolPage is where the protocol is described for people.
var protocolPage = filepath.Join("..", "..", "docs", "protocol.md")

// The example on the protocol's page is made of real frames.
func TestProtocolPageShowsTheExchange(t *testing.T) {
	page, err := os.ReadFile(protocolPage)
	require.NoError(t, err)
	const begin, end = "<!-- exchange -->\n", "<!-- /exchange -->"
	before, rest, ok := strings.Cut(string(page), begin)
	require.True(t, ok)
	shown, after, ok := strings.Cut(rest, end)
	require.True(t, ok)
	want := "```\n" + dump(exchange(exampleRun)) + "```\n"
	if *update {
		require.NoError(t, os.WriteFile(protocolPage, []byte(before+begin+want+end+after), 0o644))
		shown = want
	}
	assert.Equal(t, want, shown, "run go test ./sandboxclient/wire -update")
}

// Its tables name every kind and every code, with their numbers.
func TestProtocolPageIsComplete(t *testing.T) {
	page, err := os.ReadFile(protocolPage)
	require.NoError(t, err)
	for k := range 256 {
		if kind := wire.Kind(k); kind.Known() {
			assert.Contains(t, string(page), fmt.Sprintf("| `0x%02x` | %s |", k, kind))
		}
	}
	for status := range 600 {
		if code, ok := wire.CodeOfStatus(status); ok {
			assert.Contains(t, string(page), fmt.Sprintf("| `%s` | %d | %d |", code, status, 4000+status))
		}
	}
	for _, size := range []int{wire.MaxClientMessage, wire.MaxServerMessage} {
		n := fmt.Sprint(size)
		for i := len(n) - 3; i > 0; i -= 3 {
			n = n[:i] + "," + n[i:]
		}
		assert.Contains(t, string(page), n+" bytes")
	}
}
