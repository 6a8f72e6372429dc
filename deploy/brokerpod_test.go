package deploy_test

import (
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

func TestBrokerPod(t *testing.T) {
	deployment := one[*appsv1.Deployment](t, render(t, "broker"))
	assert.Equal(t, appsv1.RollingUpdateDeploymentStrategyType, deployment.Spec.Strategy.Type)
	assert.Zero(t, deployment.Spec.Strategy.RollingUpdate.MaxUnavailable.IntValue(), "one is always there")
	spec := deployment.Spec.Template.Spec
	require.Len(t, spec.Containers, 1)
	broker := spec.Containers[0]

	assert.Nil(t, spec.SecurityContext.RunAsUser, "OpenShift assigns the user")
	assert.True(t, *broker.SecurityContext.ReadOnlyRootFilesystem)
	for _, mount := range broker.VolumeMounts {
		assert.True(t, mount.ReadOnly, mount.Name)
	}
	for probe, want := range map[string]*corev1.Probe{"/readyz": broker.ReadinessProbe, "/healthz": broker.LivenessProbe} {
		require.NotNil(t, want, probe)
		assert.Equal(t, probe, want.HTTPGet.Path)
		assert.Equal(t, "http-metrics", want.HTTPGet.Port.String())
		assert.Empty(t, want.HTTPGet.Scheme, "%s is on the plain port", probe)
	}
}

// TestBrokerMemory: the soft limit is under the hard one, but not far.
func TestBrokerMemory(t *testing.T) {
	broker := one[*appsv1.Deployment](t, render(t, "broker")).Spec.Template.Spec.Containers[0]
	var soft int64
	for _, variable := range broker.Env {
		if variable.Name == "GOMEMLIMIT" {
			mebibytes, err := strconv.ParseInt(strings.TrimSuffix(variable.Value, "MiB"), 10, 64)
			require.NoError(t, err, "GOMEMLIMIT is in MiB")
			soft = mebibytes << 20
		}
	}
	hard := broker.Resources.Limits.Memory().Value()
	assert.Greater(t, soft, hard*8/10)
	assert.Less(t, soft, hard*95/100)
}

// TestServiceReachesBroker follows the labels and names from the Service and
// the NetworkPolicy to the pod.
func TestServiceReachesBroker(t *testing.T) {
	objects := render(t, "broker")
	template := one[*appsv1.Deployment](t, objects).Spec.Template
	service := one[*corev1.Service](t, objects)
	assert.True(t, labels.SelectorFromSet(service.Spec.Selector).Matches(labels.Set(template.Labels)))
	require.Len(t, service.Spec.Ports, 1, "metrics are not offered to callers")
	assert.EqualValues(t, 8443, service.Spec.Ports[0].Port)
	assert.Equal(t, "https", service.Spec.Ports[0].TargetPort.String())

	var opened []string
	for _, policy := range ofType[*networkingv1.NetworkPolicy](objects) {
		selector, err := metav1.LabelSelectorAsSelector(&policy.Spec.PodSelector)
		require.NoError(t, err)
		require.True(t, selector.Matches(labels.Set(template.Labels)), policy.Name)
		for _, rule := range policy.Spec.Ingress {
			for _, port := range rule.Ports {
				opened = append(opened, port.Port.String())
				if port.Port.String() == "http-metrics" {
					assert.NotEmpty(t, rule.From, "metrics have no authentication")
				}
			}
		}
	}
	assert.ElementsMatch(t, []string{"https", "http-metrics"}, opened)
}
