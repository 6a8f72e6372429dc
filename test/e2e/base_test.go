//go:build e2e

package e2e

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"

	extensionsv1beta1 "sigs.k8s.io/agent-sandbox/extensions/api/v1beta1"

	"github.com/sandbox-broker/sandbox-broker/sandboxclient"
)

// initPool is the pool whose sandboxes get the runner by an init container.
const initPool = "python-init"

// TestRunnerByInitContainer runs a program in a sandbox of deploy/gvisor. The
// local cluster's own pool is deploy/gvisor-image-volume, which starts faster
// but does not work on older clusters.
func TestRunnerByInitContainer(t *testing.T) {
	settle(t)
	ctx := within(t, 3*time.Minute)
	resources, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), filepath.Join(root(), "deploy", "gvisor"))
	require.NoError(t, err)
	var template extensionsv1beta1.SandboxTemplate
	for _, r := range resources.Resources() {
		if r.GetKind() != "SandboxTemplate" {
			continue
		}
		fields, err := r.Map()
		require.NoError(t, err)
		require.NoError(t, k8s.Scheme().Convert(&unstructured.Unstructured{Object: fields}, &template, nil))
	}
	require.Len(t, template.Spec.PodTemplate.Spec.InitContainers, 1)
	template.ObjectMeta = metav1.ObjectMeta{Namespace: namespace, Name: initPool}
	one := int32(1)
	warm := &extensionsv1beta1.SandboxWarmPool{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: initPool},
		Spec:       extensionsv1beta1.SandboxWarmPoolSpec{Replicas: &one, TemplateRef: extensionsv1beta1.SandboxTemplateRef{Name: initPool}},
	}
	for _, object := range []client.Object{&template, warm} {
		require.NoError(t, k8s.Create(ctx, object))
		t.Cleanup(func() { require.NoError(t, k8s.Delete(within(t, time.Minute), object)) })
	}
	res, err := newClient(t).Run(ctx, sandboxclient.Code{Pool: initPool, Language: "shell", Source: "dmesg | head -1; echo $((1+1))"})
	require.NoError(t, err)
	require.Contains(t, string(res.Stdout), "gVisor")
	require.Contains(t, string(res.Stdout), "\n2\n")
}
