package corpus

import (
	"context"
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

// Time runs the program n times, and ready before each.
func (c Case) Time(ctx context.Context, ch *channel.Client, lease, id string, n int, ready func()) (Times, error) {
	var times Times
	for i := range n {
		ready()
		began := time.Now()
		r, _, err := c.Exec(ctx, ch, lease, fmt.Sprintf("%s-%d", id, i))
		if err != nil {
			return nil, err
		}
		times = append(times, time.Since(began))
		if string(r.Stdout) != "2\n" {
			return nil, fmt.Errorf("corpus: the sum is %q: %s", r.Stdout, r.Stderr)
		}
	}
	return times, nil
}

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
