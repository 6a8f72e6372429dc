package agentsandbox

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sandbox-broker/sandbox-broker/broker"
)

const (
	// annotationEnded is on a replica's coordination Lease: how leases ended there.
	annotationEnded = "sandbox-broker.dev/ended"
	// toldKept is how long what another replica told is remembered, also if it has gone
	// since. maxTold bounds how much.
	toldKept = time.Minute
	maxTold  = 1024
)

// told is an ending that another replica told, and when that came.
type told struct {
	broker.Ended
	by string
	at time.Time
}

// Tell implements broker.Roster.
func (r *roster) Tell(ctx context.Context, all []broker.Ended) error {
	text, err := json.Marshal(all)
	if err != nil {
		return fmt.Errorf("agentsandbox: encoding endings: %w", err)
	}
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]string{annotationEnded: string(text)}}})
	if err != nil {
		return fmt.Errorf("agentsandbox: encoding a patch: %w", err)
	}
	if err := r.p.client.Patch(ctx, r.lease(), client.RawPatch(types.MergePatchType, body)); err != nil {
		return fmt.Errorf("agentsandbox: telling the other replicas: %w", err)
	}
	return nil
}

// Told implements broker.Roster.
func (r *roster) Told(lease string) []broker.Ended {
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []broker.Ended
	for _, t := range r.told {
		if t.Lease == lease && time.Since(t.at) < toldKept {
			all = append(all, t.Ended)
		}
	}
	return all
}

// hear remembers what another replica tells, unless it is what it told before. mu is held.
func (r *roster) hear(l *coordinationv1.Lease, before string) {
	text, by := l.Annotations[annotationEnded], l.Labels[labelOwner]
	if text == "" || text == before || by == r.replica {
		return
	}
	var all []broker.Ended
	if err := json.Unmarshal([]byte(text), &all); err != nil {
		r.p.log.Warn("what a replica tells of its endings is not readable", "replica", by, "error", err)
		return
	}
	r.told = slices.DeleteFunc(r.told, func(t told) bool { return time.Since(t.at) >= toldKept })
	for _, n := range all {
		if !slices.ContainsFunc(r.told, func(t told) bool { return t.by == by && t.Lease == n.Lease }) {
			r.told = append(r.told, told{Ended: n, by: by, at: time.Now()})
		}
	}
	r.told = r.told[max(0, len(r.told)-maxTold):]
}
