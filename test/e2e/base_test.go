//go:build e2e

package e2e

import (
	"path/filepath"
	"strings"
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
	baseTemplate(t, nil)
	res, err := newClient(t).Run(within(t, 3*time.Minute), sandboxclient.Code{Pool: initPool, Language: "shell", Source: "dmesg | head -1; echo $((1+1))"})
	require.NoError(t, err)
	require.Contains(t, string(res.Stdout), "gVisor")
	require.Contains(t, string(res.Stdout), "\n2\n")
}

// assignedUser is one that no image knows, as OpenShift assigns them.
const assignedUser = 1000660000

// TestAnyUserCanUseTheWorkspace runs programs as a user who owns nothing.
func TestAnyUserCanUseTheWorkspace(t *testing.T) {
	user := int64(assignedUser)
	baseTemplate(t, &user)
	ctx := within(t, 3*time.Minute)
	lease, err := newClient(t).Acquire(ctx, initPool)
	require.NoError(t, err)
	defer func() { require.NoError(t, lease.Release(within(t, time.Minute))) }()
	_, err = lease.Files().Write(ctx, "made/file", strings.NewReader("text"), 0)
	require.NoError(t, err)
	for _, language := range []string{"shell", "python"} {
		source := map[string]string{
			"shell":  "set -e; id -u; cat made/file; echo x >made/other; echo x >~/other; echo x >/tmp/other",
			"python": "import os\nprint(os.getuid())\nprint(open('made/file').read(), end='')\nopen('other', 'w').close()",
		}[language]
		out, err := lease.Script(language, source).Output(ctx)
		require.NoError(t, err, language)
		require.Equal(t, "1000660000\ntext", string(out))
	}
}

// baseTemplate makes a warm pool of one from deploy/gvisor's template, for a user if one
// is given. It goes with the test.
func baseTemplate(t *testing.T, user *int64) {
	t.Helper()
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
	template.Spec.PodTemplate.Spec.SecurityContext.RunAsUser = user
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
}
