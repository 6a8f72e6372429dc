package cluster

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/sandbox-broker/sandbox-broker/hack/cluster/internal/kube"
	"github.com/sandbox-broker/sandbox-broker/hack/cluster/internal/plan"
	"github.com/sandbox-broker/sandbox-broker/hack/cluster/internal/preflight"
	"github.com/sandbox-broker/sandbox-broker/hack/cluster/internal/proc"
)

// How long each part may take to be ready on a slow, busy machine.
const (
	socketWait = 60 * time.Second
	apiWait    = 120 * time.Second
	nodeWait   = 120 * time.Second
	healthWait = 60 * time.Second
	poolWait   = 180 * time.Second
	brokerWait = 120 * time.Second
	// dialWait bounds one attempt to connect to something on this machine.
	dialWait = time.Second
)

// ensure makes the process run, unless it does.
func (c *Cluster) ensure(ctx context.Context, command proc.Command) error {
	started, err := c.keeper.Ensure(ctx, command, stopWaitOf(command.Name))
	if err != nil {
		return err
	}
	if started {
		c.say("started %s", command.Name)
	}
	return nil
}

// alive adds to a wait that the process it waits for is still there: without
// it there is no point in waiting, and its log says more than a timeout.
func (c *Cluster) alive(name string, ask func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error {
		err := ask(ctx)
		if err == nil {
			return nil
		}
		if _, running, _ := c.keeper.Lookup(name); !running {
			return fmt.Errorf("%s has ended, see %s: %w", name, c.keeper.LogPath(name), err)
		}
		return err
	}
}

func (c *Cluster) awaitSocket(ctx context.Context, path string) error {
	return kube.Until(ctx, socketWait, "containerd's start", c.alive(containerd, func(ctx context.Context) error {
		return dial(ctx, "unix", path)
	}))
}

func dial(ctx context.Context, network, address string) error {
	conn, err := (&net.Dialer{Timeout: dialWait}).DialContext(ctx, network, address)
	if err != nil {
		return err
	}
	return conn.Close()
}

func (c *Cluster) awaitAPI(ctx context.Context) error {
	client, err := c.client()
	if err != nil {
		return err
	}
	return kube.Until(ctx, apiWait, "the API server's start", c.alive(apiServer, client.Ready))
}

// awaitNode waits for kubelet to register the node, then gives it its pod
// networks and waits for it to be ready.
func (c *Cluster) awaitNode(ctx context.Context) error {
	client, err := c.client()
	if err != nil {
		return err
	}
	err = kube.Until(ctx, nodeWait, "the node's registration", c.alive(kubelet, func(ctx context.Context) error {
		return client.SetPodCIDRs(ctx, plan.NodeName, c.families.Of(plan.PodNet))
	}))
	if err != nil {
		return err
	}
	return kube.Until(ctx, nodeWait, "the node's readiness", c.alive(kubelet, func(ctx context.Context) error {
		return client.NodeReady(ctx, plan.NodeName)
	}))
}

// awaitHealthy waits for the parts that have nobody else to wait for them.
func (c *Cluster) awaitHealthy(ctx context.Context) error {
	for _, name := range []string{kubeProxy, agentSandbox} {
		if err := c.restartable()[name](ctx); err != nil {
			return err
		}
	}
	return nil
}

func httpOK(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeout(ctx, dialWait)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s says %s", url, response.Status)
	}
	return nil
}

// awaitPool waits for a full warm pool, if this checkout has one.
func (c *Cluster) awaitPool(ctx context.Context) error {
	if !c.has(warmPoolFolder) {
		return nil
	}
	client, err := c.client()
	if err != nil {
		return err
	}
	err = kube.Until(ctx, poolWait, "a full warm pool", func(ctx context.Context) error {
		return client.WarmPoolReady(ctx, plan.SandboxNamespace, plan.WarmPool)
	})
	if err != nil {
		return fmt.Errorf("%w\nSee kubectl -n %s describe pods", err, plan.SandboxNamespace)
	}
	return nil
}

// awaitBroker waits for the broker, if this checkout has one.
func (c *Cluster) awaitBroker(ctx context.Context) error {
	if !c.has(brokerFolder) || !c.has(brokerSource) {
		return nil
	}
	client, err := c.client()
	if err != nil {
		return err
	}
	err = kube.Until(ctx, brokerWait, "the broker's start", func(ctx context.Context) error {
		return client.DeploymentAvailable(ctx, plan.BrokerNamespace, plan.BrokerName)
	})
	if err != nil {
		return fmt.Errorf("%w\nSee kubectl -n %s describe pods and kubectl -n %[2]s logs deploy/%s",
			err, plan.BrokerNamespace, plan.BrokerName)
	}
	return nil
}

// takenPorts finds ports of ours that something listens on.
func takenPorts() preflight.Problems {
	var found preflight.Problems
	for name, ports := range map[string][]int{
		etcd:              {plan.EtcdClientPort, plan.EtcdPeerPort},
		controllerManager: {plan.ControllerPort},
		scheduler:         {plan.SchedulerPort},
		kubelet:           {plan.KubeletHealthPort},
		kubeProxy:         {plan.ProxyHealthPort, plan.ProxyMetricsPort},
		agentSandbox:      {plan.AgentSandboxMetrics, plan.AgentSandboxHealth},
	} {
		for _, port := range ports {
			if listened(port) {
				found = append(found, preflight.Problem{
					What: "port " + strconv.Itoa(port) + " is taken", Why: name + " listens there",
				})
			}
		}
	}
	return found
}

// listened tries to take the port, and so finds listeners on every address.
func listened(port int) bool {
	l, err := net.Listen("tcp", loopback(port))
	if err != nil {
		return true
	}
	l.Close()
	return false
}
