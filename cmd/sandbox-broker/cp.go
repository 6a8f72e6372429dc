package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sandbox-broker/sandbox-broker/sandboxclient"
)

// stdio is the name that stands for standard input or output.
const stdio = "-"

// cpCommand is `sandbox-broker cp`.
type cpCommand struct {
	streams
	connect connectFlags
}

func newCpCommand(s streams) *cobra.Command {
	c := &cpCommand{streams: s}
	cmd := &cobra.Command{
		Use:   "cp [flags] SRC DST",
		Short: "Copy a file to or from a sandbox that was acquired",
		Long: `Copy a file to or from the sandbox of a lease.

One of SRC and DST is LEASE:PATH, with PATH relative to the workspace or absolute.
The other is a local file, or - for standard input or output; a local name that has
a colon needs a slash before it, as in ./a:b. If DST is a local directory, or ends
with a slash in the sandbox, the copy has the source's name.

A copy takes its place when it is whole; until then an older file stays. It has the
source's permissions, but a local one is writable for its owner alone. A symbolic
link is not followed by a local DST, and replaced in the sandbox.`,
		Example: `  sandbox-broker cp input.csv "$lease:data/"
  sandbox-broker cp "$lease:out.csv" .
  sandbox-broker cp "$lease:out.csv" - | head`,
		Args:                  cobra.ArbitraryArgs,
		DisableFlagsInUseLine: true,
		RunE:                  func(cmd *cobra.Command, args []string) error { return c.run(cmd.Context(), args) },
	}
	cmd.Flags().SortFlags = false
	c.connect.register(cmd.Flags())
	return cmd
}

// place is one side of a copy.
type place struct {
	lease string // empty: it is local
	path  string
}

// parsePlace tells LEASE:PATH from a local name.
func parsePlace(arg string) place {
	lease, path, ok := strings.Cut(arg, ":")
	if !ok || lease == "" || strings.Contains(lease, "/") {
		return place{path: arg}
	}
	return place{lease, path}
}

func (c *cpCommand) run(ctx context.Context, args []string) error {
	if len(args) != 2 {
		return errors.New("name two things, SRC and DST: what to copy and where to")
	}
	src, dst := parsePlace(args[0]), parsePlace(args[1])
	switch {
	case src.lease != "" && dst.lease != "":
		return errors.New("SRC and DST are both in a sandbox: copy to a local file, and from there")
	case src.lease == "" && dst.lease == "":
		return errors.New("neither SRC nor DST is in a sandbox: one of them is LEASE:PATH")
	}
	client, err := c.connect.client()
	if err != nil {
		return err
	}
	defer client.Close()
	if dst.lease != "" {
		return c.upload(ctx, client.Lease(dst.lease).Files(), src.path, dst.path)
	}
	return c.download(ctx, client.Lease(src.lease).Files(), src.path, dst.path)
}

// upload copies a local file to the sandbox.
func (c *cpCommand) upload(ctx context.Context, files *sandboxclient.Files, src, dst string) error {
	in, mode := c.in, fs.FileMode(0)
	if src != stdio {
		f, err := os.Open(src)
		if err != nil {
			return err
		}
		defer f.Close()
		st, err := f.Stat()
		if err != nil {
			return err
		}
		if st.IsDir() {
			return fmt.Errorf("%s is a directory; only files are copied", src)
		}
		if st.Mode().IsRegular() {
			mode = st.Mode().Perm()
		}
		in = f
	}
	if dst == "" || strings.HasSuffix(dst, "/") {
		if src == stdio {
			return errors.New("standard input has no name: name the file in DST")
		}
		dst += filepath.Base(src)
	}
	_, err := files.Write(ctx, dst, in, mode)
	return copyError(ctx, dst, err)
}

// download copies a file of the sandbox here.
func (c *cpCommand) download(ctx context.Context, files *sandboxclient.Files, src, dst string) error {
	if src == "" || strings.HasSuffix(src, "/") {
		return errors.New("SRC names no file of the sandbox")
	}
	if dst == stdio {
		_, err := files.Read(ctx, src, harmless(c.out))
		return copyError(ctx, src, err)
	}
	l, err := newLanding(dst, path.Base(src))
	if err != nil {
		return err
	}
	defer l.close()
	info, err := files.Read(ctx, src, l.file)
	if err != nil {
		return copyError(ctx, src, err)
	}
	return l.commit(info.Mode)
}

func copyError(ctx context.Context, path string, err error) error {
	if err == nil {
		return nil
	}
	return callError(ctx, fmt.Errorf("copying %s: %w", path, err), "copying again does no harm")
}
