package broker

import (
	"time"

	"github.com/sandbox-broker/sandbox-broker/internal/channel"
)

// terms are what the broker holds a program to, whatever its runner does and whichever
// client is attached.
type terms struct {
	deadline time.Time
	limit    uint64 // of output, in bytes; 0: none
}

// maxTerms bounds the programs of a lease whose terms are kept. A runner holds 64 of them
// at once, so those of older ones are not asked for.
const maxTerms = 256

// keepTerms notes a program's terms.
func (l *lease) keepTerms(id string, t terms) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.terms == nil {
		l.terms = map[string]terms{}
	}
	if _, ok := l.terms[id]; !ok {
		if len(l.termed) >= maxTerms {
			delete(l.terms, l.termed[0])
			l.termed = l.termed[1:]
		}
		l.termed = append(l.termed, id)
	}
	l.terms[id] = t
}

// termsOf returns a program's terms, if this broker knows them.
func (l *lease) termsOf(id string) (t terms, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	t, ok = l.terms[id]
	return t, ok
}

// agree settles the program's terms when its runner has answered first. A program whose
// ID this broker made, or that is new, has those it was sent with; one that another broker
// started has those that its runner tells, within the pool's bounds. mu is held.
func (r *relay) agree(s channel.Started) {
	if r.agreed {
		return // over an earlier channel
	}
	r.agreed = true
	t, known := r.lease.termsOf(r.id)
	switch {
	case known:
	case (s.New || r.fresh) && !r.start.AttachOnly:
		t = terms{deadline: time.Now().Add(r.start.Timeout), limit: r.limit}
	default:
		cfg := r.lease.pool.cfg
		left, limit := cfg.MaxTimeout, max(0, s.OutputLimit)
		if s.Left > 0 {
			left = min(left, s.Left)
		}
		switch {
		case r.file: // its limit is the pool's for files
			limit = 0
		case cfg.OutputLimit > 0 && (limit == 0 || limit > cfg.OutputLimit):
			limit = cfg.OutputLimit
		}
		t = terms{deadline: time.Now().Add(left), limit: uint64(limit)}
	}
	r.lease.keepTerms(r.id, t)
	r.limit = t.limit
	r.watchDeadline(max(0, time.Until(t.deadline)) + deadlineSlack)
}

// unanswered is how long the first answer of a runner may take: no answer at all is no way
// around a deadline. mu is held.
func (r *relay) unanswered() time.Duration {
	left := r.start.Timeout
	if r.start.AttachOnly {
		left = r.lease.pool.cfg.MaxTimeout
	}
	return left + deadlineSlack + reattachWindow
}
