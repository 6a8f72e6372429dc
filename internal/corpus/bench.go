package corpus

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/sandbox-broker/sandbox-broker/internal/channel"
)

// Sum is the program that benchmarks run: what a run costs beside its work.
func Sum(lang string) Case {
	code := map[string]string{"python": "print(1+1)\n", "node": "console.log(1+1)\n", "shell": "echo $((1+1))\n"}
	return Case{Name: "sum", Language: lang, Code: []byte(code[lang])}
}

// Times are of runs, from the request to the ending.
type Times []time.Duration

// Time runs the program once more.
func (t *Times) Time(ctx context.Context, c Case, ch *channel.Client, b channel.Bind, id string) error {
	began := time.Now()
	r, _, err := c.Exec(ctx, ch, b, fmt.Sprintf("%s-%d", id, len(*t)))
	*t = append(*t, time.Since(began))
	if err == nil && string(r.Stdout) != "2\n" {
		err = fmt.Errorf("%w: %q %q", errSum, r.Stdout, r.Stderr)
	}
	return err
}

var errSum = errors.New("corpus: this is not the sum")

// P50 is the median in milliseconds.
func (t Times) P50() float64 {
	t = slices.Sorted(slices.Values(t))
	return float64(t[len(t)/2].Microseconds()) / 1000
}

// Mean is the average in milliseconds: of runs that take turns in being fast and
// slow, as those right after one another do, a median says little.
func (t Times) Mean() float64 {
	var sum time.Duration
	for _, d := range t {
		sum += d
	}
	return float64(sum.Microseconds()) / 1000 / float64(len(t))
}
