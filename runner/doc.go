// Package runner is the supervisor inside a sandbox: the pod's first process.
//
// [Serve] owns everything that lasts: the execs, what they have written and not
// yet been asked for, and the duty to reap every orphan. It listens on an
// abstract Unix socket. Each [Connect], which the broker starts with pods/exec,
// hands the descriptors of its own standard input and output to the server and
// then only waits; so the broker's bytes go straight between the exec stream and
// the server, and a connection that breaks takes no exec with it.
//
// Programs have the runner's user ID. What keeps the runner's word good is that
// it is not dumpable (its memory cannot be read nor traced), that its binary is
// on a read-only mount, and that the broker's first connection, before any
// program ran, installed a key which every later one must prove
// (internal/channel). A program can still kill the runner; the broker then sees
// the pod end.
//
// An exec belongs to the lease that the first Bind named. It ends once: when its
// first process has ended, everything it started is killed, its output is read
// to the end, and the terminal event is kept until the reader has confirmed it.
package runner
