package chaos

import (
	"fmt"
	"math/rand/v2"
	"time"
)

// FaultKind says what is broken.
type FaultKind string

// The faults. Those of connections overlap with all others; the others come one after
// the other, each when the one before has been made good.
const (
	// CutClients cuts every client's connection at once, CutClientsAt after a random
	// number of further bytes of each.
	CutClients   FaultKind = "cut-clients"
	CutClientsAt FaultKind = "cut-clients-at-bytes"
	// CutExecs does so with a broker's connections to the API server, which carry the
	// channels of its sandboxes; CutExecsAt likewise.
	CutExecs   FaultKind = "cut-execs"
	CutExecsAt FaultKind = "cut-execs-at-bytes"

	// KillBroker ends one broker by SIGKILL and starts another a little later;
	// KillBrokers ends all of them.
	KillBroker  FaultKind = "kill-broker"
	KillBrokers FaultKind = "kill-all-brokers"
	// StopRunner stops a sandbox's first process for a while; KillRunner kills it.
	StopRunner FaultKind = "stop-runner"
	KillRunner FaultKind = "kill-runner"
	// DeletePod and DeleteClaim delete what programs run in.
	DeletePod   FaultKind = "delete-pod"
	DeleteClaim FaultKind = "delete-claim"

	// The restarts kill a process of the cluster and start it again.
	RestartAPIServer  FaultKind = "restart-api-server"
	RestartContainerd FaultKind = "restart-containerd"
	RestartKubelet    FaultKind = "restart-kubelet"
	RestartController FaultKind = "restart-agent-sandbox"
	// Drain cordons the node, evicts every sandbox and uncordons it.
	Drain FaultKind = "drain-node"
)

// ofConnections are the faults that come at any time.
var ofConnections = []FaultKind{CutClients, CutClientsAt, CutClientsAt, CutExecs, CutExecsAt, CutExecsAt}

// cheap are the others that ask nothing of the machine; costly those that take their
// time, and the cluster, to be made good. How often each is named is how often it
// comes in one round.
var (
	cheap  = []FaultKind{KillBroker, KillBroker, KillBroker, KillBrokers, StopRunner, StopRunner, KillRunner, DeletePod, DeletePod, DeleteClaim}
	costly = []FaultKind{RestartAPIServer, RestartAPIServer, RestartContainerd, RestartContainerd, RestartKubelet, RestartKubelet, RestartController, Drain}
)

// onAPod are the faults after which a program of the same sandbox may be lost: of a
// restarted containerd only those whose shim hung, of a restarted kubelet only those whose
// pod was starting.
var onAPod = map[FaultKind]bool{KillRunner: true, DeletePod: true, DeleteClaim: true, Drain: true, RestartContainerd: true, RestartKubelet: true}

// Step is one fault to come.
type Step struct {
	Kind FaultKind
	// After is the wait since the fault before it was made good.
	After time.Duration
	// Choice, from 0 to 1, chooses among the targets that there are then.
	Choice float64
	// For is how long the fault lasts, where that is ours to say.
	For time.Duration
	// Bytes bounds how many more bytes a connection carries.
	Bytes int64
}

// String is the step without its wait.
func (s Step) String() string {
	switch s.Kind {
	case CutClientsAt, CutExecsAt:
		return fmt.Sprintf("%s of %d", s.Kind, s.Bytes)
	case KillBroker, KillBrokers, StopRunner:
		return fmt.Sprintf("%s for %s", s.Kind, s.For.Round(time.Millisecond))
	}
	return string(s.Kind)
}

// deck deals kinds without end: all of a round in random order, then the next round.
// So a round leaves nothing out.
type deck struct {
	random *rand.Rand
	round  []FaultKind
	left   []FaultKind
	least  time.Duration // bounds of After
	most   time.Duration
}

// newDeck is a deck of its own for each name: what one deals does not depend on how
// fast another is used.
func newDeck(seed uint64, name string, least, most time.Duration, kinds ...[]FaultKind) *deck {
	d := &deck{random: randomOf(seed, name), least: least, most: most}
	for _, k := range kinds {
		d.round = append(d.round, k...)
	}
	return d
}

// next deals a step.
func (d *deck) next() Step {
	if len(d.left) == 0 {
		d.left = append(d.left, d.round...)
		d.random.Shuffle(len(d.left), func(i, j int) { d.left[i], d.left[j] = d.left[j], d.left[i] })
	}
	s := Step{
		Kind: d.left[0], Choice: d.random.Float64(), Bytes: between(d.random, 1, 256<<10),
		After: d.least + time.Duration(d.random.Int64N(int64(d.most-d.least)+1)),
		For:   500*time.Millisecond + time.Duration(d.random.Int64N(int64(5*time.Second))),
	}
	d.left = d.left[1:]
	return s
}

// randomOf is a source of random numbers of its own for each name.
func randomOf(seed uint64, name string) *rand.Rand { return rand.New(rand.NewPCG(seed, digest(name))) }
