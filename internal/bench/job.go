package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	batchclient "k8s.io/client-go/kubernetes/typed/batch/v1"
	coreclient "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	extensionsv1beta1 "sigs.k8s.io/agent-sandbox/extensions/api/v1beta1"
)

// cleanupTimeout bounds the deletion of the benchmark's namespace.
const cleanupTimeout = time.Minute

// Jobs runs one Job per call, the way it is done without a broker: the same
// image, RuntimeClass and resources as the warm pool's sandboxes, in a namespace
// of its own.
type Jobs struct {
	core      coreclient.CoreV1Interface
	batch     batchclient.BatchV1Interface
	namespace string
	template  corev1.PodSpec
	n         int
}

// NewJobs makes the namespace. Close deletes it with all that is in it.
func NewJobs(ctx context.Context, config *rest.Config, poolNamespace, warmPool string) (*Jobs, error) {
	template, err := podSpec(ctx, config, poolNamespace, warmPool)
	if err != nil {
		return nil, err
	}
	core, err := coreclient.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	batch, err := batchclient.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	ns, err := core.Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "sandbox-broker-bench-"}}, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("bench: creating a namespace for the Jobs: %w", err)
	}
	return &Jobs{core: core, batch: batch, namespace: ns.Name, template: template}, nil
}

// podSpec derives the Job's pod from the warm pool's template.
func podSpec(ctx context.Context, config *rest.Config, namespace, warmPool string) (corev1.PodSpec, error) {
	var none corev1.PodSpec
	scheme := runtime.NewScheme()
	if err := extensionsv1beta1.AddToScheme(scheme); err != nil {
		return none, fmt.Errorf("bench: %w", err)
	}
	c, err := client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		return none, fmt.Errorf("bench: %w", err)
	}
	var pool extensionsv1beta1.SandboxWarmPool
	if err := c.Get(ctx, client.ObjectKey{Namespace: namespace, Name: warmPool}, &pool); err != nil {
		return none, fmt.Errorf("bench: reading the warm pool: %w", err)
	}
	var t extensionsv1beta1.SandboxTemplate
	if err := c.Get(ctx, client.ObjectKey{Namespace: namespace, Name: pool.Spec.TemplateRef.Name}, &t); err != nil {
		return none, fmt.Errorf("bench: reading the template: %w", err)
	}
	from := t.Spec.PodTemplate.Spec
	if len(from.Containers) == 0 {
		return none, errors.New("bench: the template has no container")
	}
	return corev1.PodSpec{
		RestartPolicy: corev1.RestartPolicyNever, RuntimeClassName: from.RuntimeClassName, SecurityContext: from.SecurityContext,
		AutomountServiceAccountToken: from.AutomountServiceAccountToken, EnableServiceLinks: from.EnableServiceLinks, DNSPolicy: from.DNSPolicy,
		Containers: []corev1.Container{{
			Name: "program", Image: from.Containers[0].Image, ImagePullPolicy: from.Containers[0].ImagePullPolicy,
			Command: []string{"python3", "-c", program}, Resources: from.Containers[0].Resources, SecurityContext: from.Containers[0].SecurityContext,
		}},
	}, nil
}

// Run makes one call: the Job is created, its pod watched until it runs or has
// ended, its log followed to the end.
func (j *Jobs) Run(ctx context.Context) (Sample, error) {
	j.n++
	name := fmt.Sprintf("call-%d", j.n)
	pods, err := j.core.Pods(j.namespace).Watch(ctx, metav1.ListOptions{LabelSelector: batchv1.JobNameLabel + "=" + name})
	if err != nil {
		return Sample{}, fmt.Errorf("bench: watching pods: %w", err)
	}
	defer pods.Stop()
	w := &stopwatch{began: time.Now()}
	var retries int32
	job := &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       batchv1.JobSpec{BackoffLimit: &retries, Template: corev1.PodTemplateSpec{Spec: j.template}},
	}
	if _, err := j.batch.Jobs(j.namespace).Create(ctx, job, metav1.CreateOptions{}); err != nil {
		return Sample{}, fmt.Errorf("bench: creating a Job: %w", err)
	}
	pod, err := started(ctx, pods)
	if err != nil {
		return Sample{}, err
	}
	log, err := j.core.Pods(j.namespace).GetLogs(pod, &corev1.PodLogOptions{Follow: true}).Stream(ctx)
	if err != nil {
		return Sample{}, fmt.Errorf("bench: following the log of pod %s: %w", pod, err)
	}
	defer func() { _ = log.Close() }()
	if _, err := io.Copy(w, log); err != nil {
		return Sample{}, fmt.Errorf("bench: following the log of pod %s: %w", pod, err)
	}
	sample, err := w.sample()
	background := metav1.DeletePropagationBackground
	if derr := j.batch.Jobs(j.namespace).Delete(ctx, name, metav1.DeleteOptions{PropagationPolicy: &background}); err == nil && derr != nil {
		err = fmt.Errorf("bench: deleting a Job: %w", derr)
	}
	return sample, err
}

// started waits until a pod's container runs or has ended.
func started(ctx context.Context, pods watch.Interface) (string, error) {
	for {
		select {
		case e, ok := <-pods.ResultChan():
			if !ok {
				return "", errors.New("bench: the watch of the Job's pod ended")
			}
			pod, ok := e.Object.(*corev1.Pod)
			if !ok {
				return "", fmt.Errorf("bench: watching the Job's pod: %w", apierrors.FromObject(e.Object))
			}
			if pod.Status.Phase != corev1.PodPending && pod.Status.Phase != "" {
				return pod.Name, nil
			}
		case <-ctx.Done():
			return "", fmt.Errorf("bench: waiting for the Job's pod: %w", ctx.Err())
		}
	}
}

// Close deletes the namespace, whoever cancelled ctx.
func (j *Jobs) Close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	if err := j.core.Namespaces().Delete(ctx, j.namespace, metav1.DeleteOptions{}); err != nil {
		return fmt.Errorf("bench: deleting namespace %s: %w", j.namespace, err)
	}
	return nil
}
