package channel

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
)

// protocolVersion is the channel's version; both ends must have the same.
const protocolVersion = 1

// maxHandshake bounds one handshake message, in bytes.
const maxHandshake = 1 << 10

// keySize is the length of a channel key and of each nonce, in bytes.
const keySize = 32

// Errors of the handshake.
var (
	// ErrKeyRefused says that one end did not prove the channel's key.
	ErrKeyRefused = errors.New("channel: the other end does not have this sandbox's key")
)

// hello is the runner's first message.
type hello struct {
	Version int    `json:"version"`
	Boot    string `json:"boot"` // random at each start of the runner
	Nonce   []byte `json:"nonce"`
	Keyed   bool   `json:"keyed"` // a key is installed already
}

// answer is the broker's reply: the key itself if none was installed, then a
// proof of it.
type answer struct {
	Version int    `json:"version"`
	Key     []byte `json:"key,omitempty"`
	Nonce   []byte `json:"nonce"`
	Proof   []byte `json:"proof"`
}

// verdict is the runner's last message.
type verdict struct {
	Proof []byte `json:"proof,omitempty"` // empty: refused
}

// Identity is the runner's side of the handshake: one boot and, once the first
// broker has come, one key. Its zero value is not usable; see [NewIdentity].
type Identity struct {
	boot string

	mu  sync.Mutex // guards key
	key []byte
}

// NewIdentity makes the identity of one start of a runner, with a random boot ID.
func NewIdentity() *Identity {
	return &Identity{boot: hex.EncodeToString(randomBytes(16))}
}

// Boot is the random name of this start of the runner.
func (id *Identity) Boot() string { return id.boot }

// Accept performs the runner's side on a new connection. An error means that the
// connection must be closed: the other end is not the broker that installed the key.
func (id *Identity) Accept(conn io.ReadWriter) error {
	id.mu.Lock()
	known := id.key
	id.mu.Unlock()

	h := hello{Version: protocolVersion, Boot: id.boot, Nonce: randomBytes(keySize), Keyed: known != nil}
	if err := writeMessage(conn, h); err != nil {
		return fmt.Errorf("channel: sending the hello: %w", err)
	}
	var a answer
	if err := readMessage(conn, &a); err != nil {
		return fmt.Errorf("channel: reading the answer: %w", err)
	}
	if a.Version != protocolVersion {
		return fmt.Errorf("channel: the broker speaks version %d, this runner %d", a.Version, protocolVersion)
	}
	key, ok := id.prove(a, h)
	if !ok {
		_ = writeMessage(conn, verdict{}) // the connection is closed either way
		return ErrKeyRefused
	}
	if err := writeMessage(conn, verdict{Proof: proof(key, "runner", h, a.Nonce)}); err != nil {
		return fmt.Errorf("channel: sending the proof: %w", err)
	}
	return nil
}

// prove checks the broker's proof against the installed key, or against the one
// it offers if none is installed; that one is installed only if the proof holds.
func (id *Identity) prove(a answer, h hello) (key []byte, ok bool) {
	id.mu.Lock()
	defer id.mu.Unlock()
	key = id.key
	if key == nil {
		key = a.Key
	}
	if len(key) != keySize || !hmac.Equal(a.Proof, proof(key, "broker", h, a.Nonce)) {
		return nil, false
	}
	id.key = key
	return key, true
}

// greet performs the broker's side and returns the runner's boot ID. With
// expectBoot empty the runner must be fresh, or hold this very key from an
// earlier connection of ours; otherwise its boot must be the expected one.
func greet(conn io.ReadWriter, key []byte, expectBoot string) (boot string, err error) {
	var h hello
	if err := readMessage(conn, &h); err != nil {
		return "", fmt.Errorf("channel: reading the runner's hello: %w", err)
	}
	if h.Version != protocolVersion {
		return "", fmt.Errorf("channel: the runner speaks version %d, this broker %d; use a runner image of the broker's release", h.Version, protocolVersion)
	}
	if len(h.Boot) != 32 || len(h.Nonce) != keySize {
		return "", errors.New("channel: the runner's hello is malformed")
	}
	if expectBoot != "" && h.Boot != expectBoot {
		return "", &BootChangedError{Expected: expectBoot, Got: h.Boot}
	}
	if expectBoot != "" && !h.Keyed {
		return "", fmt.Errorf("channel: boot %s came back without its key", h.Boot)
	}
	a := answer{Version: protocolVersion, Nonce: randomBytes(keySize)}
	if !h.Keyed {
		a.Key = key
	}
	a.Proof = proof(key, "broker", h, a.Nonce)
	if err := writeMessage(conn, a); err != nil {
		return "", fmt.Errorf("channel: answering the hello: %w", err)
	}
	var v verdict
	if err := readMessage(conn, &v); err != nil {
		return "", fmt.Errorf("channel: reading the verdict: %w", err)
	}
	if !hmac.Equal(v.Proof, proof(key, "runner", h, a.Nonce)) {
		return "", ErrKeyRefused
	}
	return h.Boot, nil
}

// BootChangedError says that another runner answers where a known one was: the
// sandbox was replaced by a blank one.
type BootChangedError struct{ Expected, Got string }

// Error names both boots.
func (e *BootChangedError) Error() string {
	return fmt.Sprintf("channel: runner boot %s answers in the place of %s: the sandbox was replaced", e.Got, e.Expected)
}

// proof binds a side's name to this handshake: both nonces and the boot.
func proof(key []byte, side string, h hello, brokerNonce []byte) []byte {
	m := hmac.New(sha256.New, key)
	for _, part := range [][]byte{[]byte("sandbox-broker channel v1"), []byte(side), []byte(h.Boot), h.Nonce, brokerNonce} {
		_ = binary.Write(m, binary.BigEndian, uint32(len(part))) // a hash's Write never fails
		m.Write(part)
	}
	return m.Sum(nil)
}

// writeMessage sends one JSON message with a two-byte length, in one write.
func writeMessage(w io.Writer, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	_, err = w.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(b))), b...))
	return err
}

// readMessage reads one message and not a byte more: HTTP/2 follows on the same
// connection.
func readMessage(r io.Reader, v any) error {
	var n [2]byte
	if _, err := io.ReadFull(r, n[:]); err != nil {
		return err
	}
	size := binary.BigEndian.Uint16(n[:])
	if size > maxHandshake {
		return fmt.Errorf("a handshake message of %d bytes exceeds the limit of %d", size, maxHandshake)
	}
	b := make([]byte, size)
	if _, err := io.ReadFull(r, b); err != nil {
		return err
	}
	return json.Unmarshal(b, v)
}

func randomBytes(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.Read(b) // crypto/rand never fails: it crashes the program instead
	return b
}
