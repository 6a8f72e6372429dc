// Package endpoint says where clients look for the broker, and where the broker
// listens, when nobody says otherwise. The two must agree.
package endpoint

// Port is the port of the broker's API, with and without TLS.
const Port = "8443"

// DefaultListen is where the broker listens without configuration: on loopback
// alone, because beyond it callers must be authenticated.
const DefaultListen = "127.0.0.1:" + Port

// DefaultURL is where a client finds a broker that listens on DefaultListen.
const DefaultURL = "http://" + DefaultListen

// The environment variables that say how to reach the broker.
const (
	EnvURL       = "SANDBOX_BROKER_URL"
	EnvTokenFile = "SANDBOX_BROKER_TOKEN_FILE"
	EnvCAFile    = "SANDBOX_BROKER_CA_FILE"
)
