package deploy_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	extensionsv1beta1 "sigs.k8s.io/agent-sandbox/extensions/api/v1beta1"
)

const runnerFolder = "/opt/sandbox-runner"

// templates are the overlays that make a template out of sandbox-base.
var templates = map[string]string{"gvisor": "python-gvisor", "gvisor-image-volume": "python-gvisor", "kata": "python-kata"}

func TestSandboxTemplates(t *testing.T) {
	for folder, name := range templates {
		t.Run(folder, func(t *testing.T) {
			template := one[*extensionsv1beta1.SandboxTemplate](t, render(t, folder))
			assert.Equal(t, name, template.Name)
			assert.Equal(t, "sandboxes", template.Namespace)
			checkTemplate(t, template.Spec)
			checkPod(t, template.Spec.PodTemplate.Spec)
			checkRunner(t, template.Spec.PodTemplate.Spec)
			checkWritablePaths(t, template.Spec.PodTemplate.Spec)
		})
	}
}

// checkTemplate: agent-sandbox adds nothing of its own to the pod or around it.
func checkTemplate(t *testing.T, spec extensionsv1beta1.SandboxTemplateSpec) {
	t.Helper()
	assert.Equal(t, extensionsv1beta1.NetworkPolicyManagementUnmanaged, spec.NetworkPolicyManagement,
		"a managed policy would open what default-deny closes")
	assert.Equal(t, extensionsv1beta1.EnvVarsInjectionPolicyDisallowed, spec.EnvVarsInjectionPolicy)
	assert.Equal(t, extensionsv1beta1.VolumeClaimTemplatesPolicyDisallowed, spec.VolumeClaimTemplatesPolicy)
	require.NotNil(t, spec.Service)
	assert.False(t, *spec.Service)
	assert.Empty(t, spec.VolumeClaimTemplates)
}

// checkPod has what Pod Security does not ask for.
func checkPod(t *testing.T, spec corev1.PodSpec) {
	t.Helper()
	assert.Equal(t, corev1.RestartPolicyNever, spec.RestartPolicy)
	require.NotNil(t, spec.TerminationGracePeriodSeconds)
	assert.EqualValues(t, 1, *spec.TerminationGracePeriodSeconds)
	require.NotNil(t, spec.AutomountServiceAccountToken)
	assert.False(t, *spec.AutomountServiceAccountToken)
	require.NotNil(t, spec.EnableServiceLinks)
	assert.False(t, *spec.EnableServiceLinks)
	assert.Equal(t, corev1.DNSDefault, spec.DNSPolicy)
	assert.Empty(t, spec.ServiceAccountName)
	assert.Contains(t, spec.Tolerations, corev1.Toleration{
		Key: corev1.TaintNodeUnreachable, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: new(int64),
	}, "a lost node is told before the broker gives up its channel")

	require.NotNil(t, spec.SecurityContext)
	assert.Nil(t, spec.SecurityContext.RunAsUser, "OpenShift assigns the user")
	assert.Nil(t, spec.SecurityContext.RunAsGroup)
	assert.Nil(t, spec.SecurityContext.FSGroup, "OpenShift assigns the group")
	for _, c := range append(spec.InitContainers, spec.Containers...) {
		require.NotNil(t, c.SecurityContext, c.Name)
		assert.Nil(t, c.SecurityContext.RunAsUser, c.Name)
		require.NotNil(t, c.SecurityContext.ReadOnlyRootFilesystem, c.Name)
		assert.True(t, *c.SecurityContext.ReadOnlyRootFilesystem, c.Name)
		assert.Equal(t, []corev1.Capability{"ALL"}, c.SecurityContext.Capabilities.Drop, c.Name)
		assert.Empty(t, c.Ports, "%s: a sandbox listens to nobody", c.Name)
		assert.Nil(t, c.LivenessProbe, c.Name)
		assert.Nil(t, c.ReadinessProbe, c.Name)
		assert.Nil(t, c.StartupProbe, c.Name)
		for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
			assert.NotZero(t, c.Resources.Limits[name], "%s: limit of %s", c.Name, name)
			assert.NotZero(t, c.Resources.Requests[name], "%s: request of %s", c.Name, name)
		}
	}
}

// checkRunner: the runner comes by a volume that user code cannot change, filled
// by an init container or being the runner's image itself.
func checkRunner(t *testing.T, spec corev1.PodSpec) {
	t.Helper()
	require.Len(t, spec.Containers, 1)
	main := spec.Containers[0]
	require.Equal(t, "runner", spec.Volumes[0].Name)
	if spec.Volumes[0].Image == nil {
		require.Len(t, spec.InitContainers, 1)
		install := spec.InitContainers[0]
		assert.Equal(t, "runner", install.Name)
		assert.Equal(t, []string{"/sandbox-runner", "install", runnerFolder}, install.Command)
		assert.Equal(t, []corev1.VolumeMount{{Name: "runner", MountPath: runnerFolder}}, install.VolumeMounts)
	} else {
		assert.Empty(t, spec.InitContainers)
	}

	assert.Equal(t, "sandbox", main.Name)
	assert.Equal(t, []string{runnerFolder + "/sandbox-runner", "serve"}, main.Command)
	assert.Contains(t, main.VolumeMounts, corev1.VolumeMount{Name: "runner", MountPath: runnerFolder, ReadOnly: true})
	for _, mount := range main.VolumeMounts {
		assert.Empty(t, mount.SubPath, "Kata has no subPath")
		if mount.Name == "runner" {
			assert.True(t, mount.ReadOnly, "user code could replace the runner at %s", mount.MountPath)
		}
	}

	env := map[string]corev1.EnvVar{}
	for _, variable := range main.Env {
		env[variable.Name] = variable
	}
	assert.Equal(t, "/home/sandbox", env["HOME"].Value)
	assert.Equal(t, "/workspace", env["SANDBOX_WORKSPACE"].Value)
	for name, want := range map[string]corev1.ResourceFieldSelector{
		"SANDBOX_MEMORY_LIMIT": {ContainerName: "sandbox", Resource: "limits.memory", Divisor: resource.MustParse("1")},
		"SANDBOX_CPU_LIMIT":    {ContainerName: "sandbox", Resource: "limits.cpu", Divisor: resource.MustParse("1m")},
	} {
		require.NotNil(t, env[name].ValueFrom, name)
		require.NotNil(t, env[name].ValueFrom.ResourceFieldRef, name)
		got := *env[name].ValueFrom.ResourceFieldRef
		assert.Equal(t, want.ContainerName, got.ContainerName, name)
		assert.Equal(t, want.Resource, got.Resource, name)
		assert.Zero(t, want.Divisor.Cmp(got.Divisor), name)
	}
}

// checkWritablePaths: with a read-only root, these are all the program can write
// to, and each has a bound.
func checkWritablePaths(t *testing.T, spec corev1.PodSpec) {
	t.Helper()
	writable := []string{}
	for _, mount := range spec.Containers[0].VolumeMounts {
		if !mount.ReadOnly {
			writable = append(writable, mount.MountPath)
		}
	}
	assert.ElementsMatch(t, []string{"/workspace", "/tmp", "/home/sandbox"}, writable)
	assert.Equal(t, "/workspace", spec.Containers[0].WorkingDir)
	for _, volume := range spec.Volumes {
		if volume.Image != nil {
			continue // never writable
		}
		require.NotNil(t, volume.EmptyDir, volume.Name)
		require.NotNil(t, volume.EmptyDir.SizeLimit, volume.Name)
		assert.Positive(t, volume.EmptyDir.SizeLimit.Sign(), volume.Name)
	}
}

// TestKataDiffersInClassAndLimitsOnly: what is learned of one runtime's template
// holds for the other.
func TestKataDiffersInClassAndLimitsOnly(t *testing.T) {
	gvisor := one[*extensionsv1beta1.SandboxTemplate](t, render(t, "gvisor"))
	kata := one[*extensionsv1beta1.SandboxTemplate](t, render(t, "kata"))
	assert.Equal(t, "gvisor", *gvisor.Spec.PodTemplate.Spec.RuntimeClassName)
	assert.Equal(t, "kata", *kata.Spec.PodTemplate.Spec.RuntimeClassName)

	kata.Name = gvisor.Name
	kata.Spec.PodTemplate.Spec.RuntimeClassName = gvisor.Spec.PodTemplate.Spec.RuntimeClassName
	kata.Spec.PodTemplate.Spec.Containers[0].Resources = gvisor.Spec.PodTemplate.Spec.Containers[0].Resources
	assert.Equal(t, gvisor, kata)
}

// TestQuotaLeavesRoom: a quota under what pools may use starves them without a
// word. The factor two is for pods that are still terminating.
func TestQuotaLeavesRoom(t *testing.T) {
	config := brokerConfig(t)
	quota := one[*corev1.ResourceQuota](t, render(t, "gvisor")).Spec.Hard
	most := int64(config.Pools[0].MaxSandboxes)
	for _, folder := range []string{"warmpool", "kata"} {
		most += int64(*one[*extensionsv1beta1.SandboxWarmPool](t, render(t, folder)).Spec.Replicas)
	}
	allowed := quota[corev1.ResourcePods]
	assert.GreaterOrEqual(t, allowed.Value(), 2*most)

	for folder := range templates {
		limits := one[*extensionsv1beta1.SandboxTemplate](t, render(t, folder)).Spec.PodTemplate.Spec.Containers[0].Resources
		for name, each := range map[corev1.ResourceName]resource.Quantity{
			corev1.ResourceLimitsCPU: limits.Limits[corev1.ResourceCPU], corev1.ResourceLimitsMemory: limits.Limits[corev1.ResourceMemory],
			corev1.ResourceRequestsCPU: limits.Requests[corev1.ResourceCPU], corev1.ResourceRequestsMemory: limits.Requests[corev1.ResourceMemory],
		} {
			hard := quota[name]
			assert.GreaterOrEqual(t, hard.MilliValue(), 2*most*each.MilliValue(), "%s: %s", folder, name)
		}
	}
}

// TestImagesOfAnotherRegistry does what docs/deploy.md tells: kustomize's
// `images` also reach into the template, which is no built-in kind.
func TestImagesOfAnotherRegistry(t *testing.T) {
	for _, folder := range []string{"gvisor", "kata", "broker"} {
		overlay := t.TempDir()
		absolute, err := filepath.Abs(folder)
		require.NoError(t, err)
		relative, err := filepath.Rel(overlay, absolute)
		require.NoError(t, err)
		var text strings.Builder
		fmt.Fprintf(&text, "resources: [%s]\nimages:\n", relative)
		for _, image := range []string{"sandbox", "runner", "broker"} {
			fmt.Fprintf(&text, "- {name: localhost/sandbox-broker/%s, newName: registry.example.com/%s, newTag: v1}\n", image, image)
		}
		require.NoError(t, os.WriteFile(filepath.Join(overlay, "kustomization.yaml"), []byte(text.String()), 0o600))

		out := string(renderYAML(t, overlay))
		assert.NotContains(t, out, "localhost/", folder)
		assert.Contains(t, out, "registry.example.com/", folder)
	}
}
