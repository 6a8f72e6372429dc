// Package sandboxclient runs code in warm, isolated sandboxes that a
// sandbox-broker hands out. It feels like os/exec: zero values work, streams are
// io.Readers and io.Writers, and a context governs a whole call.
//
// [Client.Run] takes a sandbox from a pool, runs one program in it and has it
// destroyed. [Client.Acquire] takes a [Lease] on a sandbox for several programs;
// [Lease.Command] and [Lease.Script] make a [Cmd] for each, and [Lease.Files] moves
// files to and from it.
//
// A program that does not exit with 0 is an [*ExitError] and never anything
// else. What the broker refuses or fails to do is an [*Error]; compare it with
// [ErrExhausted], [ErrNotFound] and their like by errors.Is. A connection that
// ends under a program is a [*DisconnectedError]: the program may still be
// running. One that ends before the broker answered is [ErrStartUnknown], and
// nothing is started a second time.
//
// # How it works
//
// A Client keeps one WebSocket for many streams, and opens more only when the
// broker allows no further stream on it. Each connection has one goroutine that
// reads, one that sends heartbeats, and a lock under which frames are written.
// The reader never waits for a consumer: output is paid for with credit, so at
// most the credit that was granted lies in memory. Each program has one
// goroutine that watches its context and its end, and one for each of its
// streams. All of them end with the program, or at the latest with the client.
package sandboxclient
