package kube

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"time"

	authv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// handleKeyBytes is the length of the key under which the broker signs handles.
const handleKeyBytes = 32

// Token asks for a token of the service account that only the audience accepts.
func (c *Client) Token(ctx context.Context, namespace, account, audience string, lifetime time.Duration) (string, error) {
	seconds := int64(lifetime.Seconds())
	request := &authv1.TokenRequest{Spec: authv1.TokenRequestSpec{
		Audiences: []string{audience}, ExpirationSeconds: &seconds,
	}}
	made, err := c.typed.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, account, request, metav1.CreateOptions{})
	if err != nil {
		return "", fmt.Errorf("asking for a token of %s/%s: %w", namespace, account, err)
	}
	return made.Status.Token, nil
}

// EnsureTLSSecret makes the Secret hold this certificate and key.
func (c *Client) EnsureTLSSecret(ctx context.Context, namespace, name string, cert, key []byte) error {
	secrets := c.typed.CoreV1().Secrets(namespace)
	want := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Type:       corev1.SecretTypeTLS,
		Data:       map[string][]byte{corev1.TLSCertKey: cert, corev1.TLSPrivateKeyKey: key},
	}
	have, err := secrets.Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		_, err = secrets.Create(ctx, want, metav1.CreateOptions{})
		return err
	}
	if err != nil {
		return err
	}
	if bytes.Equal(have.Data[corev1.TLSCertKey], cert) && bytes.Equal(have.Data[corev1.TLSPrivateKeyKey], key) {
		return nil
	}
	have.Data = want.Data
	_, err = secrets.Update(ctx, have, metav1.UpdateOptions{})
	return err
}

// EnsureHandleKey makes the Secret hold a random key; an existing one stays, or
// every handle given out would turn invalid.
func (c *Client) EnsureHandleKey(ctx context.Context, namespace, name string) error {
	key := make([]byte, handleKeyBytes)
	if _, err := rand.Read(key); err != nil {
		return err
	}
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Data:       map[string][]byte{"key": key},
	}
	_, err := c.typed.CoreV1().Secrets(namespace).Create(ctx, secret, metav1.CreateOptions{})
	return ignoreExisting(err)
}
