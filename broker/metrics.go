package broker

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

// buckets resolve from half a millisecond to the longest program, in seconds.
var buckets = []float64{
	.0005, .001, .002, .003, .005, .0075, .01, .015, .02, .03, .05, .075, .1, .15, .2, .3, .5, .75,
	1, 1.5, 2, 3, 5, 7.5, 10, 15, 30, 60, 120, 300,
}

// metrics are the broker's own, all with the pool as a label.
type metrics struct {
	queue, take, firstByte, run *prometheus.HistogramVec
	endings, errors             *prometheus.CounterVec
	sandboxes                   *prometheus.GaugeVec
	waiting                     *prometheus.GaugeVec
	detached                    *prometheus.CounterVec
}

func newMetrics(reg prometheus.Registerer) *metrics {
	hist := func(name, help string, labels ...string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{Namespace: "sandbox_broker", Name: name, Help: help, Buckets: buckets}, append([]string{"pool"}, labels...))
	}
	m := &metrics{
		queue:     hist("queue_seconds", "Time a caller waited for a sandbox, served or not.", "outcome"),
		take:      hist("take_seconds", "Time from asking the provider for a sandbox to its channel being open.", "outcome"),
		firstByte: hist("first_byte_seconds", "Time from the request to the first byte of output passed to the client."),
		run:       hist("exec_seconds", "Time from the start of an exec to its ending.", "reason"),
		endings:   counter("endings_total", "Execs by how they ended.", "pool", "reason", "cause"),
		errors:    counter("errors_total", "Requests that failed, by code.", "op", "code"),
		detached:  counter("detached_total", "Clients that went away while their exec went on.", "pool"),
		sandboxes: gauge("sandboxes", "Sandboxes by state: taking, stock, leased, ending.", "pool", "state"),
		waiting:   gauge("queue_length", "Callers waiting for a sandbox.", "pool"),
	}
	reg.MustRegister(m.queue, m.take, m.firstByte, m.run, m.endings, m.errors, m.detached, m.sandboxes, m.waiting)
	return m
}

func counter(name, help string, labels ...string) *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "sandbox_broker", Name: name, Help: help}, labels)
}

func gauge(name, help string, labels ...string) *prometheus.GaugeVec {
	return prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: "sandbox_broker", Name: name, Help: help}, labels)
}

// outcome labels a histogram by success.
func outcome(err error) string {
	if err == nil {
		return "ok"
	}
	return "failed"
}

func (m *metrics) ended(pool string, n *wire.Ending, d time.Duration) {
	m.endings.WithLabelValues(pool, string(n.Reason), string(n.Cause)).Inc()
	m.run.WithLabelValues(pool, string(n.Reason)).Observe(d.Seconds())
}
