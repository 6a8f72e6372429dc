package kube

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
)

// warmPoolKind is the owner of a sandbox that nobody has claimed.
const warmPoolKind = "SandboxWarmPool"

// WarmPool tells how many sandboxes of the pool are ready, and how many it wants.
func (c *Client) WarmPool(ctx context.Context, namespace, name string) (ready, want int64, err error) {
	pool, err := c.dynamic.Resource(warmPools).Namespace(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return 0, 0, err
	}
	want, _, err = unstructured.NestedInt64(pool.Object, "spec", "replicas")
	if err != nil {
		return 0, 0, err
	}
	ready, _, err = unstructured.NestedInt64(pool.Object, "status", "readyReplicas")
	return ready, want, err
}

// WarmPoolReady tells whether the pool has as many ready sandboxes as it wants.
func (c *Client) WarmPoolReady(ctx context.Context, namespace, name string) error {
	ready, want, err := c.WarmPool(ctx, namespace, name)
	if err != nil {
		return err
	}
	if ready < want {
		return fmt.Errorf("warm pool %s/%s: %d of %d sandboxes ready", namespace, name, ready, want)
	}
	return nil
}

// EmptyWarmPool deletes the sandboxes that wait in the pool, so that the
// controller makes new ones from today's image, and returns which they were.
// Claimed ones are left alone: someone uses them.
func (c *Client) EmptyWarmPool(ctx context.Context, namespace, name string) (map[types.UID]bool, error) {
	resource := c.dynamic.Resource(sandboxes).Namespace(namespace)
	list, err := resource.List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	deleted := map[types.UID]bool{}
	var problems []error
	for _, s := range list.Items {
		if !ownedBy(s.GetOwnerReferences(), name) {
			continue
		}
		err := resource.Delete(ctx, s.GetName(), metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			problems = append(problems, err)
			continue
		}
		deleted[s.GetUID()] = true
	}
	return deleted, errors.Join(problems...)
}

// SandboxesGone tells whether none of those sandboxes is left.
func (c *Client) SandboxesGone(ctx context.Context, namespace string, which map[types.UID]bool) error {
	list, err := c.dynamic.Resource(sandboxes).Namespace(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, s := range list.Items {
		if which[s.GetUID()] {
			return fmt.Errorf("sandbox %s is still being deleted", s.GetName())
		}
	}
	return nil
}

func ownedBy(owners []metav1.OwnerReference, pool string) bool {
	for _, o := range owners {
		if o.Kind == warmPoolKind && o.Name == pool {
			return true
		}
	}
	return false
}
