//go:build e2e

package e2e

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"

	extensionsv1beta1 "sigs.k8s.io/agent-sandbox/extensions/api/v1beta1"
)

// TestKataIsAdmitted has the API server judge deploy/kata, its pods included:
// schemas, Pod Security, the class's overhead, limits and quota. No Kata runs
// here, so nothing is started.
func TestKataIsAdmitted(t *testing.T) {
	ctx := within(t, time.Minute)
	dry := client.NewDryRunClient(k8s)
	var template extensionsv1beta1.SandboxTemplate
	for _, folder := range []string{"kata", "kata/runtimeclass"} {
		resources, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), filepath.Join(root(), "deploy", folder))
		require.NoError(t, err)
		for _, r := range resources.Resources() {
			fields, err := r.Map()
			require.NoError(t, err)
			object := &unstructured.Unstructured{Object: fields}
			to := dry
			if object.GetKind() == "RuntimeClass" { // the pod below needs it to be there
				to = k8s
				t.Cleanup(func() { require.NoError(t, k8s.Delete(within(t, time.Minute), object)) })
			}
			err = to.Create(ctx, object)
			if apierrors.IsAlreadyExists(err) {
				continue // what deploy/gvisor has too
			}
			require.NoError(t, err, "%s %s", object.GetKind(), object.GetName())
			if object.GetKind() == "SandboxTemplate" {
				require.NoError(t, k8s.Scheme().Convert(object, &template, nil))
			}
		}
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, GenerateName: "kata-"}, Spec: template.Spec.PodTemplate.Spec}
	require.NotEmpty(t, pod.Spec.Containers)
	require.NoError(t, dry.Create(ctx, pod))
	require.Equal(t, "kata", *pod.Spec.RuntimeClassName)
	require.Equal(t, "350Mi", pod.Spec.Overhead.Memory().String(), "the class's overhead was added")

	pod = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, GenerateName: "kata-"}, Spec: template.Spec.PodTemplate.Spec}
	pod.Spec.HostNetwork = true
	require.True(t, apierrors.IsForbidden(dry.Create(ctx, pod)), "the namespace enforces Pod Security")
}
