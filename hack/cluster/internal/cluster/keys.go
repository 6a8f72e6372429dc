package cluster

import (
	"fmt"
	"net"
	"os"
	"strconv"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/sandbox-broker/sandbox-broker/hack/cluster/internal/pki"
	"github.com/sandbox-broker/sandbox-broker/hack/cluster/internal/plan"
)

// Names of the two authorities. The broker has one of its own, so that trusting
// the broker does not mean trusting the cluster's administrators.
const (
	clusterCA = "ca"
	brokerCA  = "broker-ca"
)

// administrators may do everything in Kubernetes.
const administrators = "system:masters"

// clients are who gets a certificate and a kubeconfig, by component. Where
// Kubernetes has a role for the component, the name is what that role expects.
var clients = map[string]pki.Subject{
	"admin":           {Name: "admin", Groups: []string{administrators}},
	controllerManager: {Name: "system:kube-controller-manager"},
	scheduler:         {Name: "system:kube-scheduler"},
	kubelet:           {Name: "system:node:" + plan.NodeName, Groups: []string{"system:nodes"}},
	kubeProxy:         {Name: "system:kube-proxy"},
	kubeRouter:        {Name: kubeRouter, Groups: []string{administrators}},
	agentSandbox:      {Name: agentSandbox, Groups: []string{administrators}},
}

func (c *Cluster) keys() pki.Store { return pki.Store{Dir: c.dirs.PKI()} }

// makeKeys makes the cluster's certificates and kubeconfigs.
func (c *Cluster) makeKeys() error {
	ca, err := c.keys().Authority(clusterCA)
	if err != nil {
		return err
	}
	if _, err := c.keys().Authority(brokerCA); err != nil {
		return err
	}
	servers := map[string]pki.Subject{
		"apiserver": {Name: "kube-apiserver", Hosts: append(append([]string{
			"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "127.0.0.1",
		}, c.families.Of(plan.NodeIP)...), c.families.Of(plan.APIServiceIP)...)},
		"kubelet-server":    {Name: plan.NodeName, Hosts: append([]string{plan.NodeName}, c.families.Of(plan.NodeIP)...)},
		"apiserver-kubelet": {Name: "apiserver-kubelet", Groups: []string{administrators}},
		// Only its key pair is used: it signs service account tokens.
		"service-accounts": {Name: "service-accounts"},
	}
	for name, subject := range servers {
		if _, err := c.keys().Issue(ca, name, subject); err != nil {
			return err
		}
	}
	for component, subject := range clients {
		pair, err := c.keys().Issue(ca, component, subject)
		if err != nil {
			return err
		}
		path := c.dirs.Kubeconfig(component)
		if component == "admin" {
			path = c.dirs.AdminKubeconfig()
		}
		if err := writeKubeconfig(path, ca, pair); err != nil {
			return fmt.Errorf("writing %s: %w", path, err)
		}
	}
	return nil
}

// writeKubeconfig writes the file with all keys in it, so that it works from
// anywhere on this machine.
func writeKubeconfig(path string, ca, client pki.Pair) error {
	var contents [3][]byte
	for n, file := range []string{ca.CertFile, client.CertFile, client.KeyFile} {
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		contents[n] = text
	}
	const name = "sandbox-broker-local"
	config := clientcmdapi.Config{
		Clusters: map[string]*clientcmdapi.Cluster{name: {
			Server:                   "https://" + net.JoinHostPort(plan.NodeIP.V4, strconv.Itoa(plan.APIServerPort)),
			CertificateAuthorityData: contents[0],
		}},
		AuthInfos: map[string]*clientcmdapi.AuthInfo{name: {
			ClientCertificateData: contents[1], ClientKeyData: contents[2],
		}},
		Contexts:       map[string]*clientcmdapi.Context{name: {Cluster: name, AuthInfo: name}},
		CurrentContext: name,
	}
	text, err := clientcmd.Write(config)
	if err != nil {
		return err
	}
	return writeFile(path, text, 0o600)
}

// writeConfigs renders the components' configuration files.
func (c *Cluster) writeConfigs() error {
	ca := c.dirs.In("pki", clusterCA+".crt")
	cni, err := cniConfig(c.dirs, c.families)
	if err != nil {
		return err
	}
	kubeletYAML, err := kubeletConfig(c.dirs, ca)
	if err != nil {
		return err
	}
	proxyYAML, err := proxyConfig(c.dirs, c.families)
	if err != nil {
		return err
	}
	for name, text := range map[string][]byte{
		"containerd.toml":      containerdConfig(c.dirs),
		"runsc.toml":           runscConfig(),
		"cni/10-pods.conflist": cni,
		"kubelet.yaml":         kubeletYAML,
		"kube-proxy.yaml":      proxyYAML,
	} {
		if err := writeFile(c.config(name), text, 0o644); err != nil {
			return err
		}
	}
	return nil
}
