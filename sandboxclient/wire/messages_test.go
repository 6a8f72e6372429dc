package wire_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

// fullRequest has every field set.
var fullRequest = wire.Request{
	Op: wire.OpRun, Pool: "p", Lease: "l", ID: "i", Exec: "e", TTLMS: 1000,
	Program: &wire.Program{
		Language: "python", Argv: []string{"a", "ü", "\x00"}, Env: map[string]string{"K": "v"}, Dir: "d", TimeoutMS: 5, Stdin: true,
		File: &wire.FileOp{Op: wire.FileWrite, Path: "d/ü", Mode: 0o600},
	},
	Stdout: &wire.Credit{Acked: 1, Limit: 2}, Stderr: &wire.Credit{Limit: 1 << 60},
	Traceparent: "00-1", Tracestate: "a=b",
}

func TestRequestRoundTrip(t *testing.T) {
	for name, code := range map[string][]byte{
		"with code": []byte("print(1)\n\x00\xff"), "without": {},
	} {
		t.Run(name, func(t *testing.T) {
			f, err := wire.ParseFrame(wire.RequestFrame(4, fullRequest, code).Append(nil))
			require.NoError(t, err)
			req, gotCode, err := wire.ParseRequest(f)
			require.NoError(t, err)
			assert.Equal(t, fullRequest, req)
			assert.Equal(t, code, gotCode)
			assert.Equal(t, uint32(4), f.Stream)
		})
	}
}

func TestParseRequestRefuses(t *testing.T) {
	request := func(offset uint64, payload string) wire.Frame {
		return wire.Frame{Kind: wire.KindRequest, Stream: 1, Offset: offset, Payload: []byte(payload)}
	}
	tests := map[string]struct {
		frame wire.Frame
		field string
		limit int64
	}{
		"no JSON":             {request(0, "print(1)"), "request", 0},
		"binary garbage":      {request(4, "\xff\xfe\x00\x01"), "request", 0},
		"half a value":        {request(8, `{"op":"r`), "request", 0},
		"wrong type":          {request(8, `{"op":1}`), "request", 0},
		"a list":              {request(2, `[]`), "request", 0},
		"two values":          {request(5, `{} {}`), "request", 0},
		"a stray bracket":     {request(3, `{}}`), "request", 0},
		"unknown key":         {request(10, `{"pol":""}`), "request", 0},
		"number out of range": {request(13, `{"ttl_ms":1e9}`[:13]), "request", 0},
		"announces too much":  {request(9, `{}`), "request", 2},
		"JSON too long":       {request(wire.MaxControl+1, strings.Repeat(" ", wire.MaxControl+1)), "request", wire.MaxControl},
		"of another kind":     {wire.Frame{Kind: wire.KindExit, Offset: 9, Payload: []byte(`{}`)}, "request", 2},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			_, _, err := wire.ParseRequest(tt.frame)
			invalid(t, err, tt.field, tt.limit)
		})
	}
}

func TestUnmarshalNamesTheFrame(t *testing.T) {
	var s wire.Signal
	require.NoError(t, wire.Unmarshal(wire.KindSignal, []byte(` {"name":"SIGTERM"} `), &s))
	assert.Equal(t, "SIGTERM", s.Name)
	err := wire.Unmarshal(wire.KindSignal, []byte(`{"signal":"SIGTERM"}`), &s)
	invalid(t, err, "signal", 0)
	assert.ErrorContains(t, err, `unknown field "signal"`)
}

func TestMessagesRoundTrip(t *testing.T) {
	check := func(k wire.Kind, in, out any) {
		t.Helper()
		f, err := wire.ParseFrame(wire.JSONFrame(k, 2, in).Append(nil))
		require.NoError(t, err)
		require.NoError(t, wire.Unmarshal(k, f.Payload, out))
	}
	hello := wire.Hello{Version: "v1", HeartbeatMS: 10_000, MaxStreams: 100}
	var gotHello wire.Hello
	check(wire.KindHello, hello, &gotHello)
	assert.Equal(t, hello, gotHello)

	response := wire.Response{Lease: "l", Exec: "e", ExpiresMS: 5, DetachGraceMS: 6, Isolation: "gvisor", RequestID: "r"}
	var gotResponse wire.Response
	check(wire.KindResponse, response, &gotResponse)
	assert.Equal(t, response, gotResponse)

	ending := wire.Ending{
		Reason: wire.ReasonLost, ExitCode: 3, Signal: "SIGKILL", Cause: wire.CauseEvicted, Message: "m",
		StdoutBytes: 1 << 53, StderrBytes: 2, Complete: true,
		Usage: &wire.Usage{WallMS: 1, UserMS: 2, SystemMS: 3, MaxRSSBytes: 4},
	}
	var gotEnding wire.Ending
	check(wire.KindExit, ending, &gotEnding)
	assert.Equal(t, ending, gotEnding)

	failure := wire.Error{
		Code: wire.CodeExhausted, Message: "m", Field: "f", Limit: 1, Reason: "quota", RequestID: "r", RetryAfterMS: 10,
	}
	var gotFailure wire.Error
	check(wire.KindError, failure, &gotFailure)
	assert.Equal(t, failure, gotFailure)
}

func TestExitCodeZeroIsSaidAloud(t *testing.T) {
	var keys map[string]any
	require.NoError(t, json.Unmarshal(wire.Marshal(wire.Ending{Reason: wire.ReasonExited}), &keys))
	assert.Contains(t, keys, "exit_code")
	assert.Contains(t, keys, "complete")
}

func TestMarshalPanicsOnWhatHasNoJSON(t *testing.T) {
	assert.Panics(t, func() { wire.Marshal(make(chan int)) })
}

func FuzzParseRequest(f *testing.F) {
	f.Add(wire.RequestFrame(1, fullRequest, []byte("code")).Append(nil))
	f.Add(wire.RequestFrame(1, wire.Request{Op: wire.OpRelease, Lease: "l"}, nil).Append(nil))
	f.Add(wire.Frame{Kind: wire.KindRequest, Offset: 3, Payload: []byte("{}}")}.Append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		frame, err := wire.ParseFrame(b)
		if err != nil {
			return
		}
		req, code, err := wire.ParseRequest(frame)
		if err != nil {
			if e := wire.AsError(err); e == nil || e.Code != wire.CodeInvalid || e.Field == "" {
				t.Fatalf("%v is not an invalid error with a field", err)
			}
			return
		}
		again, code2, err := wire.ParseRequest(wire.RequestFrame(frame.Stream, req, code))
		if err != nil {
			// Escapes make the JSON longer, so it may have passed the limit.
			if len(wire.Marshal(req)) <= wire.MaxControl {
				t.Fatalf("%+v was read but cannot be sent: %v", req, err)
			}
			return
		}
		if !bytes.Equal(code, code2) || !bytes.Equal(wire.Marshal(req), wire.Marshal(again)) {
			t.Fatalf("%+v does not survive", req)
		}
	})
}
