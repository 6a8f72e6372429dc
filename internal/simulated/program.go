package simulated

import (
	"encoding/json"
	"time"

	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

// Program is what a simulated runner runs: after a time it prints a text, once
// or several times, and ends. Its source code is the JSON of it.
type Program struct {
	After    time.Duration `json:"after,omitempty"` // before the first text, or the end if there is none
	Text     string        `json:"text,omitempty"`
	Times    int           `json:"times,omitempty"` // how often it is printed; at most maxTimes
	Every    time.Duration `json:"every,omitempty"` // between two texts; 0: all at once
	ExitCode int           `json:"exit_code,omitempty"`
}

// maxTimes bounds how often a program prints.
const maxTimes = 1 << 30

// Source is the code to give to a broker.
func (p Program) Source() string { return string(wire.Marshal(p)) }

// parseProgram reads a program from its source.
func parseProgram(code []byte) (Program, error) {
	var p Program
	if err := json.Unmarshal(code, &p); err != nil {
		return p, wire.Invalid("code", 0, "a simulated runner runs simulated programs only: %v", err)
	}
	if p.Times < 0 || p.Times > maxTimes || p.After < 0 || p.Every < 0 {
		return p, wire.Invalid("code", maxTimes, "a simulated program prints 0 to %d times, and no time in it is negative", maxTimes)
	}
	return p, nil
}

// printed is how many texts the program has printed after running for d.
func (p Program) printed(d time.Duration) int {
	switch {
	case d < p.After || p.Times == 0:
		return 0
	case p.Every == 0:
		return p.Times
	}
	return min(p.Times, 1+int((d-p.After)/p.Every))
}

// length is how long the program runs if nobody ends it.
func (p Program) length() time.Duration {
	return p.After + time.Duration(max(0, p.Times-1))*p.Every
}

// next is when, after having run for d, it prints again or ends.
func (p Program) next(d time.Duration) time.Duration {
	if n := p.printed(d); n < p.Times {
		return p.After + time.Duration(n)*p.Every
	}
	return p.length()
}

// output is up to n bytes of what the program prints, from an offset on. A reader
// that comes back gets the same bytes again, though nobody keeps them.
func (p Program) output(offset uint64, n int) []byte {
	b := make([]byte, 0, n)
	at := int(offset % uint64(len(p.Text)))
	for len(b) < n {
		b = append(b, p.Text[at:min(len(p.Text), at+n-len(b))]...)
		at = 0
	}
	return b
}
