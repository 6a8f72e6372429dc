package kube

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/cache"
	authenticationclient "k8s.io/client-go/kubernetes/typed/authentication/v1"

	"github.com/sandbox-broker/sandbox-broker/internal/auth"
)

const (
	// reviewTimeout bounds one question to the API server.
	reviewTimeout = 10 * time.Second
	// reviewCache bounds the answers remembered, and for how long. A token that is
	// revoked works for at most knownFor longer.
	reviewCache = 4096
	knownFor    = time.Minute
	unknownFor  = 10 * time.Second
)

// TokenReview authenticates service account tokens of the cluster. The tenant is
// the account's namespace: that is where a cluster's admins give out rights.
type TokenReview struct {
	client    authenticationclient.TokenReviewInterface
	audiences []string
	cache     *cache.LRUExpireCache
}

// NewTokenReview asks with client. A token must be meant for one of audiences.
func NewTokenReview(client authenticationclient.TokenReviewInterface, audiences []string) *TokenReview {
	return &TokenReview{client: client, audiences: audiences, cache: cache.NewLRUExpireCache(reviewCache)}
}

// Authenticate implements auth.Authenticator.
func (t *TokenReview) Authenticate(ctx context.Context, token string) (auth.Identity, error) {
	key := sha256.Sum256([]byte(token)) // no token is kept
	if v, ok := t.cache.Get(key); ok {
		if id, known := v.(auth.Identity); known {
			return id, nil
		}
		return auth.Identity{}, auth.ErrUnknown
	}
	id, err := t.review(ctx, token)
	switch {
	case err == nil:
		t.cache.Add(key, id, knownFor)
	case errors.Is(err, auth.ErrUnknown):
		t.cache.Add(key, struct{}{}, unknownFor)
	}
	return id, err
}

func (t *TokenReview) review(ctx context.Context, token string) (auth.Identity, error) {
	ctx, cancel := context.WithTimeout(ctx, reviewTimeout)
	defer cancel()
	r, err := t.client.Create(ctx, &authenticationv1.TokenReview{
		Spec: authenticationv1.TokenReviewSpec{Token: token, Audiences: t.audiences},
	}, metav1.CreateOptions{})
	if err != nil {
		return auth.Identity{}, fmt.Errorf("kube: reviewing a token: %w", err)
	}
	if !r.Status.Authenticated || !overlap(r.Status.Audiences, t.audiences) {
		return auth.Identity{}, auth.ErrUnknown
	}
	// system:serviceaccount:NAMESPACE:NAME is the one form of user name that the
	// API server itself vouches for the namespace of.
	parts := strings.Split(r.Status.User.Username, ":")
	if len(parts) != 4 || parts[0] != "system" || parts[1] != "serviceaccount" || auth.CheckTenant(parts[2]) != nil {
		return auth.Identity{}, auth.ErrUnknown
	}
	return auth.Identity{Tenant: parts[2], Subject: r.Status.User.Username}, nil
}

// overlap reports whether the API server accepted one of the audiences asked
// for. One that does not know audiences answers none, and must not be trusted
// for them.
func overlap(got, want []string) bool {
	for _, g := range got {
		for _, w := range want {
			if g == w {
				return true
			}
		}
	}
	return false
}
