// Package wire is the public protocol between a client and the broker, version 1.
//
// One WebSocket carries many streams. Every binary message is one [Frame]: a
// fixed 16-byte header (kind, flags, stream, offset) and a payload. A client
// opens a stream with a [KindRequest] frame; the stream ends with exactly one of
// a [KindError] frame, a [KindResponse] frame (for the calls that only answer),
// or a [KindExit] frame that the client confirms with [KindDone].
//
// Output and input are addressed by byte offset and paid for with credit: the
// receiver of bytes sends [KindWindow] frames that say how far it has consumed
// them and how far the sender may go. Both numbers are absolute, so a frame that
// is lost with its connection, or sent twice, does no harm.
//
// The package imports nothing outside the standard library; docs/protocol.md
// describes the same protocol for authors of other clients.
package wire
