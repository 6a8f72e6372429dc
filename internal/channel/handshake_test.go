package channel

import (
	"bytes"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// testTimeout bounds every call of a test that is expected to return.
const testTimeout = 20 * time.Second

func testKey(b byte) []byte { return bytes.Repeat([]byte{b}, keySize) }

// pipe is a connection with both ends. It breaks after testTimeout: a handshake
// that hangs fails its test instead of the whole run.
func pipe(t *testing.T) (ours, theirs net.Conn) {
	t.Helper()
	ours, theirs = net.Pipe()
	t.Cleanup(func() {
		_ = ours.Close()
		_ = theirs.Close()
	})
	require.NoError(t, ours.SetDeadline(time.Now().Add(testTimeout)))
	require.NoError(t, theirs.SetDeadline(time.Now().Add(testTimeout)))
	return ours, theirs
}

// met is how a handshake ended on each side.
type met struct {
	boot   string
	broker error
	runner error
}

// meet has a broker with the key greet the runner.
func meet(t *testing.T, id *Identity, key []byte, expectBoot string) met {
	t.Helper()
	ours, theirs := pipe(t)
	accepted := make(chan error, 1)
	go func() {
		accepted <- id.Accept(theirs)
		_ = theirs.Close() // as the runner does after an error; here the handshake is all
	}()
	var m met
	m.boot, m.broker = greet(ours, key, expectBoot)
	_ = ours.Close()
	m.runner = <-accepted
	return m
}

func TestTheFirstBrokerInstallsItsKey(t *testing.T) {
	t.Parallel()
	id := NewIdentity()
	require.Len(t, id.Boot(), 32)
	require.NotEqual(t, id.Boot(), NewIdentity().Boot(), "two starts have two names")

	first := meet(t, id, testKey(1), "")
	require.NoError(t, first.broker)
	require.NoError(t, first.runner)
	require.Equal(t, id.Boot(), first.boot)

	for name, expectBoot := range map[string]string{"that knows the boot": id.Boot(), "that does not": ""} {
		again := meet(t, id, testKey(1), expectBoot)
		require.NoError(t, again.broker, name)
		require.NoError(t, again.runner, name)
		require.Equal(t, id.Boot(), again.boot, name)
	}

	other := meet(t, id, testKey(2), "")
	require.ErrorIs(t, other.broker, ErrKeyRefused)
	require.ErrorIs(t, other.runner, ErrKeyRefused)
	require.Empty(t, other.boot)

	// A refusal changes nothing for the broker that has the key.
	require.NoError(t, meet(t, id, testKey(1), id.Boot()).broker)
}

func TestAKeyOfTheWrongLengthInstallsNothing(t *testing.T) {
	t.Parallel()
	for name, key := range map[string][]byte{"none": nil, "short": make([]byte, keySize-1), "long": make([]byte, keySize+1)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			id := NewIdentity()
			m := meet(t, id, key, "")
			require.ErrorIs(t, m.broker, ErrKeyRefused)
			require.ErrorIs(t, m.runner, ErrKeyRefused)
			require.NoError(t, meet(t, id, testKey(1), "").broker, "the runner is still fresh")
		})
	}
}

// A key counts only with its proof: half a handshake must not make the runner
// useless for the broker that comes next.
func TestAKeyWithoutItsProofInstallsNothing(t *testing.T) {
	t.Parallel()
	id := NewIdentity()
	ours, theirs := pipe(t)
	accepted := make(chan error, 1)
	go func() { accepted <- id.Accept(theirs) }()
	var h hello
	require.NoError(t, readMessage(ours, &h))
	require.NoError(t, writeMessage(ours, answer{Version: protocolVersion, Key: testKey(2), Nonce: randomBytes(keySize), Proof: []byte("none")}))
	var v verdict
	require.NoError(t, readMessage(ours, &v))
	require.Empty(t, v.Proof)
	require.ErrorIs(t, <-accepted, ErrKeyRefused)
	require.NoError(t, meet(t, id, testKey(1), "").broker, "the runner is still fresh")
}

func TestAnotherBootIsTold(t *testing.T) {
	t.Parallel()
	id := NewIdentity()
	require.NoError(t, meet(t, id, testKey(1), "").broker)

	expected := NewIdentity().Boot()
	m := meet(t, id, testKey(1), expected)
	var changed *BootChangedError
	require.ErrorAs(t, m.broker, &changed)
	require.Equal(t, BootChangedError{Expected: expected, Got: id.Boot()}, *changed)
	require.Error(t, m.runner)
}

// A program that took the runner's place can know its boot, but not the key. It
// must not be given the key by saying that it is fresh.
func TestAKnownBootWithoutItsKeyGetsNone(t *testing.T) {
	t.Parallel()
	ours, theirs := pipe(t)
	h := goodHello()
	answered := make(chan error, 1)
	go func() {
		_ = writeMessage(theirs, h)
		var a answer
		answered <- readMessage(theirs, &a)
	}()
	_, err := greet(ours, testKey(1), h.Boot)
	require.ErrorContains(t, err, "without its key")
	require.NoError(t, ours.Close())
	require.Error(t, <-answered, "nothing may be sent to it")
}

func goodHello() hello {
	return hello{Version: protocolVersion, Boot: strings.Repeat("ab", 16), Nonce: randomBytes(keySize)}
}

func TestARunnerThatCannotProveTheKeyIsRefused(t *testing.T) {
	t.Parallel()
	for name, forge := range map[string]func(h hello, a answer) verdict{
		"it says nothing":            func(hello, answer) verdict { return verdict{} },
		"it guesses":                 func(hello, answer) verdict { return verdict{Proof: randomBytes(32)} },
		"it has another key":         func(h hello, a answer) verdict { return verdict{Proof: proof(testKey(2), "runner", h, a.Nonce)} },
		"it sends the broker's back": func(_ hello, a answer) verdict { return verdict{Proof: a.Proof} },
		"it proves another handshake": func(h hello, _ answer) verdict {
			return verdict{Proof: proof(testKey(1), "runner", h, randomBytes(32))}
		},
		"it proves only half the proof": func(h hello, a answer) verdict { return verdict{Proof: proof(testKey(1), "runner", h, a.Nonce)[:16]} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ours, theirs := pipe(t)
			h := goodHello()
			h.Keyed = true
			got := make(chan answer, 1)
			go func() {
				var a answer
				_ = writeMessage(theirs, h)
				_ = readMessage(theirs, &a)
				got <- a
				_ = writeMessage(theirs, forge(h, a))
			}()
			boot, err := greet(ours, testKey(1), h.Boot)
			require.ErrorIs(t, err, ErrKeyRefused)
			require.Empty(t, boot)
			require.Empty(t, (<-got).Key, "a keyed runner is never sent the key")
		})
	}
}

// A program may have seen an earlier handshake's bytes; they open nothing.
func TestAnAnswerCannotBePlayedAgain(t *testing.T) {
	t.Parallel()
	id := NewIdentity()
	require.NoError(t, meet(t, id, testKey(1), "").broker)

	ours, theirs := pipe(t)
	var sent bytes.Buffer
	done := make(chan error, 1)
	go func() { done <- id.Accept(theirs) }()
	_, err := greet(tee{ours, &sent}, testKey(1), "")
	require.NoError(t, err)
	require.NoError(t, <-done)

	ours, theirs = pipe(t)
	go func() { done <- id.Accept(theirs) }()
	var h hello
	require.NoError(t, readMessage(ours, &h))
	_, err = ours.Write(sent.Bytes())
	require.NoError(t, err)
	var v verdict
	require.NoError(t, readMessage(ours, &v))
	require.Empty(t, v.Proof)
	require.ErrorIs(t, <-done, ErrKeyRefused)
}

// tee keeps what is written.
type tee struct {
	net.Conn
	sent *bytes.Buffer
}

func (c tee) Write(b []byte) (int, error) {
	c.sent.Write(b)
	return c.Conn.Write(b)
}

func TestOneOfManyFirstKeysWins(t *testing.T) {
	t.Parallel()
	const brokers = 16
	id := NewIdentity()
	var greeted sync.WaitGroup // until every broker was told that the runner is fresh
	greeted.Add(brokers)
	results := make([]met, brokers)
	var all sync.WaitGroup
	for i := range brokers {
		ours, theirs := pipe(t)
		all.Go(func() { results[i].runner = id.Accept(theirs) })
		all.Go(func() { results[i].boot, results[i].broker = greet(gated{ours, &greeted}, testKey(byte(i)), "") })
	}
	all.Wait()

	winner := -1
	for i, m := range results {
		if m.broker == nil {
			require.Equal(t, -1, winner, "two brokers believe that they hold the runner")
			require.NoError(t, m.runner)
			winner = i
			continue
		}
		require.ErrorIs(t, m.broker, ErrKeyRefused)
		require.ErrorIs(t, m.runner, ErrKeyRefused)
	}
	require.NotEqual(t, -1, winner, "nobody holds the runner")
	for i := range brokers {
		m := meet(t, id, testKey(byte(i)), id.Boot())
		require.Equal(t, i == winner, m.broker == nil, "broker %d comes again, %d won", i, winner)
	}
}

// gated holds the broker's answer back until all have their hello.
type gated struct {
	net.Conn
	all *sync.WaitGroup
}

func (c gated) Write(b []byte) (int, error) {
	c.all.Done()
	c.all.Wait()
	return c.Conn.Write(b)
}
