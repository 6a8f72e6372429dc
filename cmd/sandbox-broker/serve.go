package main

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	authenticationclient "k8s.io/client-go/kubernetes/typed/authentication/v1"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/certwatcher"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/sandbox-broker/sandbox-broker/broker"
	"github.com/sandbox-broker/sandbox-broker/broker/server"
	"github.com/sandbox-broker/sandbox-broker/internal/auth"
	"github.com/sandbox-broker/sandbox-broker/internal/config"
	"github.com/sandbox-broker/sandbox-broker/internal/kube"
	"github.com/sandbox-broker/sandbox-broker/internal/telemetry"
	"github.com/sandbox-broker/sandbox-broker/internal/version"
)

const (
	// startTimeout bounds the synchronisation with the cluster at start.
	startTimeout = 60 * time.Second
	// stopTimeout bounds the hand-over at the end.
	stopTimeout = 20 * time.Second
	// headerTimeout bounds how long a client may take for its request's header.
	headerTimeout = 10 * time.Second
	// idleTimeout bounds how long a connection without a request is kept. It is not
	// for WebSockets, which have heartbeats.
	idleTimeout = 60 * time.Second
)

func newServeCommand(s streams) *cobra.Command {
	var file, provider, address, level string
	var insecure bool
	cmd := &cobra.Command{
		Use:   "serve --config FILE\n  sandbox-broker serve --provider local",
		Short: "Run the broker",
		Long: `Run the broker until it is told to stop (SIGTERM or SIGINT).

On a cluster, stopping ends no program: connections are closed with the request
to connect again, and the next broker with the same instance and handle key
takes over. Sandboxes on this machine end with the broker.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var l slog.Level
			if err := l.UnmarshalText([]byte(level)); err != nil {
				return fmt.Errorf("--log-level: %w", err)
			}
			c, err := serveConfig(file, provider, address)
			if err != nil {
				return err
			}
			return serveBroker(cmd.Context(), c, insecure, telemetry.Logger(s.err, l))
		},
	}
	cmd.Flags().StringVar(&file, "config", "", "configuration `file`, see docs/configuration.md")
	cmd.Flags().StringVar(&provider, "provider", "", "without a configuration file: `local`, sandboxes on this machine")
	cmd.Flags().StringVar(&address, "listen", "", "`address` of the API, instead of the configuration's")
	cmd.Flags().BoolVar(&insecure, "insecure-no-isolation", false, "run programs as plain processes of this machine: they can do all that this user can")
	cmd.Flags().StringVar(&level, "log-level", "info", "least `level` to log: debug, info, warn or error")
	return cmd
}

// serveBroker wires the broker together and runs it until ctx ends.
func serveBroker(ctx context.Context, c *config.Config, insecure bool, log *slog.Logger) (err error) {
	ctrllog.SetLogger(logr.FromSlogHandler(log.Handler()))
	// An exec's end is an error to client-go, each time; the broker says itself
	// what became of a sandbox.
	klog.SetSlogLogger(telemetry.Quiet(log))
	stopTraces, err := telemetry.Traces(ctx)
	if err != nil {
		return err
	}
	// life outlasts ctx by the hand-over: the provider must still end sandboxes.
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	registry, metrics := telemetry.Metrics()

	var kubeConfig *rest.Config
	if as := c.Provider.AgentSandbox; as != nil {
		if kubeConfig, err = kube.Config(as.Kubeconfig); err != nil {
			return err
		}
	}
	who, err := authenticator(c, kubeConfig)
	if err != nil {
		return err
	}
	key, err := handleKey(c, log)
	if err != nil {
		return err
	}
	start, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	provider, err := openProvider(start, life, c, insecure, kubeConfig, log)
	if err != nil {
		return err
	}
	defer func() {
		stop, cancel := context.WithTimeout(life, stopTimeout)
		defer cancel()
		err = errors.Join(err, provider.close(stop))
	}()
	pools := make([]broker.PoolConfig, len(c.Pools))
	for i, p := range c.Pools {
		pools[i] = p.Broker()
	}
	b, err := broker.New(start, broker.Options{Pools: pools, Provider: provider.Provider, Secret: key, Metrics: registry, Log: log})
	if err != nil {
		return err
	}
	edge := server.New(server.Options{Broker: b, Auth: who, Isolation: provider.isolation, Log: log})
	err = listen(ctx, c, edge, metrics, log)

	stop, cancelStop := context.WithTimeout(life, stopTimeout)
	defer cancelStop()
	return errors.Join(err, edge.Close(stop), b.Close(stop), stopTraces(stop))
}

// authenticator builds what the configuration names; nil lets everyone in, which
// the configuration allows on loopback only.
func authenticator(c *config.Config, k *rest.Config) (auth.Authenticator, error) {
	var chain auth.Chain
	if f := c.Auth.TokensFile; f != "" {
		tokens, err := config.LoadTokens(f)
		if err != nil {
			return nil, err
		}
		chain = append(chain, tokens)
	}
	if tr := c.Auth.TokenReview; tr != nil {
		client, err := authenticationclient.NewForConfig(k)
		if err != nil {
			return nil, fmt.Errorf("preparing TokenReview: %w", err)
		}
		chain = append(chain, kube.NewTokenReview(client.TokenReviews(), tr.Audiences))
	}
	if len(chain) == 0 {
		return nil, nil
	}
	return chain, nil
}

// handleKey reads the key that replicas share, or makes one that ends with this
// process.
func handleKey(c *config.Config, log *slog.Logger) ([]byte, error) {
	if c.HandleKeyFile != "" {
		return config.LoadKey(c.HandleKeyFile, broker.MinSecret)
	}
	log.Warn("no handleKeyFile: handles of this broker mean nothing to the next one")
	key := make([]byte, broker.MinSecret)
	_, _ = rand.Read(key) // crypto/rand never fails
	return key, nil
}

// listen serves the API and, apart from it, health and metrics until ctx ends.
func listen(ctx context.Context, c *config.Config, edge http.Handler, metrics http.Handler, log *slog.Logger) error {
	api, err := listenAPI(ctx, c)
	if err != nil {
		return err
	}
	var ready atomic.Bool
	servers := []*http.Server{serverFor(edge, log)}
	failed := make(chan error, 2)
	go func() { failed <- servers[0].Serve(api) }()
	if c.MetricsListen != "" {
		l, err := net.Listen("tcp", c.MetricsListen)
		if err != nil {
			_ = servers[0].Close()
			return fmt.Errorf("listening for metrics: %w", err)
		}
		servers = append(servers, serverFor(internalHandler(&ready, metrics), log))
		go func() { failed <- servers[1].Serve(l) }()
		log.Info("metrics", "address", l.Addr().String())
	}
	ready.Store(true)
	log.Info("listening", "address", api.Addr().String(), "tls", c.TLS.CertFile != "", "version", version.String(), "instance", c.Instance)
	select {
	case <-ctx.Done():
		log.Info("stopping")
		err = nil
	case err = <-failed:
	}
	ready.Store(false)
	_ = servers[0].Close() // its sessions are hijacked: the edge ends them
	for _, s := range servers[1:] {
		_ = s.Close()
	}
	return err
}

func listenAPI(ctx context.Context, c *config.Config) (net.Listener, error) {
	l, err := net.Listen("tcp", c.Listen)
	if err != nil {
		return nil, fmt.Errorf("listening: %w", err)
	}
	if c.TLS.CertFile == "" {
		return l, nil
	}
	w, err := certwatcher.New(c.TLS.CertFile, c.TLS.KeyFile)
	if err != nil {
		_ = l.Close()
		return nil, fmt.Errorf("reading the certificate: %w", err)
	}
	go func() { _ = w.Start(ctx) }() // reads a rotated certificate; its errors are logged by itself
	return tls.NewListener(l, &tls.Config{
		MinVersion: tls.VersionTLS12, GetCertificate: w.GetCertificate,
		NextProtos: []string{"http/1.1"}, // a WebSocket needs it
	}), nil
}

func serverFor(h http.Handler, log *slog.Logger) *http.Server {
	return &http.Server{Handler: h, ReadHeaderTimeout: headerTimeout, IdleTimeout: idleTimeout, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug)}
}

// internalHandler answers the kubelet and Prometheus.
func internalHandler(ready *atomic.Bool, metrics http.Handler) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", metrics)
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if !ready.Load() {
			http.Error(w, "not ready", http.StatusServiceUnavailable)
			return
		}
		_, _ = fmt.Fprintln(w, "ok")
	})
	return mux
}
