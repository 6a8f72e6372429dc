package broker

import (
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// A lease is written down as soon as that can be, however long it could not: its sandbox
// would end with the stock, and other replicas would not know it.
func TestARecordIsTriedUntilTheLeaseEnds(t *testing.T) {
	for name, released := range map[string]bool{"written at last": false, "released before": true} {
		t.Run(name, func(t *testing.T) {
			var back atomic.Bool
			var tries, written atomic.Int64
			pp := &puppet{record: func(Record) error {
				tries.Add(1)
				if !back.Load() {
					return errors.New("the API server is away")
				}
				written.Add(1)
				return nil
			}}
			inBubble(t, ofOne(), pp, func(t *testing.T, p *pool) {
				pp.decideAll(nil)
				m, err := p.acquire(t.Context())
				require.NoError(t, err)
				l := newLease(p, m.sb, m.ch, Record{Lease: "l", Tenant: "a", Kind: KindLease, Until: time.Now().Add(time.Hour)})
				l.mark()
				p.jobs.Go(l.record)
				time.Sleep(5 * time.Minute)
				synctest.Wait()
				require.Greater(t, tries.Load(), int64(30))
				if released {
					l.end(fateReleased)
					synctest.Wait()
				}
				back.Store(true)
				time.Sleep(2 * endBackoffMax)
				synctest.Wait()
				if released {
					require.Zero(t, written.Load())
					return
				}
				require.EqualValues(t, 1, written.Load())
				l.end(fateReleased)
			})
		})
	}
}
