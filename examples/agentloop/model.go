package main

import (
	"context"
	"strings"
)

// scripted is a model that makes the mistakes of a real one: a name that does
// not exist, then a loop that does not end, then it reads the errors.
type scripted struct{}

// Write implements Model.
func (scripted) Write(_ context.Context, _ string, tries []Try) (string, error) {
	if len(tries) == 0 {
		return "from primetools import first_primes\nprint(sum(first_primes(100)))\n", nil
	}
	last := tries[len(tries)-1].Error
	switch {
	case strings.Contains(last, "ModuleNotFoundError"):
		// It does without the library, and overlooks something.
		return "n, found = 1, []\nwhile len(found) < 100:\n    if all(n % p for p in found):\n        found.append(n)\n    n += 1\nprint(sum(found[1:]))\n", nil
	default:
		return "found, n = [], 2\nwhile len(found) < 100:\n    if all(n % p for p in found):\n        found.append(n)\n    n += 1\nprint(sum(found))\n", nil
	}
}
