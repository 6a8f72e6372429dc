package main

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"go/build/constraint"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
)

// group is tests that one call of go test runs: of one package, under one build tag.
type group struct {
	module string // the folder of the package's module
	pkg    string // the package's folder, below the module's
	name   string // and below the project's
	tag    string // empty: none
	tests  []test
}

func (g group) String() string {
	var names []string
	for _, t := range g.tests {
		names = append(names, t.name)
	}
	return g.name + " " + strings.Join(names, " ")
}

// find groups the tests by package and build tag, and returns those that no source file
// has.
func find(root string, tests []test) (groups []group, absent []test) {
	for _, t := range tests {
		tag, ok := tagOf(filepath.Join(root, t.pkg), t.top())
		if !ok {
			absent = append(absent, t)
			continue
		}
		module := moduleOf(root, t.pkg)
		pkg, _ := filepath.Rel(module, filepath.Join(root, t.pkg)) // one lies in the other
		i := slices.IndexFunc(groups, func(g group) bool { return g.name == t.pkg && g.tag == tag })
		if i < 0 {
			groups = append(groups, group{module: module, pkg: pkg, name: t.pkg, tag: tag})
			i = len(groups) - 1
		}
		groups[i].tests = append(groups[i].tests, t)
	}
	// What needs no cluster comes first.
	slices.SortStableFunc(groups, func(a, b group) int {
		return cmp.Or(cmp.Compare(a.tag, b.tag), cmp.Compare(a.name, b.name))
	})
	return groups, absent
}

// tagOf finds the file that has a test, and the tag that it is built with.
func tagOf(dir, name string) (tag string, ok bool) {
	files, _ := filepath.Glob(filepath.Join(dir, "*_test.go")) // the pattern is good
	declares := regexp.MustCompile(`(?m)^func ` + regexp.QuoteMeta(name) + `\(`)
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err == nil && declares.Match(text) {
			return tagIn(string(text)), true
		}
	}
	return "", false
}

// tagIn is the tag that a file's build constraint wants besides this machine's own.
func tagIn(text string) string {
	lines := bufio.NewScanner(strings.NewReader(text))
	for lines.Scan() {
		x, err := constraint.Parse(lines.Text())
		if err != nil {
			continue
		}
		own := func(tag string) bool { return tag == runtime.GOOS || tag == runtime.GOARCH || tag == "unix" }
		if x.Eval(own) {
			return ""
		}
		var tag string
		x.Eval(func(t string) bool {
			if !own(t) && tag == "" {
				tag = t
			}
			return true
		})
		return tag
	}
	return ""
}

// moduleOf is the folder of the module that a package belongs to.
func moduleOf(root, pkg string) string {
	for dir := filepath.Join(root, pkg); dir != root && dir != filepath.Dir(dir); dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
	}
	return root
}

// bound is how long one package's tests may take.
const bound = "28m"

// args are those of go test.
func (g group) args() []string {
	var names []string
	for _, t := range g.tests {
		if !slices.Contains(names, t.top()) {
			names = append(names, t.top())
		}
	}
	args := []string{"test", "-json", "-race", "-count=1", "-timeout", bound, "-run", "^(" + strings.Join(names, "|") + ")$"}
	if g.tag != "" {
		args = append(args, "-tags", g.tag)
	}
	return append(args, "./"+filepath.ToSlash(g.pkg))
}

// run runs the group's tests and judges them, as far as they came if it fails. The output
// of one that failed goes to out.
func (g group) run(ctx context.Context, out io.Writer) ([]result, error) {
	cmd := exec.CommandContext(ctx, "go", g.args()...)
	cmd.Dir = g.module
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	events, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	cmd.Stderr = out
	fmt.Fprintf(out, "%s: %d tests\n", g.name, len(g.tests))
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	seen, readErr := read(events)
	_ = cmd.Wait() // what failed is in the events, or missing from them
	if ctx.Err() != nil {
		readErr = ctx.Err()
	}
	if readErr != nil {
		readErr = fmt.Errorf("%s: %w", g.name, readErr)
	}
	return judge(g.tests, seen, mayBeSkipped), readErr
}
