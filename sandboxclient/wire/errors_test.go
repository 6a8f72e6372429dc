package wire_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

func TestCodesAndStatuses(t *testing.T) {
	for code, status := range map[wire.Code]int{
		wire.CodeInvalid: 400, wire.CodeUnauthenticated: 401, wire.CodeForbidden: 403, wire.CodeNotFound: 404,
		wire.CodeConflict: 409, wire.CodeLeaseExpired: 410, wire.CodeExhausted: 429, wire.CodeInternal: 500,
		wire.CodeUnavailable: 503, wire.CodeNotReady: 504,
	} {
		assert.Equal(t, status, code.Status(), code)
		back, ok := wire.CodeOfStatus(status)
		assert.True(t, ok)
		assert.Equal(t, code, back)
	}
	assert.Equal(t, 500, wire.Code("unheard of").Status())
	_, ok := wire.CodeOfStatus(418)
	assert.False(t, ok)
}

func TestErrorText(t *testing.T) {
	for want, e := range map[string]*wire.Error{
		"not_found: no such pool":                wire.Errorf(wire.CodeNotFound, "no such %s", "pool"),
		"invalid (timeout): too long":            wire.Invalid("timeout", 300, "too long"),
		"exhausted: full [request r1]":           {Code: wire.CodeExhausted, Message: "full", RequestID: "r1"},
		"invalid (code): too large [request r2]": {Code: wire.CodeInvalid, Field: "code", Message: "too large", RequestID: "r2"},
	} {
		assert.Equal(t, want, e.Error())
	}
}

func TestErrorMatchesItsSentinelOnly(t *testing.T) {
	e := wire.Errorf(wire.CodeNotFound, "no such pool")
	wrapped := fmt.Errorf("running: %w", e)
	assert.ErrorIs(t, wrapped, wire.ErrNotFound)
	assert.NotErrorIs(t, wrapped, wire.ErrInvalid)
	assert.NotErrorIs(t, wrapped, wire.Errorf(wire.CodeNotFound, "no such lease"))
	assert.Same(t, e, wire.AsError(wrapped))
	assert.Nil(t, wire.AsError(errors.New("other")))
}

func TestRetryAfter(t *testing.T) {
	assert.Equal(t, 1500*time.Millisecond, (&wire.Error{RetryAfterMS: 1500}).RetryAfter())
}
