// Package chaos breaks everything around the broker while programs run, and then
// holds what came of them against what must have come.
//
// All that happens follows from a seed: the programs, what they write, how they end,
// and which faults come in which order. When exactly the machine lets them happen
// does not.
//
//   - schedule.go draws the faults, program.go the programs.
//   - pattern.go is what programs write: bytes of which each tells its own place.
//   - record.go is what is noted while it goes on, judge.go reads it afterwards.
//   - The rest, with the build tag e2e, does it on the local cluster. `make chaos`
//     runs it; docs/reliability.md says what for.
package chaos
