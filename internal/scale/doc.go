// Package scale measures what a broker costs that holds ten thousand leases, on
// one machine and without a cluster.
//
// Three processes share the cores: this one is the broker with its edge, and
// nothing else; package simulated's child stands for all sandboxes; a second
// child, this program started again, is the callers, with the real client over
// real WebSockets on loopback. So what the broker takes can be told from what the
// others do, while the rates are those of all three together: a broker that has
// the cores for itself does more.
//
// [Run] goes through the stages of stages.go and yields figures, with the goals
// that some of them are held against. It is a measurement, not a test: nothing of
// it belongs into `make test`.
package scale
