// Package corpus holds programs whose behaviour tests compare between two ways of
// running them: with an interpreter of their own, and with one started ahead.
package corpus

import (
	"bytes"
	"embed"
	"fmt"
	"path"
	"regexp"
	"strings"
)

// testdata has a file NAME.py, NAME.js or NAME.sh for each program, and beside it, where it
// wants them, NAME.stdin, NAME.args (one argument a line) and NAME.env.
//
//go:embed testdata
var testdata embed.FS

// Case is one program.
type Case struct {
	Name     string
	Language string
	Code     []byte
	Args     []string
	Env      map[string]string
	Stdin    *string // nil: none
	// Fresh says that the program has to get an interpreter of its own.
	Fresh bool
}

// Result is what a run showed.
type Result struct {
	Stdout, Stderr []byte
	Reason         string
	ExitCode       int
	Signal         string
}

// Cases are all programs. The names of those that must get an interpreter of
// their own begin with "fresh".
func Cases() ([]Case, error) {
	files, err := testdata.ReadDir("testdata")
	if err != nil {
		return nil, fmt.Errorf("corpus: %w", err)
	}
	var cases []Case
	for _, f := range files {
		lang, ok := map[string]string{".py": "python", ".js": "node", ".sh": "shell"}[path.Ext(f.Name())]
		if !ok {
			continue
		}
		name := strings.TrimSuffix(f.Name(), path.Ext(f.Name()))
		c := Case{Name: name, Language: lang, Env: map[string]string{}, Fresh: strings.HasPrefix(name, "fresh")}
		if c.Code, err = testdata.ReadFile("testdata/" + f.Name()); err != nil {
			return nil, fmt.Errorf("corpus: %w", err)
		}
		if b, err := testdata.ReadFile("testdata/" + name + ".stdin"); err == nil {
			s := string(b)
			c.Stdin = &s
		}
		if b, err := testdata.ReadFile("testdata/" + name + ".args"); err == nil {
			c.Args = strings.Split(string(b), "\n")
		}
		b, _ := testdata.ReadFile("testdata/" + name + ".env")
		for line := range strings.Lines(string(b)) {
			if k, v, ok := strings.Cut(strings.TrimSuffix(line, "\n"), "="); ok {
				c.Env[k] = v
			}
		}
		cases = append(cases, c)
	}
	return cases, nil
}

// chance is what differs between any two runs: where an object is in memory, and
// the process ID in Node's warnings; and what makes a run fresh.
var chance = regexp.MustCompile(`0x[0-9a-f]{8,}|\(node:[0-9]+\)|` + freshVar + "|" + spareVar + "|" + freshRun + "|" + spareRun)

// Diff says where two runs differ; empty: nowhere.
func Diff(fresh, spare Result) string {
	var b strings.Builder
	if fresh.Reason != spare.Reason || fresh.ExitCode != spare.ExitCode || fresh.Signal != spare.Signal {
		fmt.Fprintf(&b, "ending: fresh %s %d %s, spare %s %d %s\n",
			fresh.Reason, fresh.ExitCode, fresh.Signal, spare.Reason, spare.ExitCode, spare.Signal)
	}
	diffText(&b, "stdout", fresh.Stdout, spare.Stdout)
	diffText(&b, "stderr", fresh.Stderr, spare.Stderr)
	return b.String()
}

// around is how much of a text is shown from where it differs, in bytes.
const around = 400

func diffText(w *strings.Builder, what string, a, b []byte) {
	a, b = chance.ReplaceAll(a, []byte("~")), chance.ReplaceAll(b, []byte("~"))
	if bytes.Equal(a, b) {
		return
	}
	i := 0
	for i < len(a) && i < len(b) && a[i] == b[i] {
		i++
	}
	from := max(0, i-around/4)
	cut := func(t []byte) []byte { return t[min(from, len(t)):min(len(t), i+around)] }
	fmt.Fprintf(w, "%s differs at byte %d (of %d and %d)\n--- fresh\n%q\n--- spare\n%q\n", what, i, len(a), len(b), cut(a), cut(b))
}
