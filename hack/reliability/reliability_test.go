package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTheTablesNameTests(t *testing.T) {
	const page = "# Title\n" +
		"| what | bound |\n|---|---|\n| `TestNotThisColumn` | `x` |\n\n" +
		"| promise | test |\n|---|---|\n" +
		"| one | `a/b` `TestOne`, `TestTwo/a_part`; and `c` `FuzzThree` |\n" +
		"| the same again, and none | `a/b` `TestOne` |\n" +
		"| prose | not built yet |\n\n" +
		"| # | report | what is done | tests |\n|---|---|---|---|\n| 1 | r | `TestNo` | `c` `TestFour` |\n"
	got, err := parse(page)
	require.NoError(t, err)
	require.Equal(t, []test{{"a/b", "TestOne"}, {"a/b", "TestTwo/a_part"}, {"c", "FuzzThree"}, {"c", "TestFour"}}, got)

	for name, bad := range map[string]string{
		"a test without a package": "| test |\n|---|\n| `TestX` |\n",
		"neither":                  "| test |\n|---|\n| `a` `Test x` |\n",
		"no tests":                 "| test |\n|---|\n| none |\n",
		"no table":                 "`a` `TestX`\n",
	} {
		_, err := parse(bad)
		require.Error(t, err, name)
	}
}

func TestTheProjectsPageCanBeRead(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", page))
	require.NoError(t, err)
	named, err := parse(string(text))
	require.NoError(t, err)
	_, absent := find(filepath.Join("..", ".."), named)
	require.Empty(t, absent, "tests that are named and do not exist")
	for _, part := range mayBeSkipped {
		require.Contains(t, named, test{part.pkg, part.top()}, "it is skipped from a test that nobody runs")
	}
}

func TestTestsAreGroupedByPackageAndTag(t *testing.T) {
	root := t.TempDir()
	for name, text := range map[string]string{
		"go.mod":           "module x\n",
		"a/a_test.go":      "package a\nfunc TestOne(t *testing.T) {}\nfunc TestOneMore(t *testing.T) {}\n",
		"a/linux_test.go":  "//go:build linux\n\npackage a\nfunc TestHere(t *testing.T) {}\n",
		"a/tagged_test.go": "//go:build e2e && linux\n\npackage a\nfunc TestTagged(t *testing.T) {}\n",
		"sub/go.mod":       "module y\n",
		"sub/b/b_test.go":  "package b\nfunc TestB(t *testing.T) {}\n",
	} {
		require.NoError(t, os.MkdirAll(filepath.Join(root, filepath.Dir(name)), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(root, name), []byte(text), 0o600))
	}
	groups, absent := find(root, []test{{"a", "TestTagged"}, {"a", "TestOne/x"}, {"sub/b", "TestB"}, {"a", "TestHere"}, {"a", "TestOne"}, {"a", "TestTwo"}, {"no", "TestX"}})
	require.Equal(t, []test{{"a", "TestTwo"}, {"no", "TestX"}}, absent)
	require.Len(t, groups, 3)
	require.Equal(t, []string{"test", "-json", "-race", "-count=1", "-timeout", bound, "-run", "^(TestOne|TestHere)$", "./a"}, groups[0].args())
	require.Equal(t, root, groups[0].module)
	require.Equal(t, filepath.Join(root, "sub"), groups[1].module)
	require.Contains(t, groups[1].args(), "./b")
	require.Equal(t, clusterTag, groups[2].tag)
	require.Contains(t, strings.Join(groups[2].args(), " "), "-tags e2e ./a")
}

func TestVerdicts(t *testing.T) {
	const events = `{"Action":"start"}
{"Action":"run","Test":"TestGood"}
{"Action":"run","Test":"TestGood/part"}
{"Action":"skip","Test":"TestGood/part"}
{"Action":"pass","Test":"TestGood/other"}
{"Action":"pass","Test":"TestGood"}
{"Action":"run","Test":"TestBad"}
{"Action":"run","Test":"TestBad/part"}
{"Action":"output","Test":"TestBad/part","Output":"why\n"}
{"Action":"fail","Test":"TestBad/part"}
{"Action":"fail","Test":"TestBad"}
{"Action":"run","Test":"TestSkipped"}
{"Action":"output","Test":"TestSkipped","Output":"no root\n"}
{"Action":"skip","Test":"TestSkipped"}
{"Action":"run","Test":"TestDied"}
{"Action":"output","Output":"panic: gone\n"}
`
	s, err := read(strings.NewReader(events))
	require.NoError(t, err)
	tests := []test{{"p", "TestGood"}, {"p", "TestBad"}, {"p", "TestSkipped"}, {"p", "TestDied"}, {"p", "TestMissing"}, {"p", "TestGood/part"}, {"p", "TestGood/none"}}
	var got []verdict
	results := judge(tests, s, []test{{"p", "TestGood/part"}})
	for _, r := range results {
		got = append(got, r.verdict)
	}
	require.Equal(t, []verdict{passed, failed, skipped, failed, missing, skipped, missing}, got)
	require.Equal(t, 1, results[0].parts)
	require.Contains(t, results[1].output, "why")
	require.Contains(t, results[3].output, "panic: gone")

	var total tally
	var out bytes.Buffer
	total.add(results[:1], &out)
	require.NoError(t, total.err())
	total.add(results, &out)
	require.Equal(t, tally{passed: 2, failed: 2, skipped: 2, missing: 2}, total)
	require.Error(t, total.err())
	require.Contains(t, out.String(), "SKIPPED  p TestSkipped\nno root\n")
	for _, one := range []tally{{failed: 1}, {skipped: 1}, {missing: 1}} {
		require.Error(t, one.err())
	}

	_, err = read(strings.NewReader(`{"Action":`))
	require.Error(t, err)
}

func TestLongOutputKeepsItsEnds(t *testing.T) {
	text := "first" + strings.Repeat("x", 2*maxOutput) + "last"
	short := shorten(text)
	require.Less(t, len(short), maxOutput+10)
	require.True(t, strings.HasPrefix(short, "first") && strings.HasSuffix(short, "last"))
	require.True(t, strings.HasPrefix(shorten(short+text), "first"), "also when there is more")
	require.Equal(t, "short", shorten("short"))
}

// The real go test, on a small module.
func TestTestsAreRun(t *testing.T) {
	root := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(root, "go.mod"), []byte("module small\n\ngo 1.24\n"), 0o600))
	require.NoError(t, os.MkdirAll(filepath.Join(root, "docs"), 0o755))
	require.NoError(t, os.MkdirAll(filepath.Join(root, "a"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(root, "a", "a_test.go"), []byte("package a\nimport \"testing\"\nfunc TestGood(t *testing.T) {}\nfunc TestSkip(t *testing.T) { t.Skip(\"no\") }\n"), 0o600))
	names := func(page string) {
		require.NoError(t, os.WriteFile(filepath.Join(root, "docs", "reliability.md"), []byte("| test |\n|---|\n| "+page+" |\n"), 0o600))
	}
	var out bytes.Buffer
	names("`a` `TestGood`")
	require.NoError(t, run(t.Context(), []string{"-root", root}, &out), out.String())
	require.Contains(t, out.String(), "1 passed, 0 failed")
	for _, page := range []string{"`a` `TestGood`, `TestSkip`", "`a` `TestGood`, `TestNone`", "`a` `TestGood/none`"} {
		names(page)
		require.Error(t, run(t.Context(), []string{"-root", root}, &out), page)
	}
}

// What the tests of a package say is not all: a TestMain can fail after them.
func TestAPackageThatFailsAndPartsThatAreSkipped(t *testing.T) {
	events := func(lines ...string) seen {
		s, err := read(strings.NewReader(strings.Join(lines, "\n")))
		require.NoError(t, err)
		return s
	}
	verdicts := func(s seen, may ...test) (all []verdict) {
		for _, r := range judge([]test{{name: "TestA"}}, s, may) {
			all = append(all, r.verdict)
		}
		return all
	}
	ran := `{"Action":"pass","Test":"TestA"}`
	require.Equal(t, []verdict{passed}, verdicts(events(ran, `{"Action":"pass"}`)))
	require.Equal(t, []verdict{failed}, verdicts(events(ran, `{"Action":"output","Output":"goroutines are left"}`, `{"Action":"fail"}`)))
	part, other := `{"Action":"skip","Test":"TestA/x"}`, `{"Action":"pass","Test":"TestA/y"}`
	require.Equal(t, []verdict{skipped}, verdicts(events(part, ran)))
	require.Equal(t, []verdict{skipped}, verdicts(events(part, other, ran)))
	may := test{name: "TestA/x"}
	require.Equal(t, []verdict{passed}, verdicts(events(part, other, ran), may))
	require.Equal(t, []verdict{skipped}, verdicts(events(part, ran), may), "nothing of it has run")
	require.Equal(t, []verdict{skipped}, verdicts(events(part, other, ran), test{"p", "TestA/x"}, test{name: "TestA/y"}), "others may")
	require.Equal(t, []verdict{failed}, verdicts(events(part, other, `{"Action":"fail","Test":"TestA"}`)))
	deep := events(`{"Action":"output","Test":"TestA/x/y","Output":"no groups\n"}`, `{"Action":"skip","Test":"TestA/x/y"}`, `{"Action":"pass","Test":"TestA/x"}`, ran)
	require.Equal(t, "no groups\n", judge([]test{{name: "TestA"}}, deep, nil)[0].output)
}
