package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/sandbox-broker/sandbox-broker/hack/cluster/internal/kube"
	"github.com/sandbox-broker/sandbox-broker/hack/cluster/internal/plan"
)

// statusWait bounds the questions of Status to the cluster, together.
const statusWait = 15 * time.Second

// ErrUnhealthy is what Status returns when something is amiss; the details are
// printed.
var ErrUnhealthy = errors.New("the cluster is not healthy")

// Status prints what runs, since when, and in what state it is.
func (c *Cluster) Status(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, statusWait)
	defer cancel()
	healthy := true
	report := func(what string, err error, good string) {
		if err != nil {
			healthy, good = false, "NOT OK: "+err.Error()
		}
		fmt.Fprintf(c.out, "%-26s %s\n", what, good)
	}
	for _, name := range names() {
		r, running, err := c.keeper.Lookup(name)
		if err == nil && !running {
			err = errors.New("not running")
		}
		report(name, err, fmt.Sprintf("process %d since %s", r.PID, r.Started.Local().Format(time.DateTime)))
	}
	client, err := c.client()
	if err != nil {
		report("API server", err, "")
		return ErrUnhealthy
	}
	c.statusInside(ctx, client, report)
	if !healthy {
		return ErrUnhealthy
	}
	return nil
}

// statusInside reports what only Kubernetes knows.
func (c *Cluster) statusInside(ctx context.Context, client *kube.Client, report func(string, error, string)) {
	if err := client.Ready(ctx); err != nil {
		report("API server", err, "")
		return // the others could only time out
	}
	report("API server", nil, "ready")
	report("node "+plan.NodeName, client.NodeReady(ctx, plan.NodeName), "ready")
	if c.has(warmPoolFolder) {
		ready, want, err := client.WarmPool(ctx, plan.SandboxNamespace, plan.WarmPool)
		if err == nil && ready == 0 {
			err = fmt.Errorf("none of %d sandboxes is ready", want)
		}
		// After a run it is always one short for a moment.
		report("warm pool "+plan.WarmPool, err, fmt.Sprintf("%d of %d sandboxes ready", ready, want))
	}
	if c.has(brokerFolder) {
		report("broker", client.DeploymentAvailable(ctx, plan.BrokerNamespace, plan.BrokerName), "available")
	}
}

// Env returns the line that makes the cluster usable in a shell. Values are
// quoted where the shell would take them apart.
func (c *Cluster) Env(ctx context.Context) (string, error) {
	client, err := c.client()
	if err != nil {
		return "", err
	}
	vars := []string{"KUBECONFIG=" + quote(c.dirs.AdminKubeconfig())}
	if c.has(brokerFolder) {
		addresses, err := client.ServiceAddresses(ctx, plan.BrokerNamespace, plan.BrokerName)
		if err != nil {
			return "", fmt.Errorf("finding the broker's address: %w", err)
		}
		if len(addresses) == 0 {
			return "", errors.New("the broker's Service has no address")
		}
		vars = append(vars,
			"SANDBOX_BROKER_URL=https://"+net.JoinHostPort(addresses[0], strconv.Itoa(plan.BrokerPort)),
			"SANDBOX_BROKER_TOKEN_FILE="+quote(c.dirs.AgentToken()),
			"SANDBOX_BROKER_CA_FILE="+quote(c.dirs.BrokerCA()))
	}
	return "export " + strings.Join(vars, " "), nil
}

// plain are the characters that no shell treats specially.
const plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-+:@"

func quote(s string) string {
	if strings.Trim(s, plain) == "" {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
