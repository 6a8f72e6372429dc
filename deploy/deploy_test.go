package deploy_test

import (
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	nodev1 "k8s.io/api/node/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	psapi "k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"
	extensionsv1beta1 "sigs.k8s.io/agent-sandbox/extensions/api/v1beta1"
)

var update = flag.Bool("update", false, "write the golden files anew")

func TestGolden(t *testing.T) {
	for _, base := range bases {
		t.Run(base, func(t *testing.T) {
			got := renderYAML(t, base)
			golden := filepath.Join("testdata", strings.ReplaceAll(base, "/", "-")+".golden.yaml")
			if *update {
				require.NoError(t, os.MkdirAll(filepath.Dir(golden), 0o755))
				require.NoError(t, os.WriteFile(golden, got, 0o644))
			}
			want, err := os.ReadFile(golden)
			require.NoError(t, err, "run `make golden` to write it")
			assert.Equal(t, string(want), string(got), "run `make golden` if the change is meant")
		})
	}
}

// TestPodsAreRestricted asks the same code that the API server runs, with the
// pinned version of the namespace and with the newest rules.
func TestPodsAreRestricted(t *testing.T) {
	evaluator, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	require.NoError(t, err)
	levels := []psapi.LevelVersion{
		{Level: psapi.LevelRestricted, Version: pinnedVersion(t)},
		{Level: psapi.LevelRestricted, Version: psapi.LatestVersion()},
	}
	seen := 0
	for _, base := range bases {
		for _, p := range pods(t, render(t, base)) {
			seen++
			for _, level := range levels {
				result := policy.AggregateCheckResults(evaluator.EvaluatePod(level, &p.meta, &p.spec))
				assert.True(t, result.Allowed, "%s in %s (%s): %s", p.owner, base, level, result.ForbiddenDetail())
			}
		}
	}
	assert.Equal(t, 4, seen, "the three templates and the broker")
}

// pinnedVersion is the one Pod Security version that all our namespaces name.
func pinnedVersion(t *testing.T) psapi.Version {
	t.Helper()
	versions := map[string]bool{}
	for _, base := range bases {
		for _, namespace := range ofType[*corev1.Namespace](render(t, base)) {
			for _, mode := range []string{"enforce", "audit", "warn"} {
				label := "pod-security.kubernetes.io/" + mode
				assert.Equal(t, "restricted", namespace.Labels[label], "%s of %s", label, namespace.Name)
				versions[namespace.Labels[label+"-version"]] = true
			}
		}
	}
	require.Len(t, versions, 1, "all namespaces and modes name the same version: %v", versions)
	for text := range versions {
		version, err := psapi.ParseVersion(text)
		require.NoError(t, err)
		require.False(t, version.Latest(), "the version is pinned")
		return version
	}
	panic("unreachable: one version was required")
}

// TestNetworkIsClosed: each namespace denies everything, and nothing in the
// sandboxes' namespace opens it again.
func TestNetworkIsClosed(t *testing.T) {
	for _, base := range bases {
		objects := render(t, base)
		policies := ofType[*networkingv1.NetworkPolicy](objects)
		for _, namespace := range ofType[*corev1.Namespace](objects) {
			denies := slices.ContainsFunc(policies, func(p *networkingv1.NetworkPolicy) bool {
				return p.Namespace == namespace.Name && deniesAll(p)
			})
			assert.True(t, denies, "%s: namespace %s has no default-deny", base, namespace.Name)
		}
		for _, p := range policies {
			if p.Namespace == "sandboxes" {
				assert.True(t, deniesAll(p), "%s: policy %s opens the sandboxes' namespace", base, p.Name)
			}
		}
	}
}

func deniesAll(p *networkingv1.NetworkPolicy) bool {
	selectsAll := len(p.Spec.PodSelector.MatchLabels) == 0 && len(p.Spec.PodSelector.MatchExpressions) == 0
	both := slices.Contains(p.Spec.PolicyTypes, networkingv1.PolicyTypeIngress) &&
		slices.Contains(p.Spec.PolicyTypes, networkingv1.PolicyTypeEgress)
	return selectsAll && both && len(p.Spec.Ingress) == 0 && len(p.Spec.Egress) == 0
}

// TestEveryPodIsUnderAPolicy: a pod of ours lands in a namespace that some base
// makes, so the checks of the namespaces cover it.
func TestEveryPodIsUnderAPolicy(t *testing.T) {
	var namespaces []string
	for _, base := range bases {
		for _, namespace := range ofType[*corev1.Namespace](render(t, base)) {
			namespaces = append(namespaces, namespace.Name)
		}
	}
	for _, base := range bases {
		for _, p := range pods(t, render(t, base)) {
			assert.Contains(t, namespaces, p.namespace, p.owner)
		}
	}
}

// TestPoolsNameTemplatesThatExist also holds the RuntimeClass chain together.
func TestPoolsNameTemplatesThatExist(t *testing.T) {
	for pool, folders := range map[string][]string{
		"python-gvisor": {"gvisor", "warmpool"},
		"python-kata":   {"kata", "kata/runtimeclass"},
	} {
		t.Run(pool, func(t *testing.T) {
			var objects []runtime.Object
			for _, folder := range folders {
				objects = append(objects, render(t, folder)...)
			}
			warm := one[*extensionsv1beta1.SandboxWarmPool](t, objects)
			template := one[*extensionsv1beta1.SandboxTemplate](t, objects)
			class := one[*nodev1.RuntimeClass](t, objects)
			assert.Equal(t, pool, warm.Name)
			assert.Equal(t, template.Name, warm.Spec.TemplateRef.Name)
			assert.Equal(t, template.Namespace, warm.Namespace)
			require.NotNil(t, template.Spec.PodTemplate.Spec.RuntimeClassName)
			assert.Equal(t, class.Name, *template.Spec.PodTemplate.Spec.RuntimeClassName)
			require.NotNil(t, warm.Spec.UpdateStrategy)
			assert.Equal(t, extensionsv1beta1.RecreateSandboxWarmPoolUpdateStrategyType, warm.Spec.UpdateStrategy.Type,
				"otherwise stale sandboxes are handed out after a change of the template")
		})
	}
}

// TestSharedObjectsAreEqual: gvisor and kata may be applied in any order, since
// what both contain is the same.
func TestSharedObjectsAreEqual(t *testing.T) {
	gvisor, kata := byName(t, "gvisor"), byName(t, "kata")
	shared := 0
	for name, object := range gvisor {
		if other, both := kata[name]; both {
			shared++
			assert.Equal(t, object, other, name)
		}
	}
	assert.Equal(t, 4, shared, "namespace, quota, limits and policy")
}

func byName(t *testing.T, folder string) map[string]runtime.Object {
	t.Helper()
	objects := map[string]runtime.Object{}
	for _, object := range render(t, folder) {
		accessor, ok := object.(metav1.Object)
		require.True(t, ok)
		objects[object.GetObjectKind().GroupVersionKind().Kind+"/"+accessor.GetName()] = object
	}
	return objects
}
