package deploy_test

import (
	"path"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	extensionsv1beta1 "sigs.k8s.io/agent-sandbox/extensions/api/v1beta1"
	"sigs.k8s.io/yaml"
)

// TestBrokerRights is the whole list. A right that is added here is added to
// what a stolen broker can do.
func TestBrokerRights(t *testing.T) {
	objects := render(t, "broker")

	role := one[*rbacv1.Role](t, objects)
	assert.Equal(t, "sandboxes", role.Namespace)
	assert.ElementsMatch(t, []string{
		"extensions.agents.x-k8s.io/sandboxclaims: get list watch create patch delete",
		"extensions.agents.x-k8s.io/sandboxwarmpools: get list watch",
		"agents.x-k8s.io/sandboxes: get list watch",
		"/pods: get list watch", "coordination.k8s.io/leases: get list watch create patch delete",
		"/pods/exec: get create",
	}, rights(t, role.Rules))

	clusterRole := one[*rbacv1.ClusterRole](t, objects)
	assert.Equal(t, []string{"authentication.k8s.io/tokenreviews: create"}, rights(t, clusterRole.Rules))
	assert.Nil(t, clusterRole.AggregationRule)

	account := one[*corev1.ServiceAccount](t, objects)
	subjects := []rbacv1.Subject{{Kind: "ServiceAccount", Name: account.Name, Namespace: account.Namespace}}
	binding := one[*rbacv1.RoleBinding](t, objects)
	assert.Equal(t, role.Namespace, binding.Namespace)
	assert.Equal(t, rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: role.Name}, binding.RoleRef)
	assert.Equal(t, subjects, binding.Subjects)
	clusterBinding := one[*rbacv1.ClusterRoleBinding](t, objects)
	assert.Equal(t, rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: clusterRole.Name}, clusterBinding.RoleRef)
	assert.Equal(t, subjects, clusterBinding.Subjects)
}

// TestNoOtherRights: no base but the broker's gives anybody anything.
func TestNoOtherRights(t *testing.T) {
	for _, base := range bases {
		if base == "broker" {
			continue
		}
		objects := render(t, base)
		assert.Empty(t, ofType[*rbacv1.Role](objects), base)
		assert.Empty(t, ofType[*rbacv1.ClusterRole](objects), base)
		assert.Empty(t, ofType[*rbacv1.RoleBinding](objects), base)
		assert.Empty(t, ofType[*rbacv1.ClusterRoleBinding](objects), base)
	}
}

// rights flattens rules to one line for each resource.
func rights(t *testing.T, rules []rbacv1.PolicyRule) []string {
	t.Helper()
	var lines []string
	for _, rule := range rules {
		assert.Empty(t, rule.NonResourceURLs)
		assert.Empty(t, rule.ResourceNames)
		for _, group := range rule.APIGroups {
			for _, resource := range rule.Resources {
				lines = append(lines, group+"/"+resource+": "+strings.Join(rule.Verbs, " "))
			}
		}
	}
	return lines
}

// config mirrors the keys of the broker's configuration that other manifests
// depend on. Unknown keys are an error, so a new one shows up here.
type config struct {
	Listen        string `json:"listen"`
	MetricsListen string `json:"metricsListen"`
	TLS           struct {
		CertFile string `json:"certFile"`
		KeyFile  string `json:"keyFile"`
	} `json:"tls"`
	Instance      string `json:"instance"`
	HandleKeyFile string `json:"handleKeyFile"`
	Auth          struct {
		TokenReview struct {
			Audiences []string `json:"audiences"`
		} `json:"tokenReview"`
	} `json:"auth"`
	Provider struct {
		AgentSandbox struct {
			Namespace string `json:"namespace"`
		} `json:"agentSandbox"`
	} `json:"provider"`
	Pools []struct {
		Name         string   `json:"name"`
		WarmPool     string   `json:"warmPool"`
		Languages    []string `json:"languages"`
		MaxSandboxes int      `json:"maxSandboxes"`
		Stock        int      `json:"stock"`
	} `json:"pools"`
}

func brokerConfig(t *testing.T) config {
	t.Helper()
	data := one[*corev1.ConfigMap](t, render(t, "broker")).Data
	require.Contains(t, data, "config.yaml")
	require.Len(t, data, 1)
	var c config
	require.NoError(t, yaml.UnmarshalStrict([]byte(data["config.yaml"]), &c))
	require.NotEmpty(t, c.Pools)
	return c
}

// TestBrokerConfig: what the configuration names is what the manifests have.
func TestBrokerConfig(t *testing.T) {
	c := brokerConfig(t)
	pool := one[*extensionsv1beta1.SandboxWarmPool](t, render(t, "warmpool"))
	assert.NotEmpty(t, c.Instance)
	assert.Equal(t, []string{"sandbox-broker"}, c.Auth.TokenReview.Audiences)
	assert.Equal(t, pool.Namespace, c.Provider.AgentSandbox.Namespace)
	assert.Len(t, c.Pools, 1)
	assert.Equal(t, pool.Name, c.Pools[0].WarmPool)
	assert.Equal(t, "python-gvisor", c.Pools[0].Name)
	assert.Equal(t, []string{"python", "node", "shell"}, c.Pools[0].Languages)
	assert.Greater(t, c.Pools[0].MaxSandboxes, c.Pools[0].Stock)

	spec := one[*appsv1.Deployment](t, render(t, "broker")).Spec.Template.Spec
	ports := map[string]string{}
	for _, port := range spec.Containers[0].Ports {
		ports[port.Name] = ":" + strconv.Itoa(int(port.ContainerPort))
	}
	assert.Equal(t, map[string]string{"https": c.Listen, "http-metrics": c.MetricsListen}, ports)

	mounted := mountedFiles(spec)
	for _, file := range []string{c.TLS.CertFile, c.TLS.KeyFile, c.HandleKeyFile} {
		assert.Contains(t, mounted, path.Dir(file), "%s is in no mounted volume", file)
	}
	assert.Equal(t, map[string]string{
		"/etc/sandbox-broker/config":     "configMap sandbox-broker-config",
		"/etc/sandbox-broker/tls":        "secret sandbox-broker-tls",
		"/etc/sandbox-broker/handle-key": "secret sandbox-broker-handle-key",
	}, mounted)
	assert.Equal(t, []string{"/sandbox-broker", "serve", "--config", "/etc/sandbox-broker/config/config.yaml"}, spec.Containers[0].Command)
}

// mountedFiles tells for each path of the one container what is mounted there.
func mountedFiles(spec corev1.PodSpec) map[string]string {
	sources := map[string]string{}
	for _, volume := range spec.Volumes {
		switch {
		case volume.ConfigMap != nil:
			sources[volume.Name] = "configMap " + volume.ConfigMap.Name
		case volume.Secret != nil:
			sources[volume.Name] = "secret " + volume.Secret.SecretName
		}
	}
	mounted := map[string]string{}
	for _, mount := range spec.Containers[0].VolumeMounts {
		mounted[mount.MountPath] = sources[mount.Name]
	}
	return mounted
}
