package runner

import (
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/sandbox-broker/sandbox-broker/internal/channel"
)

// kickSpares lets the next spares start: a program has ended.
func (s *supervisor) kickSpares() {
	for _, n := range s.allNurseries() {
		select {
		case n.kick <- struct{}{}:
		default:
		}
	}
}

// giveWay ends the spares, so that programs have the memory, and reports whether
// there were any.
func (s *supervisor) giveWay() bool {
	gave := false
	for _, n := range s.allNurseries() {
		gave = n.giveWay() || gave
	}
	return gave
}

func (s *supervisor) allNurseries() []*nursery {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Values(s.nurseries))
}

// takeSpare finds a spare for c and gives it the code; nil: c needs a start. mu is
// held.
func (s *supervisor) takeSpare(c *command, stdin bool) *spare {
	n, ok := s.nurseries[c.language]
	if !ok {
		return nil
	}
	sp := n.take(c, stdin)
	if sp == nil {
		return nil
	}
	if err := s.handOver(sp, c, stdin); err != nil {
		s.opts.Log.Warn("a spare interpreter could not be used", "language", n.lang, "error", err)
		s.discard(sp)
		return nil
	}
	return sp
}

// PrepareFromEnviron reads SANDBOX_SPARES, languages with a comma between them, and
// SANDBOX_PRELOAD, where each is LANGUAGE:MODULE.
func PrepareFromEnviron() channel.Prepare {
	split := func(name string) []string {
		return strings.FieldsFunc(os.Getenv(name), func(r rune) bool { return r == ',' || r == ' ' })
	}
	p := channel.Prepare{Spares: split("SANDBOX_SPARES"), Preload: map[string][]string{}}
	for _, v := range split("SANDBOX_PRELOAD") {
		if lang, module, ok := strings.Cut(v, ":"); ok {
			p.Preload[lang] = append(p.Preload[lang], module)
		}
	}
	return p
}
