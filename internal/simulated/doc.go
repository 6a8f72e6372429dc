// Package simulated provides sandboxes without a cluster, to see what a broker
// costs when there are ten thousand of them.
//
// A [Provider] takes as long for a claim, an attach, a write and the news of a
// death as real clusters did; see delays.go. What stands for the sandboxes is one
// child process, this program started again, in which a simulated runner answers
// for each: the handshake, the HTTP/2 and the frames on its connection are the
// real ones of package channel, what it "runs" is a [Program] that prints given
// text at given times. So this process holds the broker and nothing of the
// runners, and its memory and processor time are the broker's own.
//
// The child must be started by a program that calls [Main] first. It ends when
// its standard input does, so it cannot outlive its parent.
//
// It counts as a provider because it passes the suite of package conformance,
// simulated runners included. A real runner is not used: it would start real
// processes, and ten thousand of it do not fit beside what is measured.
package simulated
