package kube

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/client-go/kubernetes/scheme"
	authenticationclient "k8s.io/client-go/kubernetes/typed/authentication/v1"
	"k8s.io/client-go/rest"

	"github.com/sandbox-broker/sandbox-broker/internal/auth"
)

const (
	audience = "sandbox-broker"
	alice    = "system:serviceaccount:team-a:alice"
)

// apiServer answers TokenReviews and keeps the questions.
type apiServer struct {
	mu     sync.Mutex // guards the rest
	asked  []authenticationv1.TokenReviewSpec
	answer http.HandlerFunc // instead of status, if set
	status authenticationv1.TokenReviewStatus
}

func (s *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	body, _ := io.ReadAll(r.Body)
	o, _, err := scheme.Codecs.UniversalDeserializer().Decode(body, nil, nil) // in whatever form the client likes
	review, ok := o.(*authenticationv1.TokenReview)
	if r.Method != http.MethodPost || r.URL.Path != "/apis/authentication.k8s.io/v1/tokenreviews" || err != nil || !ok {
		http.Error(w, "this is no TokenReview", http.StatusBadRequest)
		return
	}
	s.asked = append(s.asked, review.Spec)
	if s.answer != nil {
		s.answer(w, r)
		return
	}
	review.APIVersion, review.Kind = "authentication.k8s.io/v1", "TokenReview"
	review.Status = s.status
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusCreated)
	_ = json.NewEncoder(w).Encode(review)
}

// becomes changes what the server answers from now on.
func (s *apiServer) becomes(status authenticationv1.TokenReviewStatus, answer http.HandlerFunc) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.status, s.answer = status, answer
}

// questions is how often it was asked.
func (s *apiServer) questions() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.asked)
}

// clock is the cache's time, which a test moves.
type clock struct{ now time.Time }

func (c *clock) Now() time.Time { return c.now }

// reviewer asks an API server that answers with status.
func reviewer(t *testing.T, status authenticationv1.TokenReviewStatus, audiences ...string) (*TokenReview, *apiServer, *clock) {
	t.Helper()
	api := &apiServer{status: status}
	server := httptest.NewServer(api)
	t.Cleanup(server.Close)
	client, err := authenticationclient.NewForConfig(&rest.Config{Host: server.URL, QPS: -1})
	require.NoError(t, err)
	review := NewTokenReview(client.TokenReviews(), audiences)
	c := &clock{now: time.Unix(1000, 0)}
	review.cache = cache.NewLRUExpireCacheWithClock(reviewCache, c)
	return review, api, c
}

func known(username string, audiences ...string) authenticationv1.TokenReviewStatus {
	return authenticationv1.TokenReviewStatus{
		Authenticated: true, Audiences: audiences, User: authenticationv1.UserInfo{Username: username, Groups: []string{"system:serviceaccounts"}},
	}
}

func TestAKnownToken(t *testing.T) {
	t.Parallel()
	review, api, _ := reviewer(t, known(alice, "other", audience), "first", audience)
	id, err := review.Authenticate(t.Context(), "secret")
	require.NoError(t, err)
	require.Equal(t, auth.Identity{Tenant: "team-a", Subject: alice}, id, "the tenant is the namespace")
	require.Equal(t, []authenticationv1.TokenReviewSpec{{Token: "secret", Audiences: []string{"first", audience}}}, api.asked)
}

func TestUnknownTokens(t *testing.T) {
	t.Parallel()
	for name, status := range map[string]authenticationv1.TokenReviewStatus{
		"not authenticated":              {},
		"not authenticated, with a user": {Audiences: []string{audience}, User: authenticationv1.UserInfo{Username: alice}},
		"refused with a reason":          {Error: "token has expired", Audiences: []string{audience}},
		// An API server that does not know audiences answers none: the token may
		// have been meant for anybody.
		"of an API server without audiences": known(alice),
		"meant for somebody else":            known(alice, "https://kubernetes.default.svc"),
		"meant for a name that begins so":    known(alice, audience+"-2"),
		// Only a service account's name tells a namespace that the cluster vouches for.
		"a person":                    known("alice", audience),
		"an admin":                    known("kubernetes-admin", audience),
		"a node":                      known("system:node:worker-1", audience),
		"anonymous":                   known("system:anonymous", audience),
		"without a name":              known("", audience),
		"with a part too few":         known("system:serviceaccount:team-a", audience),
		"with a part too many":        known(alice+":more", audience),
		"with a prefix":               known("oidc:"+alice, audience),
		"of another kind of account":  known("system:user:team-a:alice", audience),
		"of another system":           known("my:serviceaccount:team-a:alice", audience),
		"of a namespace without name": known("system:serviceaccount::alice", audience),
		"of no possible namespace":    known("system:serviceaccount:team a:alice", audience),
		"of a namespace with a line":  known("system:serviceaccount:team-a\n:alice", audience),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			review, _, _ := reviewer(t, status, audience)
			id, err := review.Authenticate(t.Context(), "secret")
			require.ErrorIs(t, err, auth.ErrUnknown)
			require.Zero(t, id)
		})
	}
}

func TestWithoutAudiencesNobodyIsKnown(t *testing.T) {
	t.Parallel()
	review, _, _ := reviewer(t, known(alice, audience))
	_, err := review.Authenticate(t.Context(), "secret")
	require.ErrorIs(t, err, auth.ErrUnknown)
}

// A failure to find out must not look like a wrong token, and is not remembered.
func TestFailuresToFindOut(t *testing.T) {
	t.Parallel()
	fail := func(code int) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "told", code) }
	}
	for name, answer := range map[string]http.HandlerFunc{
		"the broker has no rights": fail(http.StatusForbidden),
		"the broker is unknown":    fail(http.StatusUnauthorized),
		"no such API":              fail(http.StatusNotFound),
		"the server is broken":     fail(http.StatusInternalServerError),
		"the connection breaks":    func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
		"garbage": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusCreated)
			_, _ = w.Write([]byte("{"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			review, api, _ := reviewer(t, authenticationv1.TokenReviewStatus{}, audience)
			api.becomes(authenticationv1.TokenReviewStatus{}, answer)
			id, err := review.Authenticate(t.Context(), "secret")
			require.ErrorContains(t, err, "kube: reviewing a token")
			require.NotErrorIs(t, err, auth.ErrUnknown)
			require.NotContains(t, err.Error(), "secret")
			require.Zero(t, id)

			api.becomes(known(alice, audience), nil)
			id, err = review.Authenticate(t.Context(), "secret")
			require.NoError(t, err)
			require.Equal(t, "team-a", id.Tenant)
		})
	}
}

func TestACallerWhoLeftIsNoFailureOfTheToken(t *testing.T) {
	t.Parallel()
	review, api, _ := reviewer(t, known(alice, audience), audience)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := review.Authenticate(ctx, "secret")
	require.ErrorIs(t, err, context.Canceled)
	require.NotErrorIs(t, err, auth.ErrUnknown)
	require.Zero(t, api.questions())

	_, err = review.Authenticate(t.Context(), "secret")
	require.NoError(t, err)
	_, err = review.Authenticate(ctx, "secret")
	require.NoError(t, err, "what is remembered needs no time")
}

func TestAnswersAreRememberedForAWhile(t *testing.T) {
	t.Parallel()
	none := authenticationv1.TokenReviewStatus{}
	for name, tt := range map[string]struct {
		first, then authenticationv1.TokenReviewStatus
		ok          bool // of first
		lasts       time.Duration
	}{
		// A revoked token works for a minute at most.
		"a yes": {known(alice, audience), none, true, time.Minute},
		// A token may become valid, and nobody can make the broker flood the API server.
		"a no": {none, known(alice, audience), false, 10 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			review, api, clock := reviewer(t, tt.first, audience)
			ask := func(token string, want bool, questions int) {
				t.Helper()
				_, err := review.Authenticate(t.Context(), token)
				if want {
					require.NoError(t, err)
				} else {
					require.ErrorIs(t, err, auth.ErrUnknown)
				}
				require.Equal(t, questions, api.questions())
			}
			ask("secret", tt.ok, 1)
			api.becomes(tt.then, nil)
			ask("secret", tt.ok, 1)
			ask("another", !tt.ok, 2) // one token's answer is not another's
			clock.now = clock.now.Add(tt.lasts - time.Second)
			ask("secret", tt.ok, 2)
			clock.now = clock.now.Add(2 * time.Second)
			ask("secret", !tt.ok, 3)
		})
	}
}

// Whoever reads the broker's memory finds no token in the cache.
func TestNoTokenIsKept(t *testing.T) {
	t.Parallel()
	review, _, _ := reviewer(t, known(alice, audience), audience)
	_, err := review.Authenticate(t.Context(), "secret")
	require.NoError(t, err)
	require.Len(t, review.cache.Keys(), 1)
	require.NotContains(t, review.cache.Keys(), any("secret"))
}
