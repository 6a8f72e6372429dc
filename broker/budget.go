package broker

import (
	"sync"
	"time"

	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

// A program's code is kept until its runner has answered: it goes again when the channel
// breaks before. It may wait in the queue for that, or for a runner that never answers. So
// what waits is bounded, and one tenant has no more than half of it. The code may lie in
// memory up to four times while it is sent.
const (
	waitingBudget = 64 << 20 // bytes
	tenantBudget  = waitingBudget / 2
)

// budget bounds the bytes of programs that have not started.
type budget struct {
	mu      sync.Mutex // guards the rest
	held    int64
	tenants map[string]int64 // without those that hold nothing
}

// take counts n bytes to a tenant, until release is called for the first time.
func (b *budget) take(tenant string, n int64) (release func(), err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	whose, limit := "the tenant's", int64(tenantBudget)
	full := b.tenants[tenant]+n > tenantBudget
	if !full && b.held+n > waitingBudget {
		full, whose, limit = true, "all", waitingBudget
	}
	if full {
		return nil, &wire.Error{
			Code: wire.CodeExhausted, Reason: "code_waiting", Field: "code", Limit: limit, RetryAfterMS: time.Second.Milliseconds(),
			Message: whose + " programs that wait to be started have as much code as the broker may keep; try again when some have started, or send less code and write the rest as files",
		}
	}
	if b.tenants == nil {
		b.tenants = map[string]int64{}
	}
	b.held += n
	b.tenants[tenant] += n
	return sync.OnceFunc(func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.held -= n
		if b.tenants[tenant] -= n; b.tenants[tenant] == 0 {
			delete(b.tenants, tenant)
		}
	}), nil
}

// weight is what a program takes of the budget, in bytes.
func weight(p *wire.Program, code []byte) int64 {
	n := len(code) + len(p.Dir)
	for _, a := range p.Argv {
		n += len(a)
	}
	for k, v := range p.Env {
		n += len(k) + len(v)
	}
	return int64(n)
}
