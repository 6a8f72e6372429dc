package cluster

import (
	"encoding/json"
	"fmt"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/sandbox-broker/sandbox-broker/hack/cluster/internal/plan"
)

// object is a piece of YAML or JSON.
type object = map[string]any

// containerdConfig is containerd's configuration. Whatever containerd would put
// into folders of the machine's is put below the state folder, so that it is
// known as the cluster's and goes with it.
func containerdConfig(d plan.Dirs) []byte {
	return fmt.Appendf(nil, `version = 3
root = %[1]q
state = %[2]q

[grpc]
  address = %[3]q

# Both would make folders outside the cluster's own.
[plugins."io.containerd.nri.v1.nri"]
  disable = true
[plugins."io.containerd.internal.v1.opt"]
  path = %[4]q

[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = %[5]q

[plugins."io.containerd.cri.v1.runtime"]
  # Containers and many CI machines may not lower an OOM score.
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = ["/usr/lib/cni"]
    conf_dir = %[6]q
    # Else the loopback plugin would leave files that nobody can tell are ours.
    use_internal_loopback = true
  [plugins."io.containerd.cri.v1.runtime".containerd]
    default_runtime_name = "runc"
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
        Root = %[7]q
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.%[8]s]
      runtime_type = "io.containerd.runsc.v1"
      [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.%[8]s.options]
        TypeUrl = "io.containerd.runsc.v1.options"
        ConfigPath = %[9]q
`, d.ContainerdRoot(), d.ContainerdState(), d.ContainerdSocket(), d.In("opt"), plan.PauseImage,
		d.In("etc", "cni"), d.In("run", "runc"), plan.RuntimeHandler, d.In("etc", "runsc.toml"))
}

// runscConfig is read by gVisor's shim. The systrap platform works everywhere;
// kvm hangs on machines without hardware virtualisation.
func runscConfig() []byte {
	return fmt.Appendf(nil, "root = %q\n\n[runsc_config]\n  platform = \"systrap\"\n", plan.RunscRoot)
}

// cniConfig connects each pod by a cable of its own. With a bridge, packets
// between pods would not pass the firewall. There is no masquerading: pods have
// no way out of this machine.
func cniConfig(d plan.Dirs, fam plan.Families) ([]byte, error) {
	var ranges [][]object
	routes := []object{{"dst": "0.0.0.0/0"}}
	for _, network := range fam.Of(plan.PodNet) {
		ranges = append(ranges, []object{{"subnet": network}})
	}
	if fam.V6 {
		routes = append(routes, object{"dst": "::/0"})
	}
	return json.MarshalIndent(object{
		"cniVersion": "1.0.0",
		"name":       cniNetwork,
		"plugins": []object{{
			"type":   "ptp",
			"ipMasq": false,
			"ipam": object{
				"type": "host-local", "dataDir": d.In("cni"), "ranges": ranges, "routes": routes,
			},
		}},
	}, "", "  ")
}

// cniNetwork names the pod network; the CNI library keeps results under it.
const cniNetwork = "sandbox-broker-pods"

func kubeletConfig(d plan.Dirs, clientCA string) ([]byte, error) {
	return yaml.Marshal(object{
		"apiVersion": "kubelet.config.k8s.io/v1beta1",
		"kind":       "KubeletConfiguration",

		"address":            plan.NodeIP.V4,
		"port":               plan.KubeletPort,
		"healthzBindAddress": "127.0.0.1",
		"healthzPort":        plan.KubeletHealthPort,
		"tlsCertFile":        d.In("pki", "kubelet-server.crt"),
		"tlsPrivateKeyFile":  d.In("pki", "kubelet-server.key"),
		"authentication": object{
			"anonymous": object{"enabled": false},
			"webhook":   object{"enabled": true},
			"x509":      object{"clientCAFile": clientCA},
		},
		"authorization": object{"mode": "Webhook"},

		"containerRuntimeEndpoint": "unix://" + d.ContainerdSocket(),
		"cgroupDriver":             "cgroupfs",
		"cgroupRoot":               "/" + plan.CgroupRoot,
		"failCgroupV1":             false,
		"failSwapOn":               false,
		"enforceNodeAllocatable":   []string{},
		"maxPods":                  maxPods,

		// kube-proxy and kube-router need no chains of kubelet's.
		"makeIPTablesUtilChains": false,
		// There is no DNS in the cluster.
		"resolvConf": "",
		// Images are imported, not pulled: one that was deleted to save space
		// could not be had again.
		"imageGCHighThresholdPercent": 100,
		"evictionHard": object{
			"nodefs.available": "1%", "imagefs.available": "1%", "memory.available": "100Mi",
		},

		"podLogsDir":      d.In("podlogs"),
		"volumePluginDir": d.In("kubelet", "volume-plugins"),
		"kubeAPIQPS":      apiQPS,
		"kubeAPIBurst":    apiBurst,
		"eventRecordQPS":  0, // no limit
	})
}

const (
	// maxPods is far above what a small machine carries; memory is the limit.
	maxPods = 200
	// apiQPS and apiBurst let components follow bursts of short-lived pods;
	// their defaults are made for patient ones.
	apiQPS   = 200
	apiBurst = 400
)

func proxyConfig(d plan.Dirs, fam plan.Families) ([]byte, error) {
	return yaml.Marshal(object{
		"apiVersion":         "kubeproxy.config.k8s.io/v1alpha1",
		"kind":               "KubeProxyConfiguration",
		"clientConnection":   object{"kubeconfig": d.Kubeconfig("kube-proxy")},
		"mode":               "nftables",
		"clusterCIDR":        fam.List(plan.PodNet),
		"hostnameOverride":   plan.NodeName,
		"healthzBindAddress": fmt.Sprintf("127.0.0.1:%d", plan.ProxyHealthPort),
		"metricsBindAddress": fmt.Sprintf("127.0.0.1:%d", plan.ProxyMetricsPort),
		// Node ports stay off the machine's own interfaces.
		"nodePortAddresses": withLength(fam.Of(plan.NodeIP)),
		// Zero leaves the machine's connection tracking as it is.
		"conntrack": object{
			"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s",
		},
	})
}

// withLength writes addresses as networks of one.
func withLength(addresses []string) []string {
	var out []string
	for _, a := range addresses {
		if strings.Contains(a, ":") {
			out = append(out, a+"/128")
		} else {
			out = append(out, a+"/32")
		}
	}
	return out
}
