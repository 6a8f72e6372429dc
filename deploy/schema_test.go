package deploy_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

// TestCustomResourcesFitTheirCRDs validates against the schemas that the pinned
// agent-sandbox ships, as the API server will.
func TestCustomResourcesFitTheirCRDs(t *testing.T) {
	schemas := agentSandboxSchemas(t)
	validated := 0
	for _, base := range bases {
		resources, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), base)
		require.NoError(t, err)
		for _, resource := range resources.Resources() {
			gvk := resource.GetGvk()
			if !strings.HasSuffix(gvk.Group, ".x-k8s.io") {
				continue
			}
			schema, known := schemas[gvk.Group+"/"+gvk.Version+"/"+gvk.Kind]
			require.True(t, known, "%s: agent-sandbox has no %s", base, gvk)
			validator, _, err := validation.NewSchemaValidator(schema)
			require.NoError(t, err)
			object, err := resource.Map()
			require.NoError(t, err)
			assert.Empty(t, validation.ValidateCustomResource(field.NewPath(resource.GetName()), object, validator), base)
			validated++
		}
	}
	assert.Equal(t, 5, validated, "three templates and two pools")
}

// agentSandboxSchemas reads the CRDs of the agent-sandbox that go.mod names.
func agentSandboxSchemas(t *testing.T) map[string]*apiextensions.JSONSchemaProps {
	t.Helper()
	folder, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/agent-sandbox").Output()
	require.NoError(t, err, "find agent-sandbox in the module cache")
	files, err := filepath.Glob(filepath.Join(strings.TrimSpace(string(folder)), "k8s", "crds", "*.yaml"))
	require.NoError(t, err)
	schemas := map[string]*apiextensions.JSONSchemaProps{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		var crd apiextensionsv1.CustomResourceDefinition
		require.NoError(t, yaml.UnmarshalStrict(text, &crd), file)
		for _, version := range crd.Spec.Versions {
			var schema apiextensions.JSONSchemaProps
			require.NoError(t, apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(
				version.Schema.OpenAPIV3Schema, &schema, nil), file)
			schemas[crd.Spec.Group+"/"+version.Name+"/"+crd.Spec.Names.Kind] = &schema
		}
	}
	require.NotEmpty(t, schemas)
	return schemas
}
