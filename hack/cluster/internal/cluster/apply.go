package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sandbox-broker/sandbox-broker/hack/cluster/internal/kube"
	"github.com/sandbox-broker/sandbox-broker/hack/cluster/internal/pki"
	"github.com/sandbox-broker/sandbox-broker/hack/cluster/internal/plan"
)

// The project's folders that the cluster uses, relative to its root.
const (
	sandboxFolder  = "deploy/gvisor-image-volume"
	warmPoolFolder = "deploy/warmpool"
	brokerFolder   = "deploy/broker"
	brokerOverlay  = "hack/cluster/deploy/broker" // brokerFolder with the benchmark's pool
	brokerSource   = "cmd/sandbox-broker"
)

const (
	// tokenLifetime is that of the callers' tokens: longer than anyone works
	// with one cluster.
	tokenLifetime = 365 * 24 * time.Hour
	// applyWait bounds one kubectl apply, and the wait for new kinds.
	applyWait = 60 * time.Second
)

// has tells whether the checkout has that folder.
func (c *Cluster) has(folder string) bool {
	_, err := os.Stat(filepath.Join(c.dirs.Project, folder))
	return err == nil
}

// applyAll applies the project's manifests as they are, and adds what they
// leave open: keys, certificates, and the callers that tests act as.
func (c *Cluster) applyAll(ctx context.Context) error {
	client, err := c.client()
	if err != nil {
		return err
	}
	for _, ns := range []string{plan.ControllerNamespace, plan.AgentNamespace, plan.OtherNamespace} {
		if err := client.EnsureNamespace(ctx, ns); err != nil {
			return fmt.Errorf("making the namespace %s: %w", ns, err)
		}
	}
	// The other two need the first one's namespace.
	if err := c.applyProject(ctx, sandboxFolder); err != nil {
		return err
	}
	both, applying := errgroup.WithContext(ctx)
	both.Go(func() error { return c.applyProject(applying, warmPoolFolder) })
	both.Go(func() error { return c.applyProject(applying, brokerOverlay) })
	if err := both.Wait(); err != nil {
		return err
	}
	if c.has(brokerFolder) {
		if err := c.brokerSecrets(ctx, client); err != nil {
			return err
		}
	}
	return c.callerTokens(ctx, client)
}

// applyProject applies a folder of the project, if this checkout has it.
func (c *Cluster) applyProject(ctx context.Context, folder string) error {
	if !c.has(folder) {
		c.say("skipping %s: this checkout does not have it", folder)
		return nil
	}
	return c.kubectl(ctx, "apply", "-k", filepath.Join(c.dirs.Project, folder))
}

// applyKinds applies agent-sandbox's kinds from a folder of the tool cache. Its
// name changes with their version, so a note of it saves doing it again. They
// are too large for the annotation that a client-side apply keeps.
func (c *Cluster) applyKinds(ctx context.Context, folder string) error {
	note := filepath.Join(c.dirs.Run(), "kinds")
	if done, err := os.ReadFile(note); err == nil && string(done) == folder {
		return nil
	}
	if err := c.kubectl(ctx, "apply", "--server-side", "--force-conflicts", "-f", folder); err != nil {
		return fmt.Errorf("applying agent-sandbox's kinds: %w", err)
	}
	if err := c.kubectl(ctx, "wait", "--for=condition=Established", "--timeout="+applyWait.String(), "-f", folder); err != nil {
		return fmt.Errorf("waiting for agent-sandbox's kinds: %w", err)
	}
	return writeFile(note, []byte(folder), 0o644)
}

// kubectl runs the cluster's own kubectl as administrator.
func (c *Cluster) kubectl(ctx context.Context, args ...string) error {
	ctx, cancel := context.WithTimeout(ctx, 2*applyWait)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(c.dirs.Bin(), "kubectl"), args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+c.dirs.AdminKubeconfig())
	var complaint bytes.Buffer
	cmd.Stderr = &complaint
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("kubectl %s: %w\n%s", strings.Join(args, " "), err, strings.TrimSpace(complaint.String()))
	}
	return nil
}

// brokerSecrets makes the two Secrets that deploy/broker refers to. The
// certificate names the Service in every way that a client may call it.
func (c *Cluster) brokerSecrets(ctx context.Context, client *kube.Client) error {
	addresses, err := client.ServiceAddresses(ctx, plan.BrokerNamespace, plan.BrokerName)
	if err != nil {
		return fmt.Errorf("finding the broker's address: %w", err)
	}
	authority, err := c.keys().Authority(brokerCA)
	if err != nil {
		return err
	}
	service := plan.BrokerName + "." + plan.BrokerNamespace
	pair, err := c.keys().Issue(authority, "broker", pki.Subject{Name: plan.BrokerName, Hosts: append([]string{
		plan.BrokerName, service, service + ".svc", service + ".svc.cluster.local", "localhost", "127.0.0.1",
	}, addresses...)})
	if err != nil {
		return err
	}
	cert, certErr := os.ReadFile(pair.CertFile)
	key, keyErr := os.ReadFile(pair.KeyFile)
	ca, caErr := os.ReadFile(authority.CertFile)
	if err := errors.Join(certErr, keyErr, caErr); err != nil {
		return err
	}
	if err := client.EnsureTLSSecret(ctx, plan.BrokerNamespace, plan.BrokerTLSSecret, cert, key); err != nil {
		return fmt.Errorf("making the Secret %s: %w", plan.BrokerTLSSecret, err)
	}
	if err := client.EnsureHandleKey(ctx, plan.BrokerNamespace, plan.BrokerHandleKeySecret); err != nil {
		return fmt.Errorf("making the Secret %s: %w", plan.BrokerHandleKeySecret, err)
	}
	return writeFile(c.dirs.BrokerCA(), ca, 0o644)
}

// callerTokens makes the two callers and a token of each. A token that is there
// is of this cluster, since its file goes with it.
func (c *Cluster) callerTokens(ctx context.Context, client *kube.Client) error {
	for namespace, path := range map[string]string{
		plan.AgentNamespace: c.dirs.AgentToken(),
		plan.OtherNamespace: c.dirs.OtherToken(),
	} {
		if err := client.EnsureServiceAccount(ctx, namespace, plan.AgentAccount); err != nil {
			return fmt.Errorf("making the service account %s/%s: %w", namespace, plan.AgentAccount, err)
		}
		if _, err := os.Stat(path); err == nil {
			continue
		}
		token, err := client.Token(ctx, namespace, plan.AgentAccount, plan.TokenAudience, tokenLifetime)
		if err != nil {
			return err
		}
		if err := writeFile(path, []byte(token), 0o600); err != nil {
			return err
		}
	}
	return nil
}
