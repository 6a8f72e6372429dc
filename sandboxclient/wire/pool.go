package wire

// PoolsPath is where a broker lists its pools.
const PoolsPath = "/v1/pools"

// Pool describes a pool to those who may use it: an entry of the answer to
// GET /v1/pools.
type Pool struct {
	Name         string   `json:"name"`
	Languages    []string `json:"languages"`
	MaxSandboxes int      `json:"max_sandboxes"`
	CodeLimit    int      `json:"code_limit"`     // bytes
	TimeoutMS    int64    `json:"timeout_ms"`     // when none is asked for
	MaxTimeoutMS int64    `json:"max_timeout_ms"` // the most that may be asked for
	// Stock is how many sandboxes this replica of the broker keeps claimed and
	// connected, InStock how many are there now.
	Stock   int `json:"stock"`
	InStock int `json:"in_stock"`
	// Problem says why the pool last could not give a sandbox, until it can.
	Problem string `json:"problem,omitempty"`
	// Warnings say what the sandboxes lack, such as a module that could not be
	// imported ahead; programs run all the same.
	Warnings []string `json:"warnings,omitempty"`
}
