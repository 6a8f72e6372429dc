package deploy_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"
)

// The local cluster has the broker of this folder with one more pool and no other
// difference: what is tested there is what people install.
func TestLocalClustersBrokerHasOneMorePool(t *testing.T) {
	original, local := render(t, "broker"), render(t, "../hack/cluster/deploy/broker")
	want, got := takeConfig(t, original), takeConfig(t, local)
	require.Equal(t, original, local, "all but the configuration is the same")

	pools := got["pools"].([]any)
	more := pools[len(pools)-1].(map[string]any)
	got["pools"] = pools[:len(pools)-1]
	require.Equal(t, want, got)
	require.Equal(t, "python-gvisor-no-stock", more["name"], "the Makefile names it")
	require.Equal(t, "python-gvisor", more["warmPool"])
	require.NotContains(t, more, "stock")
}

// takeConfig reads the broker's configuration out of the ConfigMap, and empties that.
func takeConfig(t *testing.T, objects []runtime.Object) map[string]any {
	t.Helper()
	data := one[*corev1.ConfigMap](t, objects).Data
	var c map[string]any
	require.NoError(t, yaml.Unmarshal([]byte(data["config.yaml"]), &c))
	clear(data)
	return c
}
