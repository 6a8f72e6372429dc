package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	peer "sigs.k8s.io/agent-sandbox/clients/go/sandbox"
	extensionsv1beta1 "sigs.k8s.io/agent-sandbox/extensions/api/v1beta1"
)

const (
	// peerPool is what the benchmark calls its warm pool and template with sandboxd.
	peerPool = "sandboxd"
	// peerReplicas is how many sandboxes that pool keeps: one to take, one more so
	// that the pool is no bottleneck.
	peerReplicas = 2
	// sandboxdPath is where the image has the daemon.
	sandboxdPath = "/usr/local/bin/sandboxd"
	// peerProgram is the program as a command line for the daemon's shell.
	peerProgram = "python3 -c '" + program + "'"
)

// Peer is agent-sandbox's own Go client, with its daemon in the sandbox and the
// pod's address dialled directly: the fastest way it has.
type Peer struct {
	cluster *Cluster
	client  *peer.Client
	held    *peer.Sandbox // of the later runs; nil before
}

// NewPeer makes a warm pool in the benchmark's namespace, of sandboxes like the
// measured pool's, from an image that has the same files and sandboxd.
func NewPeer(ctx context.Context, c *Cluster, image string) (*Peer, error) {
	sandboxd, err := peer.NewClient(ctx, peer.Options{
		Runtime: peer.RuntimeSandboxd, Connectivity: peer.ConnectivityInClusterPodIP, RestConfig: c.config, Quiet: true,
	})
	if err != nil {
		return nil, fmt.Errorf("bench: preparing agent-sandbox's client: %w", err)
	}
	template := &extensionsv1beta1.SandboxTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: c.own, Name: peerPool}}
	c.template.Spec.DeepCopyInto(&template.Spec)
	template.Spec.PodTemplate.Spec = peerPod(c.template.Spec.PodTemplate.Spec, image)
	if err := c.kube.Create(ctx, template); err != nil {
		return nil, fmt.Errorf("bench: creating the template with sandboxd: %w", err)
	}
	replicas := int32(peerReplicas)
	pool := &extensionsv1beta1.SandboxWarmPool{
		ObjectMeta: metav1.ObjectMeta{Namespace: c.own, Name: peerPool},
		Spec:       extensionsv1beta1.SandboxWarmPoolSpec{Replicas: &replicas, TemplateRef: extensionsv1beta1.SandboxTemplateRef{Name: peerPool}},
	}
	if err := c.kube.Create(ctx, pool); err != nil {
		return nil, fmt.Errorf("bench: creating the warm pool with sandboxd: %w", err)
	}
	return &Peer{cluster: c, client: sandboxd}, nil
}

// peerPod is the measured pool's pod with sandboxd in the place of the runner.
func peerPod(from corev1.PodSpec, image string) corev1.PodSpec {
	pod := *from.DeepCopy()
	pod.InitContainers = nil // they bring the runner
	pod.Containers = pod.Containers[:1]
	program := &pod.Containers[0]
	runner := sets.New[string]()
	program.VolumeMounts = slices.DeleteFunc(program.VolumeMounts, func(m corev1.VolumeMount) bool {
		if len(program.Command) == 0 || !strings.HasPrefix(program.Command[0], m.MountPath+"/") {
			return false
		}
		runner.Insert(m.Name)
		return true
	})
	pod.Volumes = slices.DeleteFunc(pod.Volumes, func(v corev1.Volume) bool { return runner.Has(v.Name) })
	program.Image, program.Command, program.Args = image, []string{sandboxdPath}, nil
	return pod
}

// settled says whether the pool with sandboxd is full.
func (p *Peer) settled(ctx context.Context) (string, error) {
	return p.cluster.full(ctx, p.cluster.own, peerPool)
}

// First makes one call in a fresh sandbox: it is created, and the program run. Its
// client has no output before the whole of it.
func (p *Peer) First(ctx context.Context) (sample Sample, err error) {
	w := newStopwatch()
	s, err := p.client.CreateSandbox(ctx, peerPool, p.cluster.own)
	if err != nil {
		return Sample{}, fmt.Errorf("bench: creating a sandbox with agent-sandbox's client: %w", err)
	}
	defer func() { err = errors.Join(err, p.end(ctx, s)) }()
	return peerRun(ctx, s, w)
}

// Later makes one call in a sandbox that has run others before.
func (p *Peer) Later(ctx context.Context) (Sample, error) {
	if p.held == nil {
		s, err := p.client.CreateSandbox(ctx, peerPool, p.cluster.own)
		if err != nil {
			return Sample{}, fmt.Errorf("bench: creating a sandbox with agent-sandbox's client: %w", err)
		}
		p.held = s
		if _, err := peerRun(ctx, s, newStopwatch()); err != nil {
			return Sample{}, err
		}
	}
	return peerRun(ctx, p.held, newStopwatch())
}

func peerRun(ctx context.Context, s *peer.Sandbox, w *stopwatch) (Sample, error) {
	res, err := s.Run(ctx, peerProgram)
	if err != nil {
		return Sample{}, fmt.Errorf("bench: a run with agent-sandbox's client: %w", err)
	}
	if res.ExitCode != 0 {
		return Sample{}, fmt.Errorf("bench: with agent-sandbox's client the program exited with %d: %s", res.ExitCode, res.Stderr)
	}
	_, _ = w.Write([]byte(res.Stdout)) // a stopwatch takes all
	return w.sample()
}

// Close gives up the sandbox of the later runs; the rest goes with the namespace.
func (p *Peer) Close(ctx context.Context) error {
	if p.held == nil {
		return nil
	}
	return p.end(ctx, p.held)
}

// peerEndTimeout bounds how long one sandbox is given up.
const peerEndTimeout = 15 * time.Second

func (p *Peer) end(ctx context.Context, s *peer.Sandbox) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), peerEndTimeout)
	defer cancel()
	if err := p.client.DeleteSandbox(ctx, s.ClaimName(), p.cluster.own); err != nil {
		return fmt.Errorf("bench: deleting a sandbox of agent-sandbox's client: %w", err)
	}
	return nil
}
