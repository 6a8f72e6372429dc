package cluster

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/sandbox-broker/sandbox-broker/hack/cluster/internal/plan"
	"github.com/sandbox-broker/sandbox-broker/hack/cluster/internal/proc"
)

// The components, in the order in which they are started. They are stopped in
// the order of stopOrder.
const (
	etcd              = "etcd"
	containerd        = "containerd"
	apiServer         = "kube-apiserver"
	controllerManager = "kube-controller-manager"
	scheduler         = "kube-scheduler"
	kubelet           = "kubelet"
	kubeProxy         = "kube-proxy"
	kubeRouter        = "kube-router"
	agentSandbox      = "agent-sandbox-controller"
)

// stopOrder stops who uses a server before the server: kubelet first, so that
// it restarts nothing; etcd last.
var stopOrder = []string{
	kubelet, agentSandbox, kubeRouter, kubeProxy, scheduler, controllerManager, apiServer, containerd, etcd,
}

const (
	// stopWait is how long a component gets to end by itself.
	stopWait = 10 * time.Second
	// apiServerStopWait is longer: it first lets its open watches run out. A
	// client outside the cluster can keep one open for a minute; by then there
	// is nothing left to wait for.
	apiServerStopWait = 20 * time.Second
)

func stopWaitOf(name string) time.Duration {
	if name == apiServer {
		return apiServerStopWait
	}
	return stopWait
}

// systemPath is where the machine's own programs are found, whatever the
// caller's PATH is.
const systemPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// command completes a component's command line. inputs are the configuration
// files that it reads at its start.
func (c *Cluster) command(name string, inputs [][]byte, args ...string) proc.Command {
	return proc.Command{
		Name: name,
		Args: append([]string{filepath.Join(c.dirs.Bin(), name)}, args...),
		Env: []string{
			"PATH=" + c.dirs.Bin() + ":" + systemPath,
			"HOME=" + c.dirs.State,
			"KUBECONFIG=" + c.dirs.Kubeconfig(name),
		},
		Inputs: inputs,
	}
}

func loopback(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

func etcdURL(port int) string { return "http://" + loopback(port) }

func (c *Cluster) etcdCommand() proc.Command {
	return c.command(etcd, nil,
		"--name="+plan.NodeName,
		"--data-dir="+c.dirs.In("etcd"),
		"--listen-client-urls="+etcdURL(plan.EtcdClientPort),
		"--advertise-client-urls="+etcdURL(plan.EtcdClientPort),
		"--listen-peer-urls="+etcdURL(plan.EtcdPeerPort),
		"--initial-advertise-peer-urls="+etcdURL(plan.EtcdPeerPort),
		"--initial-cluster="+plan.NodeName+"="+etcdURL(plan.EtcdPeerPort),
		// The data is worth nothing after a crash of the machine: Up starts
		// over then.
		"--unsafe-no-fsync",
		"--log-level=warn",
	)
}

func (c *Cluster) containerdCommand() proc.Command {
	return c.command(containerd, c.files("containerd.toml"), "--config="+c.config("containerd.toml"))
}

func (c *Cluster) apiServerCommand() proc.Command {
	pki := func(file string) string { return filepath.Join(c.dirs.PKI(), file) }
	return c.command(apiServer, c.pkiFiles("ca", "apiserver", "apiserver-kubelet", "service-accounts"),
		"--etcd-servers="+etcdURL(plan.EtcdClientPort),
		"--bind-address="+plan.NodeIP.V4,
		"--advertise-address="+plan.NodeIP.V4,
		"--secure-port="+strconv.Itoa(plan.APIServerPort),
		"--service-cluster-ip-range="+c.families.List(plan.ServiceNet),
		"--tls-cert-file="+pki("apiserver.crt"),
		"--tls-private-key-file="+pki("apiserver.key"),
		"--client-ca-file="+pki("ca.crt"),
		"--kubelet-certificate-authority="+pki("ca.crt"),
		"--kubelet-client-certificate="+pki("apiserver-kubelet.crt"),
		"--kubelet-client-key="+pki("apiserver-kubelet.key"),
		// Exec would look up the node's name otherwise, which nobody knows.
		"--kubelet-preferred-address-types=InternalIP",
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file="+pki("service-accounts.crt"),
		"--service-account-signing-key-file="+pki("service-accounts.key"),
		"--authorization-mode=Node,RBAC",
		"--enable-admission-plugins=NodeRestriction",
		"--profiling=false",
	)
}

// limits lets a component send requests as fast as short-lived pods need.
func limits() []string {
	return []string{fmt.Sprintf("--kube-api-qps=%d", apiQPS), fmt.Sprintf("--kube-api-burst=%d", apiBurst)}
}

func (c *Cluster) controllerManagerCommand() proc.Command {
	kubeconfig := c.dirs.Kubeconfig(controllerManager)
	args := []string{
		"--kubeconfig=" + kubeconfig,
		"--authentication-kubeconfig=" + kubeconfig,
		"--authorization-kubeconfig=" + kubeconfig,
		"--bind-address=127.0.0.1",
		"--secure-port=" + strconv.Itoa(plan.ControllerPort),
		"--root-ca-file=" + filepath.Join(c.dirs.PKI(), "ca.crt"),
		"--service-account-private-key-file=" + filepath.Join(c.dirs.PKI(), "service-accounts.key"),
		"--use-service-account-credentials=true",
		"--leader-elect=false",
		"--flex-volume-plugin-dir=" + c.dirs.In("kubelet", "volume-plugins"),
		// The node's pod network is fixed, and there is no cloud.
		"--controllers=*,-node-ipam-controller,-node-route-controller,-cloud-node-lifecycle-controller",
	}
	inputs := append(c.pkiFiles("ca", "service-accounts"), c.kubeconfigFile(controllerManager))
	return c.command(controllerManager, inputs, append(args, limits()...)...)
}

func (c *Cluster) schedulerCommand() proc.Command {
	kubeconfig := c.dirs.Kubeconfig(scheduler)
	args := []string{
		"--kubeconfig=" + kubeconfig,
		"--authentication-kubeconfig=" + kubeconfig,
		"--authorization-kubeconfig=" + kubeconfig,
		"--bind-address=127.0.0.1",
		"--secure-port=" + strconv.Itoa(plan.SchedulerPort),
		"--leader-elect=false",
	}
	command := c.command(scheduler, [][]byte{c.kubeconfigFile(scheduler)}, append(args, limits()...)...)
	// It ends itself when its cache does not agree with the API server, as may happen
	// when that was restarted, and expects to be started again.
	command.Again = true
	return command
}

func (c *Cluster) kubeletCommand() proc.Command {
	inputs := append(c.files("kubelet.yaml"), c.pkiFiles("ca", "kubelet-server")...)
	return c.command(kubelet, append(inputs, c.kubeconfigFile(kubelet)),
		"--config="+c.config("kubelet.yaml"),
		"--kubeconfig="+c.dirs.Kubeconfig(kubelet),
		"--hostname-override="+plan.NodeName,
		"--node-ip="+c.families.List(plan.NodeIP),
		"--root-dir="+c.dirs.In("kubelet"),
		"--cert-dir="+c.dirs.In("kubelet", "pki"),
	)
}

func (c *Cluster) kubeProxyCommand() proc.Command {
	inputs := append(c.files("kube-proxy.yaml"), c.kubeconfigFile(kubeProxy))
	return c.command(kubeProxy, inputs, "--config="+c.config("kube-proxy.yaml"))
}

// kubeRouterCommand runs kube-router's firewall; kube-proxy does the rest.
func (c *Cluster) kubeRouterCommand() proc.Command {
	return c.command(kubeRouter, [][]byte{c.kubeconfigFile(kubeRouter)},
		"--kubeconfig="+c.dirs.Kubeconfig(kubeRouter),
		"--node="+plan.NodeName,
		"--service-cidrs="+c.families.List(plan.ServiceNet),
		"--ipv6="+strconv.FormatBool(c.families.V6),
	)
}

func (c *Cluster) agentSandboxCommand() proc.Command {
	return c.command(agentSandbox, [][]byte{c.kubeconfigFile(agentSandbox)},
		"--extensions",
		"--leader-elect=false",
		"--metrics-bind-address="+loopback(plan.AgentSandboxMetrics),
		"--health-probe-bind-address="+loopback(plan.AgentSandboxHealth),
	)
}

// internetCommand runs this program's own hidden server inside the namespace.
func (c *Cluster) internetCommand(i plan.Internet, self, namespace string) proc.Command {
	return proc.Command{
		Name: i.Name,
		Args: []string{
			"/usr/bin/nsenter", "--net=" + namespace, self,
			"internet", "--name=" + i.Name, "--ipv6=" + strconv.FormatBool(c.families.V6),
		},
		Env: []string{"PATH=" + systemPath, "HOME=" + c.dirs.State},
	}
}

// config is the path of a rendered configuration file.
func (c *Cluster) config(name string) string { return filepath.Join(c.dirs.Config(), name) }

// files reads configuration files as inputs of a command. One that cannot be
// read counts as empty: the component itself will say what is wrong.
func (c *Cluster) files(names ...string) [][]byte {
	var all [][]byte
	for _, n := range names {
		text, _ := os.ReadFile(c.config(n))
		all = append(all, text)
	}
	return all
}

func (c *Cluster) kubeconfigFile(component string) []byte {
	text, _ := os.ReadFile(c.dirs.Kubeconfig(component))
	return text
}

func (c *Cluster) pkiFiles(names ...string) [][]byte {
	var all [][]byte
	for _, n := range names {
		text, _ := os.ReadFile(filepath.Join(c.dirs.PKI(), n+".crt"))
		all = append(all, text)
	}
	return all
}
