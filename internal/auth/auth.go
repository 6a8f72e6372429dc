// Package auth says who calls: it turns a bearer token into an [Identity].
//
// An [Authenticator] is one way to know tokens; [Chain] asks several. The ones
// without a cluster are here; TokenReview is in internal/kube.
package auth

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strings"
)

// Identity is an authenticated caller.
type Identity struct {
	Tenant  string // who is charged and limited
	Subject string // who it is, for the log
}

// Authenticator knows tokens. Unknown ones are ErrUnknown; any other error means
// that it could not be found out now.
type Authenticator interface {
	Authenticate(ctx context.Context, token string) (Identity, error)
}

// ErrUnknown says that a token is nobody's.
var ErrUnknown = errors.New("auth: the token is not valid here")

// maxToken bounds a token's length, in bytes.
const maxToken = 16 << 10

// Bearer extracts the token of a request's Authorization header (RFC 6750,
// section 2.1); ok is false when there is none.
func Bearer(r *http.Request) (token string, ok bool) {
	scheme, token, found := strings.Cut(r.Header.Get("Authorization"), " ")
	token = strings.TrimSpace(token)
	if !found || !strings.EqualFold(scheme, "Bearer") || token == "" || len(token) > maxToken {
		return "", false
	}
	return token, true
}

// Chain asks each in turn; the first that knows the token wins. If none does and
// one could not tell, its error is returned.
type Chain []Authenticator

// Authenticate implements Authenticator.
func (c Chain) Authenticate(ctx context.Context, token string) (Identity, error) {
	result := ErrUnknown
	for _, a := range c {
		id, err := a.Authenticate(ctx, token)
		if err == nil {
			return id, nil
		}
		if !errors.Is(err, ErrUnknown) {
			result = err
		}
	}
	return Identity{}, result
}

// StaticToken is one entry of a tokens file: a development's or a test's way in.
// Exactly one of Token and SHA256 (hex) is set.
type StaticToken struct {
	Token  string `json:"token,omitempty"`
	SHA256 string `json:"sha256,omitempty"`
	Tenant string `json:"tenant"`
}

// Static knows a fixed set of tokens, by their hash.
type Static map[[sha256.Size]byte]Identity

// NewStatic checks the entries; an error names the first bad one.
func NewStatic(tokens []StaticToken) (Static, error) {
	s := Static{}
	for i, t := range tokens {
		if err := CheckTenant(t.Tenant); err != nil {
			return nil, fmt.Errorf("entry %d: tenant: %w", i, err)
		}
		var h [sha256.Size]byte
		switch {
		case (t.Token == "") == (t.SHA256 == ""):
			return nil, fmt.Errorf("entry %d: exactly one of token and sha256 is needed", i)
		case t.Token != "":
			h = sha256.Sum256([]byte(t.Token))
		default:
			b, err := hex.DecodeString(t.SHA256)
			if err != nil || len(b) != sha256.Size {
				return nil, fmt.Errorf("entry %d: sha256: not %d hex digits", i, 2*sha256.Size)
			}
			copy(h[:], b)
		}
		if _, twice := s[h]; twice {
			return nil, fmt.Errorf("entry %d: the token is listed twice", i)
		}
		s[h] = Identity{Tenant: t.Tenant, Subject: "token:" + hex.EncodeToString(h[:4])}
	}
	return s, nil
}

// Authenticate implements Authenticator. It looks up a hash, so its time says
// nothing about the tokens it knows.
func (s Static) Authenticate(_ context.Context, token string) (Identity, error) {
	id, ok := s[sha256.Sum256([]byte(token))]
	if !ok {
		return Identity{}, ErrUnknown
	}
	return id, nil
}

// tenantPattern is what a tenant may be called: it goes into handles and labels.
var tenantPattern = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._:/@-]{0,251}[A-Za-z0-9])?$`)

// CheckTenant reports why a name cannot be a tenant's.
func CheckTenant(name string) error {
	if !tenantPattern.MatchString(name) {
		return fmt.Errorf("%q is not 1 to 253 letters, digits and ._:/@- that start and end with a letter or digit", name)
	}
	return nil
}
