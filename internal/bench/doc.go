// Package bench measures what a call costs on a cluster: a run through the broker
// beside one Job per call, a claim with an exec, and agent-sandbox's own client.
//
// All ways take turns in one run, on the same warm pool, image, RuntimeClass and
// resources, so that a ratio means something on a machine whose speed does not
// (suite.go). A way is one function that makes one call and says what its caller
// saw (job.go, claim.go, peer.go, broker.go, echo.go, stdout.go). Before a call
// that takes a sandbox the pool settles (settle.go), which is no part of the
// sample. Then the pool is driven as fast as it goes (load.go).
//
// What came of it is a Report: rows (stats.go), held against the goals
// (goals.go), as text, JSON and a chart (text.go, report.go, chart.go).
package bench
