// Package deploy_test renders every kustomize base as a user would and checks
// what must hold of it: pods fit Pod Security "restricted", sandboxes keep every
// setting of the design, the broker has no right too many. The golden files in
// testdata show a reviewer what a change to a base really changes.
package deploy_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/kubernetes/scheme"
	agentsv1beta1 "sigs.k8s.io/agent-sandbox/api/v1beta1"
	extensionsv1beta1 "sigs.k8s.io/agent-sandbox/extensions/api/v1beta1"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
)

// bases are what people apply. sandbox-base is missing on purpose: it is only
// applied through gvisor and kata.
var bases = []string{"gvisor", "gvisor-image-volume", "warmpool", "broker", "kata", "kata/runtimeclass"}

// codecs decode strictly: a misspelt field is an error here, where an API server
// would drop it silently from a custom resource.
var codecs = newCodecs()

func newCodecs() serializer.CodecFactory {
	all := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		scheme.AddToScheme, agentsv1beta1.AddToScheme, extensionsv1beta1.AddToScheme,
	} {
		if err := add(all); err != nil {
			panic(err)
		}
	}
	return serializer.NewCodecFactory(all, serializer.EnableStrict)
}

// renderYAML is what `kubectl kustomize` prints for the folder.
func renderYAML(t *testing.T, folder string) []byte {
	t.Helper()
	resources, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), folder)
	require.NoError(t, err, "render %s", folder)
	out, err := resources.AsYaml()
	require.NoError(t, err, "print %s", folder)
	return out
}

// render gives the objects of a folder in their Go types.
func render(t *testing.T, folder string) []runtime.Object {
	t.Helper()
	resources, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), folder)
	require.NoError(t, err, "render %s", folder)
	var objects []runtime.Object
	for _, resource := range resources.Resources() {
		out, err := resource.AsYAML()
		require.NoError(t, err, "print %s", resource.CurId())
		object, _, err := codecs.UniversalDeserializer().Decode(out, nil, nil)
		require.NoError(t, err, "%s: decode %s", folder, resource.CurId())
		objects = append(objects, object)
	}
	return objects
}

// ofType picks the objects of one Go type.
func ofType[T runtime.Object](objects []runtime.Object) []T {
	var found []T
	for _, object := range objects {
		if typed, ok := object.(T); ok {
			found = append(found, typed)
		}
	}
	return found
}

// one is ofType where exactly one must be there.
func one[T runtime.Object](t *testing.T, objects []runtime.Object) T {
	t.Helper()
	found := ofType[T](objects)
	require.Len(t, found, 1)
	return found[0]
}

// pod is a pod that some object of a base will make.
type pod struct {
	owner     string
	namespace string
	meta      metav1.ObjectMeta
	spec      corev1.PodSpec
}

// pods finds every pod that the objects will make, and fails on a kind of
// workload that it does not know, so that a new one cannot slip past the checks.
func pods(t *testing.T, objects []runtime.Object) []pod {
	t.Helper()
	var found []pod
	for _, object := range objects {
		switch o := object.(type) {
		case *extensionsv1beta1.SandboxTemplate:
			meta := o.Spec.PodTemplate.ObjectMeta
			found = append(found, pod{
				owner: "SandboxTemplate " + o.Name, namespace: o.Namespace, spec: o.Spec.PodTemplate.Spec,
				meta: metav1.ObjectMeta{Labels: meta.Labels, Annotations: meta.Annotations},
			})
		case *appsv1.Deployment:
			found = append(found, pod{
				owner: "Deployment " + o.Name, namespace: o.Namespace,
				meta: o.Spec.Template.ObjectMeta, spec: o.Spec.Template.Spec,
			})
		default:
			kind := object.GetObjectKind().GroupVersionKind().Kind
			require.Contains(t, []string{
				"ClusterRole", "ClusterRoleBinding", "ConfigMap", "LimitRange", "Namespace", "NetworkPolicy",
				"ResourceQuota", "Role", "RoleBinding", "RuntimeClass", "SandboxWarmPool", "Service", "ServiceAccount",
			}, kind, "a kind that the tests of the manifests do not know; does it make pods?")
		}
	}
	return found
}
