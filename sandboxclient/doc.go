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
// [ErrExhausted], [ErrNotFound] and their like by errors.Is. A connection that ends before
// the broker answered is [ErrStartUnknown], and nothing is started a second time.
//
// # When the connection breaks
//
// A program outlives its connection. The client connects again, to whichever broker
// answers, and goes on: writers see each byte once and in order, readers are read on
// from where they are, and the caller notices a pause at most. It tries as long as its
// context allows; without a deadline, as long as there can be something to come back
// to. Only when that fails is the error a [*DisconnectedError]: the program may still
// be running, and [Client.Attach] takes it up by its handle. Moving files is the
// exception: that ends with its connection.
//
// # How it works
//
// A Client keeps one WebSocket for many streams, and opens more only when the
// broker allows no further stream on it. Each connection has one goroutine that
// reads, one that sends heartbeats, and a lock under which frames are written.
// The reader never waits for a consumer: output is paid for with credit, so at
// most the credit that was granted lies in memory. Each program has one
// goroutine that watches its context and its end, one that sees it from connection to
// connection, and one or two for each of its streams. All of them end with the program,
// or at the latest with the client. Of the input a window is kept, to be sent again.
package sandboxclient
