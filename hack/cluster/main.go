// Command cluster raises a real Kubernetes on this machine for developing and
// testing sandbox-broker, and takes it down again. See docs/local-cluster.md.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/sandbox-broker/sandbox-broker/hack/cluster/internal/cluster"
	"github.com/sandbox-broker/sandbox-broker/hack/cluster/internal/internet"
	"github.com/sandbox-broker/sandbox-broker/hack/cluster/internal/plan"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// run is the whole program. What it reports goes to stderr; only what is meant
// to be used by a shell goes to stdout.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	root := rootCommand(stdout, stderr)
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	switch {
	case err == nil:
		return 0
	case ctx.Err() != nil:
		fmt.Fprintln(stderr, "interrupted; the same command goes on where this one stopped")
	default:
		fmt.Fprintln(stderr, "cluster:", err)
	}
	return 1
}

func rootCommand(stdout, stderr io.Writer) *cobra.Command {
	var options cluster.Options
	root := &cobra.Command{
		Use:           "cluster",
		Short:         "A real Kubernetes with gVisor and agent-sandbox on this machine",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.SetOut(stdout)
	root.SetErr(stderr)
	root.PersistentFlags().StringVar(&options.Mirror, "debian-mirror", "",
		"where the sandbox image's packages come from (default: mmdebstrap's own)")
	root.PersistentFlags().BoolVar(&options.NoInstall, "no-install", false,
		"only name the Debian packages that are missing")

	// open makes the cluster object of the checkout that we are called in.
	open := func(progress io.Writer) (*cluster.Cluster, error) { return cluster.New(".", options, progress) }
	up := upCommand(open, stdout, stderr)
	up.Flags().BoolVar(&options.NoIPv6, "no-ipv6", false, "use IPv4 only, even where the kernel has IPv6")
	root.AddCommand(up,
		simple("down", "Stop it and remove everything that it made, but for logs and caches", open, stderr,
			(*cluster.Cluster).Down),
		simple("status", "Say what runs and in what state; exit 1 if anything is amiss", open, stdout,
			(*cluster.Cluster).Status),
		simple("load", "Bring the project as it is now into the running cluster", open, stderr,
			(*cluster.Cluster).Load),
		restartCommand(open, stderr), imagesCommand(open, stdout, stderr), envCommand(open, stdout, stderr), internetCommand())
	return root
}

type opener func(progress io.Writer) (*cluster.Cluster, error)

// simple is a command that calls one method and prints only progress.
func simple(use, short string, open opener, progress io.Writer, do func(*cluster.Cluster, context.Context) error) *cobra.Command {
	return &cobra.Command{Use: use, Short: short, Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error {
		c, err := open(progress)
		if err != nil {
			return err
		}
		return do(c, cmd.Context())
	}}
}

func upCommand(open opener, stdout, stderr io.Writer) *cobra.Command {
	return &cobra.Command{
		Use: "up", Short: "Start it, or bring a running one up to date", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := open(stderr)
			if err != nil {
				return err
			}
			if err := c.Up(cmd.Context()); err != nil {
				return err
			}
			return printEnv(cmd.Context(), c, stdout)
		},
	}
}

func envCommand(open opener, stdout, stderr io.Writer) *cobra.Command {
	return &cobra.Command{
		Use: "env", Short: "Print the line that makes it usable in a shell", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := open(stderr)
			if err != nil {
				return err
			}
			return printEnv(cmd.Context(), c, stdout)
		},
	}
}

func printEnv(ctx context.Context, c *cluster.Cluster, stdout io.Writer) error {
	line, err := c.Env(ctx)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(stdout, line)
	return err
}

func restartCommand(open opener, stderr io.Writer) *cobra.Command {
	return &cobra.Command{
		Use: "restart NAME", Short: "Kill one component as a crash would, start it again and wait until it serves", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := open(stderr)
			if err != nil {
				return err
			}
			return c.Restart(cmd.Context(), args[0])
		},
	}
}

func imagesCommand(open opener, stdout, stderr io.Writer) *cobra.Command {
	return &cobra.Command{
		Use: "images", Short: "Build the images and print where their archives are", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := open(stderr)
			if err != nil {
				return err
			}
			built, err := c.Images(cmd.Context())
			for _, img := range built {
				fmt.Fprintf(stdout, "%s\t%s\t%s\n", img.Name, img.Digest, img.Archive)
			}
			return err
		},
	}
}

// internetCommand is started by up inside a network namespace.
func internetCommand() *cobra.Command {
	var name string
	var fam plan.Families
	cmd := &cobra.Command{Use: "internet", Hidden: true, Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error {
		for _, i := range plan.Internets {
			if i.Name == name {
				return internet.Serve(cmd.Context(), i, fam)
			}
		}
		return fmt.Errorf("there is no %q in the plan", name)
	}}
	cmd.Flags().StringVar(&name, "name", "", "whose servers to run")
	cmd.Flags().BoolVar(&fam.V6, "ipv6", false, "answer over IPv6, too")
	return cmd
}
