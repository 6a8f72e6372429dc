// Command kube-router runs the NetworkPolicy firewall of kube-router v2.1.0 for
// both address families, which that release cannot do by itself.
//
// kube-router keeps the addresses that a policy speaks of in kernel sets (ipset)
// and refers to them from iptables rules. With two families two things go wrong
// in v2.1.0. It makes the IPv6 sets as "inet6:NAME", but its rules say NAME, so
// every rule is refused and nothing is enforced (kube-router's issue 1653). And
// each family's handler reads the sets of both and later writes them all back,
// so that one undoes at random what the other has just written: a policy then
// knows pods that are gone, and not those that are new.
//
// Both are mended from outside, by giving the controller handlers that know one
// family each (see sets.go). The rest of this program is what kube-router's own
// main does for --run-firewall. Later releases may not need it.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"

	"github.com/cloudnativelabs/kube-router/v2/pkg/controllers/netpol"
	"github.com/cloudnativelabs/kube-router/v2/pkg/healthcheck"
	"github.com/cloudnativelabs/kube-router/v2/pkg/options"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
)

func main() {
	config := options.NewKubeRouterConfig()
	var services string
	flag.StringVar(&config.Kubeconfig, "kubeconfig", "", "how to reach the API server")
	flag.StringVar(&config.HostnameOverride, "node", "", "the name of this node")
	flag.StringVar(&services, "service-cidrs", "", "the Services' networks, IPv4 first")
	flag.BoolVar(&config.EnableIPv6, "ipv6", false, "enforce policies for IPv6, too")
	flag.Parse()
	config.EnableIPv4 = true
	config.ClusterIPCIDRs = strings.Split(services, ",")

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, config)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "kube-router:", err)
		os.Exit(1)
	}
}

// run enforces policies until ctx ends.
func run(ctx context.Context, config *options.KubeRouterConfig) error {
	rest, err := clientcmd.BuildConfigFromFlags("", config.Kubeconfig)
	if err != nil {
		return fmt.Errorf("reading the kubeconfig: %w", err)
	}
	client, err := kubernetes.NewForConfig(rest)
	if err != nil {
		return err
	}
	factory := informers.NewSharedInformerFactory(client, 0)
	pods := factory.Core().V1().Pods().Informer()
	namespaces := factory.Core().V1().Namespaces().Informer()
	policies := factory.Networking().V1().NetworkPolicies().Informer()
	factory.Start(ctx.Done())
	syncing, cancel := context.WithTimeout(ctx, config.CacheSyncTimeout)
	defer cancel()
	if !cache.WaitForCacheSync(syncing.Done(), pods.HasSynced, namespaces.HasSynced, policies.HasSynced) {
		return fmt.Errorf("reading pods and policies took longer than %s", config.CacheSyncTimeout)
	}

	tables, sets, err := netpol.NewIPTablesHandlers(config)
	if err != nil {
		return err
	}
	if sets, err = onePerFamily(sets); err != nil {
		return err
	}
	var setLock sync.Mutex // the controller's own, for the kernel's sets
	firewall, err := netpol.NewNetworkPolicyController(client, config, pods, policies, namespaces, &setLock, tables, sets)
	if err != nil {
		return fmt.Errorf("preparing the firewall: %w", err)
	}
	for informer, handler := range map[cache.SharedIndexInformer]cache.ResourceEventHandler{
		pods: firewall.PodEventHandler, namespaces: firewall.NamespaceEventHandler, policies: firewall.NetworkPolicyEventHandler,
	} {
		if _, err := informer.AddEventHandler(handler); err != nil {
			return err
		}
	}
	klog.Infof("enforcing policies on node %s, IPv6: %t", config.HostnameOverride, config.EnableIPv6)
	enforce(ctx, firewall)
	return nil
}

// enforce runs the controller and takes its heartbeats, for which it would wait.
func enforce(ctx context.Context, firewall *netpol.NetworkPolicyController) {
	beats := make(chan *healthcheck.ControllerHeartbeat)
	var running sync.WaitGroup
	running.Add(1) // the controller itself says Done
	go firewall.Run(beats, ctx.Done(), &running)
	ended := make(chan struct{})
	go func() {
		running.Wait()
		close(ended)
	}()
	for {
		select {
		case <-beats:
		case <-ended:
			return
		}
	}
}
