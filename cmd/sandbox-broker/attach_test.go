package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sandbox-broker/sandbox-broker/sandboxclient/brokertest"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

func TestAttach(t *testing.T) {
	scriptBroker(t, func(s *brokertest.Stream) {
		assert.Equal(t, wire.OpAttach, s.Request.Op)
		assert.Equal(t, "e1", s.Request.Exec)
		assert.EqualValues(t, 5, s.Request.Stdout.Acked)
		s.Respond(wire.Response{Exec: "e1"})
		s.Stdout("out")
		s.Stderr("err")
		s.Exit(wire.Ending{Reason: wire.ReasonExited, ExitCode: 4})
	})
	assert.Equal(t, result{4, "out", "err"}, call(t, nil, "attach", "--stdout-offset", "5", "e1"))
}

func TestAttachFailures(t *testing.T) {
	for name, tt := range map[string]struct {
		answer *wire.Error
		text   string
	}{
		"unknown":    {wire.Errorf(wire.CodeNotFound, "no such lease or exec"), "no such lease or exec"},
		"superseded": {&wire.Error{Code: wire.CodeConflict, Reason: wire.ReasonSuperseded, Message: "another client attached"}, "another command has its output now"},
		"expired":    {wire.Errorf(wire.CodeLeaseExpired, "the lease has ended"), "the lease has ended"},
	} {
		t.Run(name, func(t *testing.T) {
			scriptBroker(t, func(s *brokertest.Stream) { s.Fail(tt.answer) })
			got := call(t, nil, "attach", "e1")
			assert.Equal(t, exitBroker, got.code)
			assert.Contains(t, got.err, tt.text)
			assert.Equal(t, 1, strings.Count(got.err, "\n"))
		})
	}
	assert.Contains(t, call(t, nil, "attach").err, "name one HANDLE")
}

func TestPrintHandle(t *testing.T) {
	scriptBroker(t, func(s *brokertest.Stream) {
		s.Respond(wire.Response{Exec: "e1"})
		s.Stdout("out")
		s.Exit(wire.Ending{Reason: wire.ReasonExited})
	})
	for name, args := range map[string][]string{
		"run":  {"run", "--print-handle", "-e", "x"},
		"exec": {"exec", "--print-handle", "l1", "ls"},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, result{0, "out", "handle: e1\n"}, call(t, nil, args...))
		})
	}
}
