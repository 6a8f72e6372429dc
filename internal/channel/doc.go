// Package channel is the private wire between the broker and the runner of one
// sandbox.
//
// One connection (today an exec stream of the cluster, or a socket on the same
// host) is held for the sandbox's life. It starts with a handshake in which the
// runner names its boot, the first broker to arrive installs a key, and every
// later one proves that it has that key; see handshake.go. Then it speaks HTTP/2
// without TLS, from the standard library, with the runner as the server: that
// gives multiplexing and flow control for each exec, bounded headers and streams
// in both directions, and pings, without code of our own.
//
// An exec is one full-duplex request. Both bodies are a sequence of the public
// protocol's frames, each with a length before it, so that the broker relays
// frames and does not translate them; see frames.go.
//
// Whoever is at the other end of the broker's side may be hostile: code in the
// sandbox has the runner's user ID. The limits in this package are the broker's
// protection; the runner's process protects the key.
package channel
