// Package imports holds the test of who may import whom.
package imports

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const module = "github.com/sandbox-broker/sandbox-broker/"

type pkg struct {
	ImportPath string
	Imports    []string
	Deps       []string
}

// rules say what a folder's packages must never depend on, however indirectly.
var rules = []struct{ folder, never, why string }{
	{"sandboxclient", "k8s.io/", "clients bring no Kubernetes along"},
	{"sandboxclient", "sigs.k8s.io/", "clients bring no Kubernetes along"},
	{"sandboxclient", module + "broker", "the client does not know the broker"},
	{"runner", "k8s.io/", "the runner is small and knows no cluster"},
	{"runner", "github.com/", "the runner needs the standard library and x/sys only"},
	{"internal/channel", module + "broker", "the channel is below the domain"},
	{"internal/channel", module + "runner", "the channel is below the runner"},
	{"internal/config", "k8s.io/", "the configuration is the broker's own"},
}

// direct says the same of packages that must not import it themselves.
var direct = []struct{ folder, never, why string }{
	{"broker", "net/http", "the domain knows no edge"},
	{"broker", "k8s.io/", "the domain knows no Kubernetes"},
	{"broker", "sigs.k8s.io/", "the domain knows no Kubernetes"},
	{"broker", module + "broker/", "the domain knows neither its edge nor its providers"},
	{"broker/server", module + "broker/agentsandbox", "the edge knows no provider"},
	{"broker/server", "k8s.io/", "the edge knows no Kubernetes"},
}

func TestImportsPointOneWay(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", "-json=ImportPath,Imports,Deps", module+"...").Output()
	require.NoError(t, err)
	packages := map[string]pkg{}
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p pkg
		err := d.Decode(&p)
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		packages[p.ImportPath] = p
	}
	seen := 0
	for path, p := range packages {
		for _, r := range rules {
			if path != module+r.folder && !strings.HasPrefix(path, module+r.folder+"/") {
				continue
			}
			seen++
			for _, dep := range p.Deps {
				if strings.HasPrefix(dep, module) && strings.HasPrefix(r.never, "github.com/") && r.never == "github.com/" {
					continue // the project's own packages are judged by themselves
				}
				require.False(t, strings.HasPrefix(dep, r.never), "%s depends on %s: %s", path, dep, r.why)
			}
		}
		for _, r := range direct {
			if path != module+r.folder {
				continue
			}
			seen++
			for _, dep := range p.Imports {
				require.False(t, strings.HasPrefix(dep, r.never), "%s imports %s: %s", path, dep, r.why)
			}
		}
	}
	require.GreaterOrEqual(t, seen, len(rules)+len(direct), "every rule has a package it is about")
}
