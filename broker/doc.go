// Package broker is the domain: who may run, how many, in what order, and what
// becomes of each sandbox.
//
// A [Pool] keeps a queue of callers and, ahead of them, a stock of sandboxes that
// it took from a [Provider]. Callers never take sandboxes themselves: one filler
// keeps as many takes under way as are missing, so a burst of callers cannot
// overshoot the pool's bound, and a caller that gives up cancels nobody's
// sandbox. What a take yields goes to the head of the queue, else to the stock.
//
// A [Lease] is a tenant's hold on one sandbox until it is released, expires or is
// lost. (It is not a coordination.k8s.io Lease.) The runner in the sandbox is the
// arbiter: the first Bind wins, so that no race between brokers or retries gives
// one sandbox to two leases. A sandbox that was leased is destroyed, never handed
// on.
//
// An exec's frames pass between the client and the runner without being stored:
// the broker adds the stream's number, enforces the credit, and replaces what a
// runner, which may be hostile, must not decide: whether all output was delivered,
// how long the program ran, and why a sandbox died.
//
// A client that disconnects only detaches. The package knows no Kubernetes and no
// WebSocket.
package broker
