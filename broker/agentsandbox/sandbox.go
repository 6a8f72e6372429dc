package agentsandbox

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	extensionsv1beta1 "sigs.k8s.io/agent-sandbox/extensions/api/v1beta1"

	"github.com/sandbox-broker/sandbox-broker/broker"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

// sandbox is a claim with the pod that was adopted for it.
type sandbox struct {
	p    *Provider
	id   broker.SandboxID
	pod  string
	info broker.SandboxInfo
}

// ID implements broker.Sandbox.
func (s *sandbox) ID() broker.SandboxID { return s.id }

// Info implements broker.Sandbox.
func (s *sandbox) Info() broker.SandboxInfo { return s.info }

// Dial implements broker.Sandbox.
func (s *sandbox) Dial(ctx context.Context) (net.Conn, error) {
	if s.pod == "" {
		return nil, fmt.Errorf("agentsandbox: claim %s has no pod", s.id.Name)
	}
	return s.p.dialer.dial(ctx, s.pod)
}

// Record implements broker.Sandbox.
func (s *sandbox) Record(ctx context.Context, r broker.Record) error {
	text, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("agentsandbox: encoding a record: %w", err)
	}
	h := sha256.Sum256([]byte(r.Tenant))
	return s.patch(ctx, r.Until, map[string]any{
		"labels":      map[string]string{labelTenant: hex.EncodeToString(h[:16])},
		"annotations": map[string]string{annotationRecord: string(text)},
	})
}

// Extend implements broker.Sandbox.
func (s *sandbox) Extend(ctx context.Context, until time.Time) error {
	err := s.patchOwned(ctx, s.object(), patchOp{"replace", "/spec/lifecycle/shutdownTime", metav1.NewTime(until)})
	switch {
	case isRefusal(err):
		return s.takenOver()
	case err != nil:
		return fmt.Errorf("agentsandbox: moving the end of claim %s: %w", s.id.Name, err)
	}
	return nil
}

// takenOver says that the sandbox is no longer this replica's.
func (s *sandbox) takenOver() error {
	return wire.Errorf(wire.CodeConflict, "another replica has taken sandbox %s over, or it has ended", s.id.Name)
}

// isRefusal reports whether a patch failed by a test in it, or since the claim is gone.
func isRefusal(err error) bool {
	return apierrors.IsInvalid(err) || apierrors.IsConflict(err) || apierrors.IsNotFound(err)
}

// patch moves the claim's end and merges metadata. The UID in it makes the API
// server refuse the patch of another claim.
func (s *sandbox) patch(ctx context.Context, until time.Time, metadata map[string]any) error {
	metadata["uid"] = s.id.Claim
	body, err := json.Marshal(map[string]any{
		"metadata": metadata,
		"spec":     map[string]any{"lifecycle": map[string]any{"shutdownTime": metav1.NewTime(until)}},
	})
	if err != nil {
		return fmt.Errorf("agentsandbox: encoding a patch: %w", err)
	}
	if err := s.p.client.Patch(ctx, s.object(), client.RawPatch(types.MergePatchType, body)); err != nil {
		return fmt.Errorf("agentsandbox: patching claim %s: %w", s.id.Name, err)
	}
	return nil
}

// own makes a replica the owner, in one step with the check that nobody else has
// become it.
func (s *sandbox) own(ctx context.Context, replica string) error {
	now := s.object()
	err := s.patchOwned(ctx, now, patchOp{"add", ownerPath, replica})
	switch {
	case isRefusal(err):
		return s.takenOver()
	case err != nil:
		return fmt.Errorf("agentsandbox: taking claim %s over: %w", s.id.Name, err)
	}
	// What the watch knew may be older than the owner's last word.
	s.info.Owner, s.info.Record = replica, s.p.recordOf(now)
	return nil
}

// patchOp is an operation of a JSON patch: RFC 6902, 4.
type patchOp struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value"`
}

// ownerPath is where a claim's owner is: RFC 6901, 3.
var ownerPath = "/metadata/labels/" + strings.ReplaceAll(labelOwner, "/", "~1")

// patchOwned patches the claim, in one step with the check that it is the same one and
// has the owner that Info tells.
func (s *sandbox) patchOwned(ctx context.Context, c *extensionsv1beta1.SandboxClaim, op patchOp) error {
	ops := []patchOp{{"test", "/metadata/uid", s.id.Claim}, {"test", ownerPath, s.info.Owner}, op}
	if s.info.Owner == "" { // of a broker that knew no owners
		ops = []patchOp{ops[0], op}
	}
	body, err := json.Marshal(ops)
	if err != nil {
		return fmt.Errorf("agentsandbox: encoding a patch: %w", err)
	}
	return s.p.client.Patch(ctx, c, client.RawPatch(types.JSONPatchType, body))
}

// End implements broker.Sandbox.
func (s *sandbox) End(ctx context.Context) error {
	err := s.delete(ctx, nil)
	if apierrors.IsConflict(err) { // another claim has the name
		return nil
	}
	return err
}

// endOwned is End, unless another replica has become the owner and the lease is not the
// one that is recorded.
func (s *sandbox) endOwned(ctx context.Context, replica, lease string) error {
	now := s.object()
	err := s.p.live.Get(ctx, client.ObjectKeyFromObject(now), now)
	switch {
	case apierrors.IsNotFound(err), err == nil && string(now.UID) != s.id.Claim:
		return nil
	case err != nil:
		return fmt.Errorf("agentsandbox: reading claim %s: %w", s.id.Name, err)
	}
	r := s.p.recordOf(now)
	same := r != nil && lease != "" && r.Lease == lease
	if owner := now.Labels[labelOwner]; owner != replica && owner != "" && !same {
		return s.takenOver()
	}
	return s.delete(ctx, &now.ResourceVersion) // a conflict is looked at again
}

func (s *sandbox) delete(ctx context.Context, version *string) error {
	uid := types.UID(s.id.Claim)
	s.p.mu.Lock()
	delete(s.p.known, uid) // its death is no news
	s.p.mu.Unlock()
	err := s.p.client.Delete(ctx, s.object(), client.Preconditions{UID: &uid, ResourceVersion: version})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("agentsandbox: deleting claim %s: %w", s.id.Name, err)
	}
	return nil
}

func (s *sandbox) object() *extensionsv1beta1.SandboxClaim {
	return &extensionsv1beta1.SandboxClaim{ObjectMeta: metav1.ObjectMeta{Namespace: s.p.opts.Namespace, Name: s.id.Name}}
}
