package server_test

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/gorilla/websocket"
	"github.com/stretchr/testify/require"

	"github.com/sandbox-broker/sandbox-broker/broker/server"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

// Every route refuses a caller without a valid credential. The routes come from
// the server's own table, so a new one cannot escape.
func TestEveryRouteNeedsACredential(t *testing.T) {
	s := newSite(t)
	require.NotEmpty(t, s.edge.Patterns())
	for _, pattern := range s.edge.Patterns() {
		method, path, _ := strings.Cut(pattern, " ")
		for name, header := range map[string]string{
			"none": "", "unknown": "Bearer nobody's", "not bearer": "Basic " + tokenA, "empty": "Bearer ",
		} {
			t.Run(pattern+" "+name, func(t *testing.T) {
				req, err := http.NewRequest(method, s.http.URL+path, nil)
				require.NoError(t, err)
				if header != "" {
					req.Header.Set("Authorization", header)
				}
				res, err := http.DefaultClient.Do(req)
				require.NoError(t, err)
				defer func() { _ = res.Body.Close() }()
				require.Equal(t, http.StatusUnauthorized, res.StatusCode)
				require.NotEmpty(t, res.Header.Get("WWW-Authenticate"))
				body, err := io.ReadAll(res.Body)
				require.NoError(t, err)
				require.NotContains(t, string(body), "nobody's", "a credential is never repeated")
			})
		}
	}
}

// Every operation that takes a handle refuses another tenant's as if it did not
// exist. The operations come from the protocol's own list.
func TestAnotherTenantsHandleIsUnknown(t *testing.T) {
	s := newSite(t)
	a := s.dial(tokenA)
	a.request(1, wire.Request{Op: wire.OpAcquire, Pool: "test"}, "")
	var lease, exec wire.Response
	require.NoError(t, json.Unmarshal(a.until(wire.KindResponse).Payload, &lease))
	a.request(2, wire.Request{Op: wire.OpExec, Lease: lease.Lease, ID: "x", Program: &wire.Program{Argv: []string{"sleep", "60"}}}, "")
	require.NoError(t, json.Unmarshal(a.until(wire.KindResponse).Payload, &exec))

	b := s.dial(tokenB)
	stream := uint32(0)
	for _, op := range wire.Ops {
		for name, h := range map[string][2]string{
			"foreign": {lease.Lease, exec.Exec}, "forged": {lease.Lease + "x", exec.Exec + "x"}, "garbage": {"ö.ö", "."}, "long": {strings.Repeat("x", 5000), strings.Repeat("x", 5000)},
		} {
			stream++
			req := wire.Request{Op: op, Lease: h[0], Exec: h[1], Program: &wire.Program{Argv: []string{"true"}}}
			if op == wire.OpRun || op == wire.OpAcquire {
				continue // they take no handle
			}
			b.request(stream, req, "")
			var e wire.Error
			require.NoError(t, json.Unmarshal(b.until(wire.KindError).Payload, &e))
			require.Equal(t, wire.CodeNotFound, e.Code, "%s with a %s handle", op, name)
		}
	}
	// The owner is told that it is over once it is.
	a.request(3, wire.Request{Op: wire.OpRelease, Lease: lease.Lease}, "")
	a.until(wire.KindResponse)
	a.request(4, wire.Request{Op: wire.OpExec, Lease: lease.Lease, Program: &wire.Program{Argv: []string{"true"}}}, "")
	var e wire.Error
	for e.Code == "" {
		f := a.until(wire.KindError)
		if f.Stream == 4 {
			require.NoError(t, json.Unmarshal(f.Payload, &e))
		}
	}
	require.Equal(t, wire.CodeLeaseExpired, e.Code)
}

// A request that is wrong ends its stream with an error that names the field and
// the limit; the connection and the broker go on, and nothing was taken for it.
func TestBadRequests(t *testing.T) {
	second := pool()
	second.Name = "second" // so that none is the only one
	s := newSite(t, pool(), second)
	conn := s.dial(tokenA)
	program := func(p wire.Program) *wire.Program { return &p }
	file := func(op wire.FileOp, stdin bool) *wire.Program { return &wire.Program{File: &op, Stdin: stdin} }
	for i, tc := range []struct {
		name  string
		req   wire.Request
		code  string
		field string
		limit int64
	}{
		{"no op", wire.Request{}, "", "op", 0},
		{"unknown op", wire.Request{Op: "dance"}, "", "op", 0},
		{"no pool", wire.Request{Op: wire.OpRun, Program: program(wire.Program{Language: "shell"})}, "true", "pool", 0},
		{"unknown pool", wire.Request{Op: wire.OpAcquire, Pool: "nope"}, "", "pool", 0},
		{"no program", wire.Request{Op: wire.OpRun, Pool: "test"}, "", "program", 0},
		{"unknown language", wire.Request{Op: wire.OpRun, Pool: "test", Program: program(wire.Program{Language: "cobol"})}, "x", "program.language", 0},
		{"empty code", wire.Request{Op: wire.OpRun, Pool: "test", Program: program(wire.Program{Language: "shell"})}, "", "code", 1},
		{"code over the limit", wire.Request{Op: wire.OpRun, Pool: "test", Program: program(wire.Program{Language: "shell"})}, strings.Repeat("#", 4097), "code", 4096},
		{"timeout too short", wire.Request{Op: wire.OpRun, Pool: "test", Program: program(wire.Program{Language: "shell", TimeoutMS: 999})}, "x", "program.timeout_ms", 20000},
		{"timeout beyond the pool's", wire.Request{Op: wire.OpRun, Pool: "test", Program: program(wire.Program{Language: "shell", TimeoutMS: 20001})}, "x", "program.timeout_ms", 20000},
		{"timeout that overflows", wire.Request{Op: wire.OpRun, Pool: "test", Program: program(wire.Program{Language: "shell", TimeoutMS: 1 << 62})}, "x", "program.timeout_ms", 20000},
		{"negative timeout", wire.Request{Op: wire.OpRun, Pool: "test", Program: program(wire.Program{Language: "shell", TimeoutMS: -1})}, "x", "program.timeout_ms", 20000},
		{"bad variable", wire.Request{Op: wire.OpRun, Pool: "test", Program: program(wire.Program{Language: "shell", Env: map[string]string{"A=B": "x"}})}, "x", "program.env", 0},
		{"unknown file operation", wire.Request{Op: wire.OpRun, Pool: "test", Program: file(wire.FileOp{Op: "append", Path: "a"}, true)}, "", "program.file.op", 0},
		{"file without a path", wire.Request{Op: wire.OpRun, Pool: "test", Program: file(wire.FileOp{Op: wire.FileRead}, false)}, "", "program.file.path", 4096},
		{"file's path too long", wire.Request{Op: wire.OpRun, Pool: "test", Program: file(wire.FileOp{Op: wire.FileRead, Path: strings.Repeat("x", 4097)}, false)}, "", "program.file.path", 4096},
		{"file's mode too wide", wire.Request{Op: wire.OpRun, Pool: "test", Program: file(wire.FileOp{Op: wire.FileWrite, Path: "a", Mode: 0o1777}, true)}, "", "program.file.mode", 0o777},
		{"file and code", wire.Request{Op: wire.OpRun, Pool: "test", Program: file(wire.FileOp{Op: wire.FileRead, Path: "a"}, false)}, "x", "program.file", 0},
		{"lease too long", wire.Request{Op: wire.OpAcquire, Pool: "test", TTLMS: 1 << 40}, "", "ttl_ms", 3600000},
		{"window too large", wire.Request{Op: wire.OpRun, Pool: "test", Program: program(wire.Program{Language: "shell"}), Stdout: &wire.Credit{Limit: 1 << 40}}, "x", "stdout.limit", wire.MaxWindow},
		{"output that starts late", wire.Request{Op: wire.OpRun, Pool: "test", Program: program(wire.Program{Language: "shell"}), Stdout: &wire.Credit{Acked: 5, Limit: 10}}, "x", "stdout.acked", 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			conn.request(uint32(i+1), tc.req, tc.code)
			f := conn.read()
			require.Equal(t, wire.KindError, f.Kind)
			require.EqualValues(t, i+1, f.Stream)
			var e wire.Error
			require.NoError(t, json.Unmarshal(f.Payload, &e))
			require.Equal(t, wire.CodeInvalid, e.Code)
			require.Equal(t, tc.field, e.Field)
			require.Equal(t, tc.limit, e.Limit)
			require.NotEmpty(t, e.RequestID)
		})
	}
	require.Zero(t, s.provider.Taken(), "no sandbox was taken for what was refused")
	_, err := s.client(tokenA).Run(deadline(t), sandboxclient.Code{Pool: "test", Language: "shell", Source: "true"})
	require.NoError(t, err)
}

// What breaks the protocol itself ends the connection, with the error in full
// and a close code of 4000 + status; what it ran is detached and cleaned up.
func TestBrokenProtocol(t *testing.T) {
	s := newSite(t)
	running := wire.RequestFrame(1, shell(), []byte("echo up; sleep 60"))
	for name, tc := range map[string]struct {
		message []byte
		kind    int
		field   string
		close   int
	}{
		"short message":                {[]byte("short"), websocket.BinaryMessage, "frame", 4400},
		"text message":                 {[]byte(`{"op":"run"}`), websocket.TextMessage, "frame", 4400},
		"reserved bytes":               {append([]byte{0x12, 0, 1, 0}, make([]byte, 12)...), websocket.BinaryMessage, "frame.reserved", 4400},
		"unknown kind":                 {wire.Frame{Kind: 0x77, Stream: 1}.Append(nil), websocket.BinaryMessage, "frame.kind", 4400},
		"frame of no stream":           {wire.Frame{Kind: wire.KindCancel, Stream: 9}.Append(nil), websocket.BinaryMessage, "frame.stream", 4400},
		"frame of stream 0":            {wire.Frame{Kind: wire.KindCancel}.Append(nil), websocket.BinaryMessage, "frame.stream", 4400},
		"second start":                 {running.Append(nil), websocket.BinaryMessage, "frame.stream", 4409},
		"oversized control message":    {wire.Frame{Kind: wire.KindSignal, Stream: 1, Payload: make([]byte, wire.MaxControl+1)}.Append(nil), websocket.BinaryMessage, "frame.payload", 4400},
		"oversized data":               {wire.Frame{Kind: wire.KindStdin, Stream: 1, Payload: make([]byte, wire.MaxData+1)}.Append(nil), websocket.BinaryMessage, "frame.payload", 4400},
		"request longer than it is":    {wire.Frame{Kind: wire.KindRequest, Stream: 2, Offset: 99, Payload: []byte("{}")}.Append(nil), websocket.BinaryMessage, "request", 4400},
		"optional unknown is skipped":  {wire.Frame{Kind: 0x77, Stream: 1, Flags: wire.FlagOptional}.Append(nil), websocket.BinaryMessage, "", 0},
		"late frame of an ended one":   {wire.Frame{Kind: wire.KindCancel, Stream: 1}.Append(nil), websocket.BinaryMessage, "", 0},
		"stdin that was not announced": {wire.Frame{Kind: wire.KindStdin, Stream: 1, Payload: []byte("x")}.Append(nil), websocket.BinaryMessage, "stdin", -1},
		"stdin beyond its credit":      {wire.Frame{Kind: wire.KindStdin, Stream: 1, Offset: 1 << 30, Payload: []byte("x")}.Append(nil), websocket.BinaryMessage, "stdin.offset", -1},
		"window of bytes never sent":   {wire.Window{FD: wire.Stdout, Acked: 1 << 20, Limit: 1 << 20}.Frame(1).Append(nil), websocket.BinaryMessage, "window.acked", -1},
		"window for stdin":             {wire.Window{FD: wire.Stdin}.Frame(1).Append(nil), websocket.BinaryMessage, "window.fd", -1},
		"garbage as JSON":              {wire.Frame{Kind: wire.KindSignal, Stream: 1, Payload: []byte{0xff, 0, '{'}}.Append(nil), websocket.BinaryMessage, "signal", -1},
		"unknown signal":               {wire.JSONFrame(wire.KindSignal, 1, wire.Signal{Name: "SIGNOPE"}).Append(nil), websocket.BinaryMessage, "signal.name", -1},
	} {
		t.Run(name, func(t *testing.T) {
			conn := s.dial(tokenA)
			conn.send(running)
			conn.until(wire.KindStdout)
			require.NoError(t, conn.WriteMessage(tc.kind, tc.message))
			switch tc.close {
			case 0: // nothing happens: the connection still works
				conn.request(2, wire.Request{Op: "dance"}, "")
				for conn.until(wire.KindError).Stream != 2 {
				}
			case -1: // the stream's own failure
				var e wire.Error
				f := conn.until(wire.KindError)
				require.EqualValues(t, 1, f.Stream)
				require.NoError(t, json.Unmarshal(f.Payload, &e))
				require.Equal(t, wire.CodeInvalid, e.Code)
				require.Equal(t, tc.field, e.Field)
			default:
				if tc.field != "" {
					var e wire.Error
					f := conn.until(wire.KindError)
					require.Zero(t, f.Stream)
					require.NoError(t, json.Unmarshal(f.Payload, &e))
					require.Equal(t, tc.field, e.Field)
					require.Equal(t, tc.close, 4000+e.Code.Status())
				}
				require.Equal(t, tc.close, conn.closed())
			}
			_ = conn.Close()
			eventually(t, "no sandbox is left", func() bool { return s.provider.Live() == 0 })
		})
	}
}

// A message beyond every limit is not read to its end: the connection goes.
func TestMessageOverTheReadLimit(t *testing.T) {
	s := newSite(t)
	conn := s.dial(tokenA)
	// Only the header of a WebSocket message of 4 GiB (RFC 6455, 5.2), masked.
	_, err := conn.NetConn().Write([]byte{0x82, 0xff, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0})
	require.NoError(t, err)
	require.Equal(t, websocket.CloseMessageTooBig, conn.closed())
}

func TestBadRequestJSON(t *testing.T) {
	s := newSite(t)
	for name, text := range map[string]string{
		"not JSON": "{", "unknown key": `{"op":"run","tmeout":1}`, "wrong type": `{"op":7}`, "two values": `{"op":"run"} {}`, "binary": "\x00\xff",
	} {
		conn := s.dial(tokenA)
		conn.send(wire.Frame{Kind: wire.KindRequest, Stream: 1, Offset: uint64(len(text)), Payload: []byte(text)})
		var e wire.Error
		require.NoError(t, json.Unmarshal(conn.until(wire.KindError).Payload, &e), name)
		require.Equal(t, wire.CodeInvalid, e.Code, name)
		require.Equal(t, "request", e.Field, name)
	}
}

func TestTooManyStreams(t *testing.T) {
	cfg := pool()
	cfg.MaxSandboxes, cfg.QueueLength = 1, 1000
	s := newSite(t, cfg)
	defer s.provider.HoldTakes()()
	conn := s.dial(tokenA)
	const limit = 2 * server.MaxStreams
	for i := range limit + 1 {
		conn.request(uint32(i+1), wire.Request{Op: wire.OpAcquire, Pool: "test"}, "")
	}
	f := conn.until(wire.KindError)
	require.EqualValues(t, limit+1, f.Stream)
	var e wire.Error
	require.NoError(t, json.Unmarshal(f.Payload, &e))
	require.Equal(t, wire.CodeExhausted, e.Code)
}

func TestNothingAtOtherPaths(t *testing.T) {
	s := newSite(t)
	res, err := http.Get(s.http.URL + "/v2/secret")
	require.NoError(t, err)
	defer func() { _ = res.Body.Close() }()
	require.Equal(t, http.StatusNotFound, res.StatusCode)
}

func TestUpgradeNeedsTheSubprotocol(t *testing.T) {
	s := newSite(t)
	_, res, err := websocket.DefaultDialer.Dial("ws"+strings.TrimPrefix(s.http.URL, "http")+wire.Path, http.Header{"Authorization": {"Bearer " + tokenA}})
	require.Error(t, err)
	defer func() { _ = res.Body.Close() }()
	require.Equal(t, http.StatusBadRequest, res.StatusCode)
	body, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	require.Contains(t, string(body), wire.Subprotocol)
}

// Code must be found in no log and no metric; its SHA-256 must.
func TestCodeIsNotLogged(t *testing.T) {
	s := newSite(t)
	const secret = "p4ssw0rd-in-the-code"
	_, err := s.client(tokenA).Run(deadline(t), sandboxclient.Code{Pool: "test", Language: "shell", Source: "echo " + secret, Env: map[string]string{"KEY": secret}})
	require.NoError(t, err)
	eventually(t, "the program is logged", func() bool {
		return strings.Contains(s.log.String(), fmt.Sprintf("%x", sha256.Sum256([]byte("echo "+secret))))
	})
	require.NotContains(t, s.log.String(), secret)
	require.NotContains(t, s.log.String(), tokenA)
}
