package sandboxclient

import "os"

// The environment variables that say how to reach the broker.
const (
	EnvURL       = "SANDBOX_BROKER_URL"
	EnvTokenFile = "SANDBOX_BROKER_TOKEN_FILE"
	EnvCAFile    = "SANDBOX_BROKER_CA_FILE"
)

// DefaultAddress is where a broker listens when nobody says otherwise: on
// loopback alone, because beyond it callers must be authenticated. DefaultURL is
// how a client on the same machine reaches it.
const (
	DefaultAddress = "127.0.0.1:8443"
	DefaultURL     = "http://" + DefaultAddress
)

// FromEnvironment makes a client of the broker that the environment names, or of
// the one at [DefaultURL]. Options given count after the environment's.
func FromEnvironment(opts ...Option) (*Client, error) {
	url := os.Getenv(EnvURL)
	if url == "" {
		url = DefaultURL
	}
	var env []Option
	if file := os.Getenv(EnvTokenFile); file != "" {
		env = append(env, WithTokenFile(file))
	}
	if file := os.Getenv(EnvCAFile); file != "" {
		env = append(env, WithCAFile(file))
	}
	return New(url, append(env, opts...)...)
}
