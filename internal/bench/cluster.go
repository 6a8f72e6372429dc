package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes/scheme"
	batchclient "k8s.io/client-go/kubernetes/typed/batch/v1"
	coreclient "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
	"sigs.k8s.io/controller-runtime/pkg/client"

	extensionsv1beta1 "sigs.k8s.io/agent-sandbox/extensions/api/v1beta1"
)

const (
	// cleanupTimeout bounds the removal of all that the benchmark made.
	cleanupTimeout = 90 * time.Second
	// cleanupPause lies between two looks at what is left.
	cleanupPause = 200 * time.Millisecond
)

// labelRun marks what one benchmark made among the pool's sandboxes; its value is
// the namespace of that benchmark.
const labelRun = "sandbox-broker.dev/bench"

// Cluster is where the pool is, and a namespace of the benchmark's own for what
// the broker is compared with.
type Cluster struct {
	config *rest.Config
	kube   client.WithWatch
	core   coreclient.CoreV1Interface
	batch  batchclient.BatchV1Interface
	exec   *rest.RESTClient

	namespace, warmPool string // the measured pool
	template            extensionsv1beta1.SandboxTemplate
	replicas            int32
	own                 string // the benchmark's namespace
	// claimLife is when agent-sandbox removes a claim of the benchmark by itself,
	// should the benchmark die.
	claimLife time.Duration
	n         int // names given so far
}

// OpenCluster looks at the warm pool and makes the namespace. Close removes it
// with all that is in it.
func OpenCluster(ctx context.Context, config *rest.Config, namespace, warmPool string) (*Cluster, error) {
	c := &Cluster{config: config, namespace: namespace, warmPool: warmPool}
	if err := c.connect(); err != nil {
		return nil, fmt.Errorf("bench: preparing the clients of the cluster: %w", err)
	}
	var pool extensionsv1beta1.SandboxWarmPool
	if err := c.kube.Get(ctx, client.ObjectKey{Namespace: namespace, Name: warmPool}, &pool); err != nil {
		return nil, fmt.Errorf("bench: reading the warm pool: %w", err)
	}
	if pool.Spec.Replicas != nil {
		c.replicas = *pool.Spec.Replicas
	}
	if err := c.kube.Get(ctx, client.ObjectKey{Namespace: namespace, Name: pool.Spec.TemplateRef.Name}, &c.template); err != nil {
		return nil, fmt.Errorf("bench: reading the warm pool's template: %w", err)
	}
	if len(c.template.Spec.PodTemplate.Spec.Containers) == 0 {
		return nil, fmt.Errorf("bench: the template %s has no container", c.template.Name)
	}
	ns, err := c.core.Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "sandbox-broker-bench-"}}, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("bench: creating a namespace: %w", err)
	}
	c.own = ns.Name
	return c, nil
}

func (c *Cluster) connect() error {
	types := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, extensionsv1beta1.AddToScheme} {
		if err := add(types); err != nil {
			return err
		}
	}
	var err error
	if c.kube, err = client.NewWithWatch(c.config, client.Options{Scheme: types}); err != nil {
		return err
	}
	if c.core, err = coreclient.NewForConfig(c.config); err != nil {
		return err
	}
	if c.batch, err = batchclient.NewForConfig(c.config); err != nil {
		return err
	}
	config := rest.CopyConfig(c.config)
	config.GroupVersion = &corev1.SchemeGroupVersion
	config.APIPath = "/api"
	config.NegotiatedSerializer = scheme.Codecs.WithoutConversion()
	c.exec, err = rest.RESTClientFor(config)
	return err
}

// RuntimeClass is that of the pool's sandboxes; empty is the cluster's default.
func (c *Cluster) RuntimeClass() string {
	if name := c.template.Spec.PodTemplate.Spec.RuntimeClassName; name != nil {
		return *name
	}
	return ""
}

// Version is the API server's.
func (c *Cluster) Version() (string, error) {
	d, err := discovery.NewDiscoveryClientForConfig(c.config)
	if err != nil {
		return "", fmt.Errorf("bench: preparing to ask for the cluster's version: %w", err)
	}
	v, err := d.ServerVersion()
	if err != nil {
		return "", fmt.Errorf("bench: asking for the cluster's version: %w", err)
	}
	return v.GitVersion, nil
}

// name makes one that this benchmark has not used.
func (c *Cluster) name(prefix string) string {
	c.n++
	return fmt.Sprintf("%s-%s-%d", prefix, c.own[len("sandbox-broker-bench-"):], c.n)
}

// settled says whether the warm pool is full and nothing of it is ending.
func (c *Cluster) settled(ctx context.Context) (string, error) {
	return c.full(ctx, c.namespace, c.warmPool)
}

// full says what a warm pool lacks.
func (c *Cluster) full(ctx context.Context, namespace, warmPool string) (string, error) {
	var pool extensionsv1beta1.SandboxWarmPool
	if err := c.kube.Get(ctx, client.ObjectKey{Namespace: namespace, Name: warmPool}, &pool); err != nil {
		return "", fmt.Errorf("bench: reading the warm pool: %w", err)
	}
	if want := pool.Spec.Replicas; want != nil && pool.Status.ReadyReplicas < *want {
		return fmt.Sprintf("warm pool %s: %d of %d sandboxes are ready", warmPool, pool.Status.ReadyReplicas, *want), nil
	}
	pods, err := c.core.Pods(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return "", fmt.Errorf("bench: looking at the pods: %w", err)
	}
	for i := range pods.Items {
		// One that has ended costs no time any more, only its entry is left.
		if !pods.Items[i].DeletionTimestamp.IsZero() && pods.Items[i].Status.Phase == corev1.PodRunning {
			return fmt.Sprintf("pod %s is ending", pods.Items[i].Name), nil
		}
	}
	return "", nil
}

// run executes a program in a pod over WebSocket and waits for its end.
func (c *Cluster) run(ctx context.Context, pod string, argv []string, stdin io.Reader, stdout io.Writer) error {
	url := c.exec.Post().Resource("pods").Namespace(c.namespace).Name(pod).SubResource("exec").
		VersionedParams(&corev1.PodExecOptions{
			Container: c.template.Spec.PodTemplate.Spec.Containers[0].Name, Command: argv, Stdin: stdin != nil, Stdout: true,
		}, scheme.ParameterCodec).URL()
	exec, err := remotecommand.NewWebSocketExecutor(c.config, http.MethodGet, url.String())
	if err != nil {
		return fmt.Errorf("bench: preparing an exec in pod %s: %w", pod, err)
	}
	if err := exec.StreamWithContext(ctx, remotecommand.StreamOptions{Stdin: stdin, Stdout: stdout}); err != nil {
		return fmt.Errorf("bench: an exec in pod %s: %w", pod, err)
	}
	return nil
}

// Close removes all that the benchmark made, whoever cancelled ctx, and waits
// until it is gone.
func (c *Cluster) Close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	err := c.kube.DeleteAllOf(ctx, &extensionsv1beta1.SandboxClaim{}, client.InNamespace(c.namespace), client.MatchingLabels{labelRun: c.own})
	if err != nil {
		err = fmt.Errorf("bench: deleting claims: %w", err)
	}
	nerr := c.core.Namespaces().Delete(ctx, c.own, metav1.DeleteOptions{})
	if nerr != nil && !apierrors.IsNotFound(nerr) {
		return errors.Join(err, fmt.Errorf("bench: deleting namespace %s: %w", c.own, nerr))
	}
	return errors.Join(err, c.awaitGone(ctx))
}

func (c *Cluster) awaitGone(ctx context.Context) error {
	pause := time.NewTicker(cleanupPause)
	defer pause.Stop()
	for {
		_, err := c.core.Namespaces().Get(ctx, c.own, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err != nil && ctx.Err() == nil {
			return fmt.Errorf("bench: waiting for the end of namespace %s: %w", c.own, err)
		}
		select {
		case <-pause.C:
		case <-ctx.Done():
			return fmt.Errorf("bench: namespace %s is being deleted, and not gone after %s: %w", c.own, cleanupTimeout, ctx.Err())
		}
	}
}
