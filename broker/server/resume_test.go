package server_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandbox-broker/sandbox-broker/broker"
	"github.com/sandbox-broker/sandbox-broker/internal/cutproxy"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

// patientPool keeps runs without a client for longer than any test is away.
func patientPool() broker.PoolConfig {
	cfg := pool()
	cfg.DetachGrace, cfg.MaxSandboxes, cfg.MaxTimeout = time.Minute, 8, 2*time.Minute
	return cfg
}

// proxy puts a bad network before the site.
func (s *site) proxy(plan cutproxy.Plan) *cutproxy.Proxy {
	s.t.Helper()
	p, err := cutproxy.Listen(s.address(), plan)
	require.NoError(s.t, err)
	s.t.Cleanup(p.Close)
	return p
}

func (s *site) address() string { return strings.TrimPrefix(s.http.URL, "http://") }

// through is a client that reaches a broker by way of a proxy.
func (s *site) through(p *cutproxy.Proxy) *sandboxclient.Client {
	s.t.Helper()
	c, err := sandboxclient.New("http://"+p.Addr(), sandboxclient.WithToken(tokenA))
	require.NoError(s.t, err)
	s.t.Cleanup(func() { _ = c.Close() })
	return c
}

// pages is a writer whose content can be awaited.
type pages struct {
	mu      sync.Mutex // guards the rest
	changed sync.Cond
	buf     bytes.Buffer
}

func newPages() *pages {
	p := &pages{}
	p.changed.L = &p.mu
	return p
}

func (p *pages) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.changed.Broadcast()
	return p.buf.Write(b)
}

// await returns when the content is text; more than that is a failure.
func (p *pages) await(t *testing.T, text string) {
	t.Helper()
	late := time.AfterFunc(time.Minute, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.buf.WriteString("(too late)")
		p.changed.Broadcast()
	})
	defer late.Stop()
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.buf.Len() < len(text) {
		p.changed.Wait()
	}
	require.Equal(t, text, p.buf.String())
}

func (p *pages) String() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.buf.String()
}

// chatter notes that it ran, then copies its input to stdout while it counts on stderr.
const (
	chatter    = `echo ran >>"$0"; seq 1 40000 >&2 & cat; wait`
	countTo    = 40000
	chatterIn  = 900_000
	chatterLog = "ran-%d"
)

// Must hold: whatever the network does, each byte arrives once and in order, there is
// one ending, and nothing runs twice.
func TestCutsLoseNothing(t *testing.T) {
	s := newSite(t, patientPool())
	s.chatThroughCuts(6, 40, 200, s.address())
}

// Must hold: so it is when every connection may lead to another replica.
func TestCutsBetweenReplicasLoseNothing(t *testing.T) {
	a, b := newReplicas(t, patientPool())
	a.chatThroughCuts(4, 12, 20, a.address(), b.address())
	eventually(t, "leases alone are left", func() bool { return a.provider.Live() <= 2 })
}

// chatThroughCuts runs chatters, each through a bad network of its own, and holds what
// came of them against what must. Of their connections at least so many are cut.
func (s *site) chatThroughCuts(runs, cuts, least int, targets ...string) {
	t := s.t
	t.Helper()
	var count bytes.Buffer
	for i := range countTo {
		fmt.Fprintln(&count, i+1)
	}
	dir := t.TempDir()
	total := 0
	var mu sync.Mutex // guards total
	var all sync.WaitGroup
	for i := range runs {
		all.Go(func() {
			seed := uint64(i + 1)
			in := make([]byte, chatterIn)
			_, _ = rand.NewChaCha8([32]byte{byte(seed)}).Read(in)
			p := s.proxy(cutproxy.Plan{Seed: seed, Cuts: cuts, Spare: 2000, Least: 100, Most: 40_000})
			p.SetTarget(targets...)
			log := filepath.Join(dir, fmt.Sprintf(chatterLog, seed))
			stdout, stderr := sha256.New(), sha256.New()
			ending, err := chat(deadline(t), s.through(p), i%2 == 0, log, in, stdout, stderr)
			mu.Lock()
			total += p.Cuts()
			mu.Unlock()
			if err != nil {
				t.Errorf("seed %d: %v", seed, err)
				return
			}
			if a, b := sha256.Sum256(in), stdout.Sum(nil); !bytes.Equal(a[:], b) {
				t.Errorf("seed %d: stdout came changed", seed)
			}
			if a, b := sha256.Sum256(count.Bytes()), stderr.Sum(nil); !bytes.Equal(a[:], b) {
				t.Errorf("seed %d: stderr came changed", seed)
			}
			if ran, err := os.ReadFile(log); err != nil || string(ran) != "ran\n" {
				t.Errorf("seed %d: the program ran %q, %v", seed, ran, err)
			}
			if !ending.Complete || ending.StdoutBytes != chatterIn || ending.Reason != wire.ReasonExited {
				t.Errorf("seed %d: %+v", seed, ending)
			}
		})
	}
	all.Wait()
	t.Logf("%d connections were cut", total)
	require.GreaterOrEqual(t, total, least, "the network was not bad enough")
}

// chat runs chatter, as a run or in a lease.
func chat(ctx context.Context, c *sandboxclient.Client, asRun bool, log string, in []byte, stdout, stderr io.Writer) (wire.Ending, error) {
	argv := []string{"sh", "-c", chatter, log}
	if asRun {
		res, err := c.Run(ctx, sandboxclient.Code{Pool: "test", Argv: argv, Stdin: bytes.NewReader(in), Stdout: stdout, Stderr: stderr, Timeout: 2 * time.Minute})
		if err != nil {
			return wire.Ending{}, err
		}
		return res.Ending, nil
	}
	lease, err := c.Acquire(ctx, "test")
	if err != nil {
		return wire.Ending{}, err
	}
	cmd := lease.Command(argv[0], argv[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.Timeout = bytes.NewReader(in), stdout, stderr, 2*time.Minute
	err = cmd.Run(ctx)
	ending, _ := cmd.Ending()
	return ending, err
}
