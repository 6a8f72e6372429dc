package bench

import (
	"context"
	"errors"
	"fmt"
	"io"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

// Job makes one call as it is done without a broker: a Job is created, its pod
// watched until it runs or has ended, its log followed to the end. It has the
// image, RuntimeClass and resources of the pool's sandboxes.
func (c *Cluster) Job(ctx context.Context) (Sample, error) {
	name := c.name("call")
	pods, err := c.core.Pods(c.own).Watch(ctx, metav1.ListOptions{LabelSelector: batchv1.JobNameLabel + "=" + name})
	if err != nil {
		return Sample{}, fmt.Errorf("bench: watching the Job's pod: %w", err)
	}
	defer pods.Stop()
	var retries int32
	job := &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       batchv1.JobSpec{BackoffLimit: &retries, Template: corev1.PodTemplateSpec{Spec: c.jobPod()}},
	}
	w := newStopwatch()
	if _, err := c.batch.Jobs(c.own).Create(ctx, job, metav1.CreateOptions{}); err != nil {
		return Sample{}, fmt.Errorf("bench: creating a Job: %w", err)
	}
	pod, err := started(ctx, pods)
	if err != nil {
		return Sample{}, err
	}
	log, err := c.core.Pods(c.own).GetLogs(pod, &corev1.PodLogOptions{Follow: true}).Stream(ctx)
	if err != nil {
		return Sample{}, fmt.Errorf("bench: following the log of pod %s: %w", pod, err)
	}
	defer func() { _ = log.Close() }()
	if _, err := io.Copy(w, log); err != nil {
		return Sample{}, fmt.Errorf("bench: following the log of pod %s: %w", pod, err)
	}
	sample, err := w.sample()
	background := metav1.DeletePropagationBackground
	if derr := c.batch.Jobs(c.own).Delete(ctx, name, metav1.DeleteOptions{PropagationPolicy: &background}); err == nil && derr != nil {
		err = fmt.Errorf("bench: deleting a Job: %w", derr)
	}
	return sample, err
}

// jobPod derives the Job's pod from the pool's template.
func (c *Cluster) jobPod() corev1.PodSpec {
	from := c.template.Spec.PodTemplate.Spec
	return corev1.PodSpec{
		RestartPolicy: corev1.RestartPolicyNever, RuntimeClassName: from.RuntimeClassName, SecurityContext: from.SecurityContext,
		AutomountServiceAccountToken: from.AutomountServiceAccountToken, EnableServiceLinks: from.EnableServiceLinks, DNSPolicy: from.DNSPolicy,
		Containers: []corev1.Container{{
			Name: "program", Image: from.Containers[0].Image, ImagePullPolicy: from.Containers[0].ImagePullPolicy,
			Command: []string{"python3", "-c", program}, Resources: from.Containers[0].Resources, SecurityContext: from.Containers[0].SecurityContext,
		}},
	}
}

// noJobs says whether the last Job's pod has ended.
func (c *Cluster) noJobs(ctx context.Context) (string, error) {
	pods, err := c.core.Pods(c.own).List(ctx, metav1.ListOptions{LabelSelector: batchv1.JobNameLabel})
	if err != nil {
		return "", fmt.Errorf("bench: looking at the Jobs' pods: %w", err)
	}
	for i := range pods.Items {
		if pods.Items[i].Status.Phase == corev1.PodRunning {
			return fmt.Sprintf("pod %s of a Job is ending", pods.Items[i].Name), nil
		}
	}
	return "", nil
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
