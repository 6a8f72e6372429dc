// Package kube is the cluster program's view of Kubernetes: it waits for
// things, and makes the few objects that no manifest holds because they contain
// keys, tokens or addresses.
package kube

import (
	"context"
	"fmt"
	"net/http"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

const (
	// pollEvery is how often a wait asks the API server.
	pollEvery = 200 * time.Millisecond
	// requestTimeout bounds one request, so that a server that is going down
	// is noticed.
	requestTimeout = 10 * time.Second
)

// The kinds of agent-sandbox that the cluster looks at.
var (
	warmPools = schema.GroupVersionResource{Group: "extensions.agents.x-k8s.io", Version: "v1beta1", Resource: "sandboxwarmpools"}
	sandboxes = schema.GroupVersionResource{Group: "agents.x-k8s.io", Version: "v1beta1", Resource: "sandboxes"}
)

// Client talks to the cluster as its administrator.
type Client struct {
	typed   kubernetes.Interface
	dynamic dynamic.Interface
}

// New reads the kubeconfig; it does not connect yet.
func New(kubeconfig string) (*Client, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", kubeconfig, err)
	}
	config.Timeout = requestTimeout
	// Warnings of the API server are for who writes manifests.
	config.WarningHandler = rest.NoWarnings{}
	typed, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	dyn, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	return &Client{typed: typed, dynamic: dyn}, nil
}

// Ready asks the API server whether it is.
func (c *Client) Ready(ctx context.Context) error {
	result := c.typed.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx)
	var code int
	if result.StatusCode(&code); code >= http.StatusInternalServerError {
		// The error itself would list every one of its checks.
		return fmt.Errorf("the API server says that it is not ready (status %d)", code)
	}
	return result.Error()
}

// Until asks again and again until ask returns no error, at most for bound. The
// last answer is part of the error.
func Until(ctx context.Context, bound time.Duration, what string, ask func(context.Context) error) error {
	var last error
	err := wait.PollUntilContextTimeout(ctx, pollEvery, bound, true, func(ctx context.Context) (bool, error) {
		last = ask(ctx)
		return last == nil, nil
	})
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return fmt.Errorf("%s did not happen within %s: %w", what, bound, last)
}

// SetPodCIDRs gives the node its pod networks, which kube-router looks up.
// Nothing else allocates them: there is one node, and it has them all.
func (c *Client) SetPodCIDRs(ctx context.Context, node string, cidrs []string) error {
	n, err := c.typed.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if n.Spec.PodCIDR != "" {
		return nil
	}
	n.Spec.PodCIDR, n.Spec.PodCIDRs = cidrs[0], cidrs
	_, err = c.typed.CoreV1().Nodes().Update(ctx, n, metav1.UpdateOptions{})
	return err
}

// NodeReady tells whether kubelet calls the node ready.
func (c *Client) NodeReady(ctx context.Context, node string) error {
	n, err := c.typed.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
	if err != nil {
		return err
	}
	for _, condition := range n.Status.Conditions {
		if condition.Type != corev1.NodeReady {
			continue
		}
		// The node controller says Unknown once kubelet is silent.
		if condition.Status == corev1.ConditionTrue {
			return nil
		}
		return fmt.Errorf("node %s is not ready: %s", node, condition.Message)
	}
	return fmt.Errorf("node %s does not say yet whether it is ready", node)
}

// DeploymentAvailable tells whether the newest form of a Deployment is in service.
func (c *Client) DeploymentAvailable(ctx context.Context, namespace, name string) error {
	d, err := c.typed.AppsV1().Deployments(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	want := int32(1)
	if d.Spec.Replicas != nil {
		want = *d.Spec.Replicas
	}
	s := d.Status
	if s.ObservedGeneration < d.Generation || s.UpdatedReplicas < want || s.AvailableReplicas < want || s.Replicas > want {
		return fmt.Errorf("deployment %s/%s: %d of %d replicas available, %d of them current",
			namespace, name, s.AvailableReplicas, want, s.UpdatedReplicas)
	}
	return nil
}

// restartedAt is the annotation by which kubectl restarts a Deployment, too.
const restartedAt = "kubectl.kubernetes.io/restartedAt"

// RestartDeployment makes the Deployment replace its pods.
func (c *Client) RestartDeployment(ctx context.Context, namespace, name string) error {
	deployments := c.typed.AppsV1().Deployments(namespace)
	d, err := deployments.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if d.Spec.Template.Annotations == nil {
		d.Spec.Template.Annotations = map[string]string{}
	}
	d.Spec.Template.Annotations[restartedAt] = time.Now().UTC().Format(time.RFC3339Nano)
	_, err = deployments.Update(ctx, d, metav1.UpdateOptions{})
	return err
}

// ServiceAddresses returns the cluster IPs of a Service.
func (c *Client) ServiceAddresses(ctx context.Context, namespace, name string) ([]string, error) {
	s, err := c.typed.CoreV1().Services(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	return s.Spec.ClusterIPs, nil
}

// EnsureNamespace makes a namespace.
func (c *Client) EnsureNamespace(ctx context.Context, name string) error {
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	_, err := c.typed.CoreV1().Namespaces().Create(ctx, ns, metav1.CreateOptions{})
	return ignoreExisting(err)
}

// EnsureServiceAccount makes a service account.
func (c *Client) EnsureServiceAccount(ctx context.Context, namespace, name string) error {
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	_, err := c.typed.CoreV1().ServiceAccounts(namespace).Create(ctx, account, metav1.CreateOptions{})
	return ignoreExisting(err)
}

func ignoreExisting(err error) error {
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}
