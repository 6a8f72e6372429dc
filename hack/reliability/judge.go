package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
)

// verdict is what came of a test.
type verdict string

const (
	passed  verdict = "pass"
	failed  verdict = "FAIL"
	skipped verdict = "SKIPPED"
	missing verdict = "MISSING"
)

// result is a test with its verdict.
type result struct {
	test
	verdict verdict
	output  string // of one that did not pass
	parts   int    // subtests that were skipped, and may be
}

// event is one of go test -json.
type event struct {
	Action string
	Test   string
	Output string
}

// seen is what the events said.
type seen struct {
	action map[string]string // the last word on a test: run, pass, fail, skip
	output map[string]string
	rest   string // output of no test: the build's, or a panic's
	broken bool   // the package failed, whatever its tests did: a TestMain, say
}

// maxOutput bounds what is kept of one test's output, in bytes: its first and its last
// half. What went wrong stands before a long log, or after one.
const maxOutput = 64 << 10

// shorten cuts the middle out of a text that is too long.
func shorten(text string) string {
	const half = maxOutput / 2
	if len(text) <= maxOutput {
		return text
	}
	return text[:half] + "\n...\n" + text[len(text)-half:]
}

// read reads the events to their end.
func read(r io.Reader) (seen, error) {
	s := seen{action: map[string]string{}, output: map[string]string{}}
	for d := json.NewDecoder(r); ; {
		var e event
		switch err := d.Decode(&e); {
		case errors.Is(err, io.EOF):
			return s, nil
		case err != nil:
			return s, fmt.Errorf("reading what go test says: %w", err)
		}
		switch e.Action {
		case "run", "pass", "fail", "skip":
			if e.Test != "" {
				s.action[e.Test] = e.Action
			} else if e.Action == "fail" {
				s.broken = true
			}
		case "output", "build-output":
			if e.Test == "" {
				s.rest = shorten(s.rest + e.Output)
			} else {
				s.output[e.Test] = shorten(s.output[e.Test] + e.Output)
			}
		}
	}
}

// mayBeSkipped are the parts that not every machine on which the tests must pass can do.
var mayBeSkipped = []test{
	// A container may make no control groups.
	{"broker/local", "TestTooMuchMemoryIsToldAsSuch/the_kernel_ends_the_program"},
}

// judge gives each test its verdict. One that began and did not end has failed: its
// process died. One with a part that was skipped was skipped, unless that may be.
func judge(tests []test, s seen, may []test) []result {
	var out []result
	for _, t := range tests {
		r := result{test: t}
		switch s.action[t.name] {
		case "pass":
			r.verdict = passed
		case "skip":
			r.verdict, r.output = skipped, s.output[t.name]
		case "":
			r.verdict, r.output = missing, s.rest
		default:
			r.verdict, r.output = failed, s.failure(t.name)
		}
		did := 0
		for _, name := range slices.Sorted(maps.Keys(s.action)) {
			switch {
			case !strings.HasPrefix(name, t.name+"/"):
			case s.action[name] != "skip":
				did++
			case slices.Contains(may, test{t.pkg, name}):
				r.parts++
			case r.verdict == passed || r.verdict == skipped:
				r.verdict = skipped
				r.output += s.output[name]
			}
		}
		if r.verdict == passed && r.parts > 0 && did == 0 {
			r.verdict, r.output = skipped, "each of its parts was skipped"
		}
		out = append(out, r)
	}
	if s.broken && !slices.ContainsFunc(out, func(r result) bool { return r.verdict == failed }) {
		for i := range out {
			if out[i].verdict == passed {
				out[i].verdict, out[i].output = failed, "its package failed:\n"+s.rest
			}
		}
	}
	return out
}

// failure is the output of a test and its subtests, and of its process.
func (s seen) failure(name string) string {
	text := s.output[name]
	for part, output := range s.output {
		if strings.HasPrefix(part, name+"/") && s.action[part] != "pass" {
			text += output
		}
	}
	return text + s.rest
}

// tally counts verdicts.
type tally struct{ passed, failed, skipped, missing int }

// add counts results, and prints each.
func (t *tally) add(results []result, out io.Writer) {
	for _, r := range results {
		note := ""
		if r.parts > 0 {
			note = fmt.Sprintf(" (%d parts skipped)", r.parts)
		}
		fmt.Fprintf(out, "%-8s %s%s\n", r.verdict, r.test, note)
		if r.output != "" {
			fmt.Fprintln(out, r.output)
		}
		switch r.verdict {
		case passed:
			t.passed++
		case skipped:
			t.skipped++
		case missing:
			t.missing++
		default:
			t.failed++
		}
	}
}

func (t tally) String() string {
	return fmt.Sprintf("%d passed, %d failed, %d skipped, %d missing", t.passed, t.failed, t.skipped, t.missing)
}

// err is nil if every test passed.
func (t tally) err() error {
	if t.failed+t.skipped+t.missing > 0 {
		return errors.New("not every test that is named has passed")
	}
	return nil
}
