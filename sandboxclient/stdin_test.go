package sandboxclient_test

import (
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sandbox-broker/sandbox-broker/sandboxclient"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient/brokertest"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

// echo answers with what it read from stdin.
func echo(s *brokertest.Stream) {
	s.Respond(accepted)
	s.Stdout(s.ReadStdin(1 << 20))
	s.Exit(exited(0))
}

func TestStdinWithHalfClose(t *testing.T) {
	big := strings.Repeat("0123456789", 10_000)
	for name, in := range map[string]io.Reader{
		"short":         strings.NewReader("hello"),
		"empty":         strings.NewReader(""),
		"large":         strings.NewReader(big),
		"byte by byte":  iotest.OneByteReader(strings.NewReader("hello")),
		"data with EOF": iotest.DataErrReader(strings.NewReader("hello")),
	} {
		t.Run(name, func(t *testing.T) {
			c, _ := connect(t, brokertest.Each(echo))
			res, err := run(t, c, sandboxclient.Code{Stdin: in})
			require.NoError(t, err)
			want := map[string]string{"empty": "", "large": big}
			expected, special := want[name]
			if !special {
				expected = "hello"
			}
			assert.Equal(t, expected, string(res.Stdout))
		})
	}
}

func TestStdinAbsent(t *testing.T) {
	declared := make(chan bool, 1)
	c, _ := connect(t, brokertest.Each(func(s *brokertest.Stream) {
		declared <- s.Request.Program.Stdin
		s.Respond(accepted)
		s.Exit(exited(0))
	}))
	_, err := run(t, c, sandboxclient.Code{})
	require.NoError(t, err)
	assert.False(t, <-declared)
}

// countReader says how much was read of an endless input.
type countReader struct{ n int }

func (r *countReader) Read(p []byte) (int, error) {
	r.n += len(p)
	return len(p), nil
}

func TestStdinKeepsToItsCredit(t *testing.T) {
	const granted = 100_000
	c, _ := connect(t, brokertest.Each(func(s *brokertest.Stream) {
		s.Respond(accepted)
		s.GrantStdin(granted)
		var got uint64
		for got < granted {
			f, ok := s.Await(wire.KindStdin)
			if !ok || f.Offset != got {
				return
			}
			got += uint64(len(f.Payload))
		}
		// The program never reads: there is no more credit, and the end comes anyway.
		s.Exit(exited(0))
	}))
	endless := new(countReader)
	_, err := run(t, c, sandboxclient.Code{Stdin: endless})
	require.NoError(t, err)
	assert.Equal(t, granted, endless.n)
}

func TestStdinNeverReadAndNeverWritten(t *testing.T) {
	reading := make(chan struct{})
	c, _ := connect(t, brokertest.Each(func(s *brokertest.Stream) {
		s.Respond(accepted)
		s.GrantStdin(1000)
		<-reading
		s.Exit(exited(0))
	}))
	r, w := io.Pipe()
	in := readerFunc(func(p []byte) (int, error) {
		close(reading)
		return r.Read(p) // blocks until w is closed
	})
	_, err := run(t, c, sandboxclient.Code{Stdin: in})
	require.NoError(t, err, "a Read that blocks must not hold up the end")
	w.Close() // sets the copier free; the test fails if it is left
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

func TestStdinReadFails(t *testing.T) {
	for name, in := range map[string]io.Reader{
		"error":       iotest.ErrReader(errors.New("disk on fire")),
		"no progress": readerFunc(func([]byte) (int, error) { return 0, nil }),
	} {
		t.Run(name, func(t *testing.T) {
			c, _ := connect(t, brokertest.Each(echo))
			res, err := run(t, c, sandboxclient.Code{Stdin: in})
			require.ErrorContains(t, err, "reading the program's stdin")
			assert.NotNil(t, res)
		})
	}
}
