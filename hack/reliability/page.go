package main

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// test is one that the page names.
type test struct {
	pkg  string // the package's folder, below the project's
	name string // TestX, or TestX/part
}

func (t test) String() string { return t.pkg + " " + t.name }

// top is the name without its parts.
func (t test) top() string {
	name, _, _ := strings.Cut(t.name, "/")
	return name
}

var (
	code     = regexp.MustCompile("`([^`]+)`")
	testName = regexp.MustCompile(`^(Test|Fuzz)[A-Z]\S*$`)
	folder   = regexp.MustCompile(`^[a-z0-9_-]+(/[a-z0-9_-]+)*$`)
)

// testColumns are the headings of the columns that name tests.
var testColumns = []string{"test", "tests"}

var errNoTests = errors.New("no table names a test")

// parse finds the tests in the page's tables: in a column headed "test" or "tests", each
// name of a test in backticks belongs to the package that stands in backticks before it
// in the same cell. A test that is named twice is one.
func parse(page string) ([]test, error) {
	var found []test
	column := -1 // of the table that is being read
	for i, line := range strings.Split(page, "\n") {
		cells, ok := row(line)
		switch {
		case !ok:
			column = -1
		case column < 0:
			column = slices.IndexFunc(cells, func(c string) bool { return slices.Contains(testColumns, c) })
			if column < 0 {
				column = len(cells) // a table without tests
			}
		case column < len(cells):
			tests, err := parseCell(cells[column])
			if err != nil {
				return nil, fmt.Errorf("line %d: %w", i+1, err)
			}
			for _, t := range tests {
				if !slices.Contains(found, t) {
					found = append(found, t)
				}
			}
		}
	}
	if len(found) == 0 {
		return nil, errNoTests
	}
	return found, nil
}

// row splits a line of a table into its cells.
func row(line string) (cells []string, ok bool) {
	line = strings.TrimSpace(line)
	if !strings.HasPrefix(line, "|") || !strings.HasSuffix(line, "|") || len(line) < 2 {
		return nil, false
	}
	for c := range strings.SplitSeq(line[1:len(line)-1], "|") {
		cells = append(cells, strings.TrimSpace(c))
	}
	return cells, true
}

// parseCell reads the packages and tests of one cell; the rest is for people.
func parseCell(cell string) ([]test, error) {
	var out []test
	pkg := ""
	for _, m := range code.FindAllStringSubmatch(cell, -1) {
		switch word := m[1]; {
		case testName.MatchString(word) && pkg == "":
			return nil, fmt.Errorf("%s stands behind no package", word)
		case testName.MatchString(word):
			out = append(out, test{pkg, word})
		case folder.MatchString(word):
			pkg = word
		default:
			return nil, fmt.Errorf("`%s` is neither a package's folder nor a test", word)
		}
	}
	return out, nil
}
