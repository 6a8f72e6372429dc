package bench

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	extensionsv1beta1 "sigs.k8s.io/agent-sandbox/extensions/api/v1beta1"

	"github.com/sandbox-broker/sandbox-broker/broker"
	"github.com/sandbox-broker/sandbox-broker/broker/agentsandbox"
	"github.com/sandbox-broker/sandbox-broker/internal/channel"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

const (
	// providerTimeout bounds the start of the provider's watches.
	providerTimeout = 30 * time.Second
	// channelKeySize is that of a channel's key, in bytes.
	channelKeySize = 32
	// stdoutBytes is how much each call about the rate of output prints.
	stdoutBytes = 64 << 20
	// stdoutWrite is how much of it the program writes at once.
	stdoutWrite = 64 << 10
)

// stdoutProgram prints stdoutBytes in few large writes, and then nothing.
func stdoutProgram() []string {
	code := fmt.Sprintf("import sys\nb = b'x' * %d\nfor _ in range(%d): sys.stdout.buffer.write(b)\nsys.stdout.buffer.flush()", stdoutWrite, stdoutBytes/stdoutWrite)
	return []string{"python3", "-c", code}
}

// Held is a sandbox that the benchmark itself claimed, as a broker does: with a
// channel to its runner, and a bare exec beside it to compare that with.
type Held struct {
	cluster *Cluster
	sandbox broker.Sandbox
	pod     string
	channel *channel.Client
	echo    *echo               // nil until it is used
	trips   *channel.ExecStream // the channel's own echo; nil until it is used
}

// NewProvider makes the provider that a broker has, for claims of this benchmark.
// Its watches live until life ends.
func (c *Cluster) NewProvider(ctx, life context.Context) (*agentsandbox.Provider, error) {
	ctx, cancel := context.WithTimeout(ctx, providerTimeout)
	defer cancel()
	return agentsandbox.New(ctx, life, agentsandbox.Options{
		Config: c.config, Namespace: c.namespace, Instance: c.own, Container: c.template.Spec.PodTemplate.Spec.Containers[0].Name,
	})
}

// take claims a sandbox through the provider.
func (c *Cluster) take(ctx context.Context, p *agentsandbox.Provider) (broker.Sandbox, error) {
	return p.Take(ctx, broker.TakeRequest{Pool: c.own, WarmPool: c.warmPool, Until: time.Now().Add(c.claimLife)})
}

// endAll ends what is left of the sandboxes that were taken through the provider,
// whoever cancelled ctx.
func endAll(ctx context.Context, p *agentsandbox.Provider) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	left, err := p.List(ctx)
	if err != nil {
		return fmt.Errorf("bench: looking for sandboxes that are left: %w", err)
	}
	var errs []error
	for _, sandbox := range left {
		errs = append(errs, sandbox.End(ctx))
	}
	return errors.Join(errs...)
}

// Hold claims a sandbox and opens its channel.
func (c *Cluster) Hold(ctx context.Context, p *agentsandbox.Provider) (*Held, error) {
	sandbox, err := c.take(ctx, p)
	if err != nil {
		return nil, fmt.Errorf("bench: claiming a sandbox: %w", err)
	}
	h := &Held{cluster: c, sandbox: sandbox}
	if err := h.open(ctx); err != nil {
		return nil, errors.Join(err, h.Close(ctx))
	}
	return h, nil
}

func (h *Held) open(ctx context.Context) error {
	var claim extensionsv1beta1.SandboxClaim
	if err := h.cluster.kube.Get(ctx, client.ObjectKey{Namespace: h.cluster.namespace, Name: h.sandbox.ID().Name}, &claim); err != nil {
		return fmt.Errorf("bench: finding the pod of a claim: %w", err)
	}
	h.pod = claim.Status.SandboxStatus.Name
	conn, err := h.sandbox.Dial(ctx)
	if err != nil {
		return fmt.Errorf("bench: opening a channel: %w", err)
	}
	key := make([]byte, channelKeySize)
	_, _ = rand.Read(key) // crypto/rand never fails
	if h.channel, err = channel.Open(ctx, conn, key, ""); err != nil {
		return fmt.Errorf("bench: opening a channel: %w", err)
	}
	return nil
}

// RoundTrip sends a frame to the runner, over a stream of the channel that is held, and
// waits until it is back.
func (h *Held) RoundTrip(ctx context.Context) (Sample, error) {
	line := wire.Frame{Kind: wire.KindStdin, Payload: []byte("x\n")}
	trip := func(send func() error) error {
		stop := context.AfterFunc(ctx, func() { h.trips.Close() })
		defer stop()
		err := send()
		if err == nil {
			_, err = h.trips.Recv()
		}
		if err != nil {
			return fmt.Errorf("bench: a round trip through the channel: %w", err)
		}
		return nil
	}
	if h.trips == nil {
		var err error
		if h.trips, err = h.channel.Echo(context.WithoutCancel(ctx), line); err != nil {
			return Sample{}, fmt.Errorf("bench: opening the channel's echo: %w", err)
		}
		if err := trip(func() error { return nil }); err != nil {
			return Sample{}, err
		}
	}
	began := time.Now()
	if err := trip(func() error { return h.trips.Send(line) }); err != nil {
		return Sample{}, err
	}
	return Sample{Done: time.Since(began)}, nil
}

// Echo sends a line to a shell that a bare exec holds and waits until it is back.
func (h *Held) Echo(ctx context.Context) (Sample, error) {
	if h.echo == nil {
		h.echo = startEcho(func(ctx context.Context, e *echo) error {
			return h.cluster.run(ctx, h.pod, []string{"sh", "-c", `while read -r l; do echo "$l"; done`}, e.stdin, e)
		})
		if _, _, err := h.echo.line(ctx, "x"); err != nil { // the first one waits for the exec to start
			return Sample{}, err
		}
	}
	began := time.Now()
	_, at, err := h.echo.line(ctx, "x")
	if err != nil {
		return Sample{}, err
	}
	return Sample{Done: at.Sub(began)}, nil
}

// Stdout reads much output through a bare exec.
func (h *Held) Stdout(ctx context.Context) (Sample, error) {
	w := newStopwatch()
	if err := h.cluster.run(ctx, h.pod, stdoutProgram(), nil, w); err != nil {
		return Sample{}, err
	}
	return w.bulk(stdoutBytes)
}

// RunnerMemory is what the runner, the sandbox's first process, holds in memory,
// in 10⁶ bytes. The interpreters that it has started ahead are processes of their own.
func (h *Held) RunnerMemory(ctx context.Context) (float64, error) {
	var out bytes.Buffer
	if err := h.cluster.run(ctx, h.pod, []string{"cat", "/proc/1/status"}, nil, &out); err != nil {
		return 0, err
	}
	for line := range strings.Lines(out.String()) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kib, err := strconv.ParseFloat(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")), 64)
			if err != nil {
				return 0, fmt.Errorf("bench: reading the runner's memory: %w", err)
			}
			return kib * 1024 / 1e6, nil
		}
	}
	return 0, errors.New("bench: the runner's status does not tell its memory")
}

// Close ends the sandbox, whoever cancelled ctx.
func (h *Held) Close(ctx context.Context) error {
	if h.echo != nil {
		h.echo.close()
	}
	if h.trips != nil {
		h.trips.Close()
	}
	if h.channel != nil {
		h.channel.Close()
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
	defer cancel()
	if err := h.sandbox.End(ctx); err != nil {
		return fmt.Errorf("bench: releasing the held sandbox: %w", err)
	}
	return nil
}
