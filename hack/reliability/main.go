// Command reliability runs every test that docs/reliability.md names, and fails if one of
// them fails, is skipped, also in part, or does not exist: what the page promises is what is
// tested.
//
//	go run ./hack/reliability [-without-cluster] [-list]
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
)

// page is what names the tests, below the project's folder.
const page = "docs/reliability.md"

// clusterTag is the build tag of tests that need the local cluster.
const clusterTag = "e2e"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "reliability:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("reliability", flag.ContinueOnError)
	root := flags.String("root", ".", "the project's folder")
	without := flags.Bool("without-cluster", false, "leave out the tests that need the local cluster")
	list := flags.Bool("list", false, "only list the tests, by package")
	if err := flags.Parse(args); err != nil {
		return err
	}
	text, err := os.ReadFile(filepath.Join(*root, page))
	if err != nil {
		return err
	}
	named, err := parse(string(text))
	if err != nil {
		return fmt.Errorf("%s: %w", page, err)
	}
	groups, absent := find(*root, named)
	total := tally{missing: len(absent)}
	for _, t := range absent {
		fmt.Fprintf(out, "MISSING  %s: the package has no such test\n", t)
	}
	for _, g := range groups {
		switch {
		case *list:
			fmt.Fprintln(out, g)
		case *without && g.tag == clusterTag:
			fmt.Fprintf(out, "left out %s: it needs the cluster\n", g)
		default:
			results, err := g.run(ctx, out)
			total.add(results, out)
			if err != nil {
				return err
			}
		}
	}
	fmt.Fprintf(out, "%d tests named: %s\n", len(named), total)
	return total.err()
}
