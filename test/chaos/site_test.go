//go:build e2e

package chaos

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	k8sruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	sandboxv1beta1 "sigs.k8s.io/agent-sandbox/api/v1beta1"
	extensionsv1beta1 "sigs.k8s.io/agent-sandbox/extensions/api/v1beta1"

	"github.com/sandbox-broker/sandbox-broker/internal/cutproxy"
	"github.com/sandbox-broker/sandbox-broker/internal/kube"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient"
)

const (
	namespace = "sandboxes"
	instance  = "chaos"
	pool      = "work"
	token     = "token-of-the-chaos-suite"
	// detachGrace is the pool's: no fault may keep a client away for so long.
	detachGrace = 30 * time.Second
	// replicas is how many brokers share the work.
	replicas = 2
)

const configText = `
listen: 127.0.0.1:0
metricsListen: 127.0.0.1:0
instance: %[1]s
handleKeyFile: %[2]s/key
auth: {tokensFile: %[2]s/tokens.yaml}
provider: {agentSandbox: {namespace: %[3]s, kubeconfig: %[4]s}}
pools:
- name: %[5]s
  warmPool: python-gvisor
  maxSandboxes: 12
  stock: 2
  detachGrace: %[6]s
  queue: {timeout: 4m}
`

// site is what is broken: brokers between two bad networks.
//
//	clients ── front ──▶ brokers ── each one's back ──▶ API server
type site struct {
	k8s     client.Client
	config  *rest.Config // of k8s
	ledger  *ledger
	project string // the checkout whose cluster it is
	front   *cutproxy.Proxy
	brokers []*brokerProcess
	notes   *notes
}

// root is the project's folder.
func root() string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Join(filepath.Dir(file), "..", "..")
}

// newSite starts the brokers; what goes wrong later than the test's end is not its.
func newSite(t *testing.T, seed uint64) *site {
	t.Helper()
	config, err := kube.Config("")
	require.NoError(t, err, "no cluster: run `make cluster-up`")
	s := &site{k8s: kubernetes(t, config), config: config, notes: newNotes(), project: filepath.Dir(filepath.Dir(os.Getenv(clientcmd.RecommendedConfigPathEnvVar)))}
	logs := filepath.Join(root(), "bin", "chaos")
	require.NoError(t, os.MkdirAll(logs, 0o755))
	dir := t.TempDir()
	s.write(t, dir, "key", strings.Repeat("k", 32))
	s.write(t, dir, "tokens.yaml", fmt.Sprintf("tokens: [{token: %s, tenant: chaos}]\n", token))
	for n := range replicas {
		server, err := url.Parse(config.Host)
		require.NoError(t, err)
		back, err := cutproxy.Listen(server.Host, cutproxy.Plan{Seed: seed + uint64(n) + 1})
		require.NoError(t, err)
		name := fmt.Sprintf("broker-%d", n)
		access, err := clientcmd.Write(throughProxy(config, back.Addr(), server.Hostname()))
		require.NoError(t, err)
		s.write(t, dir, name+".kubeconfig", string(access))
		path := s.write(t, dir, name+".yaml", fmt.Sprintf(configText, instance, dir, namespace, filepath.Join(dir, name+".kubeconfig"), pool, detachGrace))
		b := &brokerProcess{site: s, name: name, config: path, logs: filepath.Join(logs, name+".log"), back: back}
		_ = os.Remove(b.logs)
		s.brokers = append(s.brokers, b)
		require.NoError(t, b.start())
		t.Cleanup(b.end) // if it failed
	}
	s.front, err = cutproxy.Listen(s.brokers[0].address(), cutproxy.Plan{Seed: seed})
	require.NoError(t, err)
	s.aim()
	return s
}

func (s *site) write(t *testing.T, dir, name, text string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

// aim sends clients to every broker, also to one that has just died: nobody tells them.
func (s *site) aim() {
	var all []string
	for _, b := range s.brokers {
		all = append(all, b.address())
	}
	s.front.SetTarget(all...)
}

// throughProxy is the same access by way of a proxy.
func throughProxy(c *rest.Config, proxy, serverName string) clientcmdapi.Config {
	const name = "chaos"
	return clientcmdapi.Config{
		Clusters: map[string]*clientcmdapi.Cluster{name: {
			Server: "https://" + proxy, TLSServerName: serverName,
			CertificateAuthority: c.CAFile, CertificateAuthorityData: c.CAData,
		}},
		AuthInfos: map[string]*clientcmdapi.AuthInfo{name: {
			ClientCertificate: c.CertFile, ClientCertificateData: c.CertData,
			ClientKey: c.KeyFile, ClientKeyData: c.KeyData, Token: c.BearerToken, TokenFile: c.BearerTokenFile,
		}},
		Contexts:       map[string]*clientcmdapi.Context{name: {Cluster: name, AuthInfo: name}},
		CurrentContext: name,
	}
}

func kubernetes(t *testing.T, config *rest.Config) client.Client {
	t.Helper()
	scheme := k8sruntime.NewScheme()
	for _, add := range []func(*k8sruntime.Scheme) error{
		corev1.AddToScheme, coordinationv1.AddToScheme, policyv1.AddToScheme, extensionsv1beta1.AddToScheme, sandboxv1beta1.AddToScheme,
	} {
		require.NoError(t, add(scheme))
	}
	c, err := client.New(config, client.Options{Scheme: scheme})
	require.NoError(t, err)
	return c
}

// newClient is a client that reaches the brokers over the bad network.
func (s *site) newClient(t *testing.T) *sandboxclient.Client {
	t.Helper()
	c, err := sandboxclient.New("http://"+s.front.Addr(), sandboxclient.WithToken(token))
	require.NoError(t, err)
	return c
}

// claims are those of the suite's brokers.
func (s *site) claims(ctx context.Context) ([]extensionsv1beta1.SandboxClaim, error) {
	var list extensionsv1beta1.SandboxClaimList
	err := s.k8s.List(ctx, &list, client.InNamespace(namespace), client.MatchingLabels{"sandbox-broker.dev/instance": instance})
	return list.Items, err
}

// isLeased says that a claim is a tenant's, and known to every broker as such.
func isLeased(c *extensionsv1beta1.SandboxClaim) bool {
	return c.Annotations["sandbox-broker.dev/record"] != "" && c.DeletionTimestamp.IsZero()
}

// settle waits until the warm pool is full: what went on before is over.
func (s *site) settle(ctx context.Context) error {
	return until(ctx, 5*time.Minute, "the warm pool is full", func() error {
		var p extensionsv1beta1.SandboxWarmPool
		if err := s.k8s.Get(ctx, client.ObjectKey{Namespace: namespace, Name: "python-gvisor"}, &p); err != nil {
			return err
		}
		if p.Spec.Replicas == nil || p.Status.ReadyReplicas < *p.Spec.Replicas {
			return fmt.Errorf("%d sandboxes are ready", p.Status.ReadyReplicas)
		}
		return nil
	})
}

// until looks at a state, which nothing reports, until it holds.
func until(ctx context.Context, bound time.Duration, what string, ok func() error) error {
	deadline := time.Now().Add(bound)
	for {
		err := ok()
		if err == nil {
			return nil
		}
		if time.Now().After(deadline) || ctx.Err() != nil {
			return fmt.Errorf("not within %s: %s: %w", bound, what, err)
		}
		time.Sleep(100 * time.Millisecond) // between two looks
	}
}

// notes is what brokers' logs say of execs.
type notes struct {
	mu       sync.Mutex // guards the rest
	told     map[string]Told
	requests map[string]string // execs by the requests for them
	dead     []string          // brokers that ended by themselves
	twice    []string          // execs in two sandboxes
}

func (n *notes) died(what string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.dead = append(n.dead, what)
}

func newNotes() *notes { return &notes{told: map[string]Told{}, requests: map[string]string{}} }
