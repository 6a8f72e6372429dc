package sandboxclient

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"

	"go.opentelemetry.io/otel/trace"

	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

// maxCredentialFile bounds what is read from a token or CA file, in bytes.
const maxCredentialFile = 1 << 20

// Option changes how a [Client] connects.
type Option func(*options) error

type options struct {
	token         string
	tokenFile     string
	insecureToken bool
	caFile        string
	tls           *tls.Config
	tracers       trace.TracerProvider
}

// WithToken sends the bearer token with every connection.
func WithToken(token string) Option {
	return func(o *options) error {
		if token == "" {
			return errors.New("the token is empty")
		}
		o.token = token
		return nil
	}
}

// WithTokenFile sends the token that the file holds. The file is read for every
// new connection, because mounted tokens rotate.
func WithTokenFile(path string) Option {
	return func(o *options) error {
		if path == "" {
			return errors.New("the token file's name is empty")
		}
		o.tokenFile = path
		return nil
	}
}

// WithInsecureToken allows a token to travel over plain http to another machine.
// Without it New refuses: everyone on the way could read the token and use it.
func WithInsecureToken() Option {
	return func(o *options) error {
		o.insecureToken = true
		return nil
	}
}

// WithCAFile trusts the certificates in the PEM file, and no others, as
// authorities for the broker's certificate. The file is read now, to report a
// mistake early, and for every new connection.
func WithCAFile(path string) Option {
	return func(o *options) error {
		o.caFile = path
		_, err := readCAFile(path)
		return err
	}
}

// WithTLSConfig is the base of the configuration for https. The client keeps a
// copy.
func WithTLSConfig(config *tls.Config) Option {
	return func(o *options) error {
		o.tls = config.Clone()
		return nil
	}
}

// WithTracerProvider makes the client's spans. Without it they come from the
// global provider.
func WithTracerProvider(provider trace.TracerProvider) Option {
	return func(o *options) error {
		o.tracers = provider
		return nil
	}
}

// currentToken is the token for a new connection; empty when there is none.
func (o *options) currentToken() (string, error) {
	if o.tokenFile == "" {
		return o.token, nil
	}
	b, err := readBounded(o.tokenFile)
	if err != nil {
		return "", fmt.Errorf("reading the token: %w", err)
	}
	token := string(bytes.TrimSpace(b))
	if token == "" {
		return "", fmt.Errorf("reading the token: %s is empty", o.tokenFile)
	}
	return token, nil
}

// tlsConfig is the configuration for a new connection.
func (o *options) tlsConfig() (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if o.tls != nil {
		config = o.tls.Clone()
	}
	if o.caFile != "" {
		pool, err := readCAFile(o.caFile)
		if err != nil {
			return nil, err
		}
		config.RootCAs = pool
	}
	// WebSockets start as HTTP/1.1; offering anything else would let the server
	// choose it.
	config.NextProtos = []string{"http/1.1"}
	return config, nil
}

func readCAFile(path string) (*x509.CertPool, error) {
	b, err := readBounded(path)
	if err != nil {
		return nil, fmt.Errorf("reading the CA file: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(b) {
		return nil, fmt.Errorf("reading the CA file: %s holds no PEM certificate", path)
	}
	return pool, nil
}

func readBounded(path string) ([]byte, error) {
	f, err := os.Open(path) //nolint:gosec // the path is the caller's own
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxCredentialFile+1))
	if err == nil && len(b) > maxCredentialFile {
		err = fmt.Errorf("%s is larger than %d bytes", path, maxCredentialFile)
	}
	return b, err
}

// endpointURL turns the broker's base URL into the address of its WebSocket.
func endpointURL(base string) (*url.URL, error) {
	u, err := url.Parse(base)
	var parse *url.Error
	if errors.As(err, &parse) {
		err = parse.Err // without the URL, which may hold a password
	}
	if err != nil {
		return nil, fmt.Errorf("the broker's URL: %w", err)
	}
	switch u.Scheme {
	case "http":
		u.Scheme = "ws"
	case "https":
		u.Scheme = "wss"
	default:
		return nil, fmt.Errorf("the broker's URL %q must begin with http:// or https://", base)
	}
	switch {
	case u.Hostname() == "":
		return nil, fmt.Errorf("the broker's URL %q names no host", base)
	case u.User != nil:
		return nil, errors.New("the broker's URL must not carry a user or password; give a token")
	case u.RawQuery != "" || u.Fragment != "":
		return nil, fmt.Errorf("the broker's URL %q must end with its path", base)
	}
	return u.JoinPath(wire.Path), nil
}

// checkTokenSafety refuses to send a token where others could read it.
func (o *options) checkTokenSafety(u *url.URL) error {
	hasToken := o.token != "" || o.tokenFile != ""
	if !hasToken || u.Scheme == "wss" || o.insecureToken || isLoopback(u.Hostname()) {
		return nil
	}
	return fmt.Errorf("a token would travel in the clear to %s: use https, or allow it with WithInsecureToken", u.Host)
}

func isLoopback(host string) bool {
	if host == "localhost" {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}
