package channel

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// encode is a message as the wire has it.
func encode(v any) []byte {
	var b bytes.Buffer
	_ = writeMessage(&b, v)
	return b.Bytes()
}

// lengthened is a message of n bytes that is JSON all the same.
func lengthened(v any, n int) []byte {
	b, _ := json.Marshal(v)
	b = append(b, bytes.Repeat([]byte{' '}, n-len(b))...)
	return append(binary.BigEndian.AppendUint16(nil, uint16(n)), b...)
}

func raw(text string) []byte {
	return append(binary.BigEndian.AppendUint16(nil, uint16(len(text))), text...)
}

func TestBadHellos(t *testing.T) {
	t.Parallel()
	with := func(change func(*hello)) []byte {
		h := goodHello()
		change(&h)
		return encode(h)
	}
	for name, tt := range map[string]struct {
		sent []byte
		want string // part of the error
		is   error
	}{
		"nothing":                      {nil, "hello", io.EOF},
		"half a length":                {[]byte{0}, "hello", io.ErrUnexpectedEOF},
		"half a message":               {encode(goodHello())[:20], "hello", io.ErrUnexpectedEOF},
		"no JSON":                      {raw("SSH-2.0-OpenSSH"), "invalid character", nil},
		"JSON of another kind":         {raw(`["version",1]`), "cannot unmarshal", nil},
		"an empty message":             {raw(""), "unexpected end of JSON", nil},
		"a byte more than the limit":   {lengthened(goodHello(), maxHandshake+1), "exceeds the limit of 1024", nil},
		"a length that promises 64 KB": {[]byte{0xff, 0xff}, "exceeds the limit of 1024", nil},
		"an older version":             {with(func(h *hello) { h.Version = 0 }), "speaks version 0", nil},
		"a newer version":              {with(func(h *hello) { h.Version = 2 }), "speaks version 2", nil},
		"no boot":                      {with(func(h *hello) { h.Boot = "" }), "malformed", nil},
		"a long boot":                  {with(func(h *hello) { h.Boot += "a" }), "malformed", nil},
		"no nonce":                     {with(func(h *hello) { h.Nonce = nil }), "malformed", nil},
		"a short nonce":                {with(func(h *hello) { h.Nonce = h.Nonce[1:] }), "malformed", nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var answered bytes.Buffer
			_, err := greet(halves{bytes.NewReader(tt.sent), &answered}, testKey(1), "")
			require.ErrorContains(t, err, tt.want)
			if tt.is != nil {
				require.ErrorIs(t, err, tt.is)
			}
			require.Zero(t, answered.Len(), "the key went out to a runner that is none")
		})
	}
}

// halves reads from one and writes to the other.
type halves struct {
	io.Reader
	io.Writer
}

func TestBadAnswers(t *testing.T) {
	t.Parallel()
	good := answer{Version: protocolVersion, Key: testKey(1), Nonce: randomBytes(keySize)}
	wrongVersion := good
	wrongVersion.Version = protocolVersion + 1
	for name, tt := range map[string]struct {
		sent []byte
		want string
		is   error
	}{
		"nothing":                    {nil, "answer", io.EOF},
		"half a message":             {encode(good)[:20], "answer", io.ErrUnexpectedEOF},
		"no JSON":                    {raw("GET / HTTP/1.1\r\n"), "invalid character", nil},
		"a key that is no base64":    {raw(`{"version":1,"key":"%%%"}`), "illegal base64", nil},
		"a byte more than the limit": {lengthened(good, maxHandshake+1), "exceeds the limit of 1024", nil},
		"another version":            {encode(wrongVersion), "speaks version 2, this runner 1", nil},
		"no proof":                   {encode(answer{Version: protocolVersion, Nonce: good.Nonce}), "key", ErrKeyRefused},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			id := NewIdentity()
			err := id.Accept(halves{bytes.NewReader(tt.sent), io.Discard})
			require.ErrorContains(t, err, tt.want)
			if tt.is != nil {
				require.ErrorIs(t, err, tt.is)
			}
			require.NoError(t, meet(t, id, testKey(2), "").broker, "the next broker finds a fresh runner")
		})
	}
}

// HTTP/2 follows on the same connection: a byte read too many would be lost to it.
func TestTheHandshakeLeavesWhatFollows(t *testing.T) {
	t.Parallel()
	r := bytes.NewReader(append(lengthened(goodHello(), maxHandshake), "PRI *"...))
	var h hello
	require.NoError(t, readMessage(r, &h), "a message of exactly the limit")
	rest, err := io.ReadAll(r)
	require.NoError(t, err)
	require.Equal(t, "PRI *", string(rest))
}

func TestABrokenConnectionIsNoRefusal(t *testing.T) {
	t.Parallel()
	err := NewIdentity().Accept(halves{strings.NewReader(""), brokenWriter{}})
	require.ErrorIs(t, err, errBroken)
	_, err = greet(halves{bytes.NewReader(encode(goodHello())), brokenWriter{}}, testKey(1), "")
	require.ErrorIs(t, err, errBroken)
	require.NotErrorIs(t, err, ErrKeyRefused)
	_, err = greet(halves{bytes.NewReader(encode(goodHello())), io.Discard}, testKey(1), "")
	require.ErrorIs(t, err, io.EOF, "the runner went away before its verdict")
	require.NotErrorIs(t, err, ErrKeyRefused)
}

var errBroken = errors.New("broken pipe")

type brokenWriter struct{}

func (brokenWriter) Write([]byte) (int, error) { return 0, errBroken }
