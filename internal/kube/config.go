// Package kube builds what talks to Kubernetes: the configuration of clients and
// the authenticator that asks the API server.
package kube

import (
	"fmt"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/sandbox-broker/sandbox-broker/internal/version"
)

// Config loads a client configuration: from the file at path, else from
// $KUBECONFIG or the default file, else from the pod's service account.
func Config(path string) (*rest.Config, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = path
	c, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("kube: no cluster is configured (set KUBECONFIG, or run in a pod): %w", err)
	}
	c.UserAgent = "sandbox-broker/" + version.String()
	// The API server's own fairness governs; a limit here would only add latency.
	c.QPS = -1
	return c, nil
}
