package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
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
	parts   int    // subtests that were skipped: what does not apply to a provider, say
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
}

// maxOutput bounds what is kept of one test's output, in bytes: its end.
const maxOutput = 64 << 10

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
			}
		case "output", "build-output":
			text := &s.rest
			kept := s.output[e.Test]
			if e.Test != "" {
				text = &kept
			}
			*text += e.Output
			if len(*text) > maxOutput {
				*text = (*text)[len(*text)-maxOutput:]
			}
			if e.Test != "" {
				s.output[e.Test] = kept
			}
		}
	}
}

// judge gives each test its verdict. One that began and did not end has failed: its
// process died.
func judge(tests []test, s seen) []result {
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
		for name, action := range s.action {
			if action == "skip" && strings.HasPrefix(name, t.name+"/") {
				r.parts++
			}
		}
		out = append(out, r)
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
			note = fmt.Sprintf(" (%d parts do not apply)", r.parts)
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
