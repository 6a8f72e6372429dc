package broker

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"strings"

	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

// macSize is how much of the MAC a handle carries, in bytes.
const macSize = 16

// maxHandle bounds a handle's length, in characters.
const maxHandle = 1024

// secret is the key that all replicas of a broker share. Keys for the two uses
// are derived from it.
type secret []byte

func (s secret) mac(use string, parts ...string) []byte {
	m := hmac.New(sha256.New, s)
	m.Write([]byte("sandbox-broker " + use))
	for _, p := range parts {
		m.Write([]byte{0})
		m.Write([]byte(p))
	}
	return m.Sum(nil)
}

// channelKey is what a sandbox's first connection installs in its runner. It
// follows from the claim, so that every replica can reach every sandbox.
func (s secret) channelKey(id SandboxID) []byte { return s.mac("channel key", id.Claim) }

// handle names a lease, or an exec in it, to its tenant: it says itself what it
// names, under a MAC. The claim alone would not do: two brokers may have given away
// one sandbox, and only one of the two leases is bound to it.
type handle struct {
	claim, lease, tenant, exec string
}

// seal encodes the handle.
func (s secret) seal(h handle) string {
	body := strings.Join([]string{h.claim, h.lease, h.tenant, h.exec}, "\x00")
	enc := base64.RawURLEncoding
	return enc.EncodeToString([]byte(body)) + "." + enc.EncodeToString(s.mac("handle", body)[:macSize])
}

// open checks a handle and whose it is. A forged one and one of another tenant
// get the same answer, that of one that never existed.
func (s secret) open(text, tenant string) (handle, error) {
	unknown := wire.Errorf(wire.CodeNotFound, "no such lease or exec")
	if len(text) > maxHandle {
		return handle{}, unknown
	}
	b64, mac64, _ := strings.Cut(text, ".")
	body, err := base64.RawURLEncoding.DecodeString(b64)
	if err != nil {
		return handle{}, unknown
	}
	mac, err := base64.RawURLEncoding.DecodeString(mac64)
	if err != nil || !hmac.Equal(mac, s.mac("handle", string(body))[:macSize]) {
		return handle{}, unknown
	}
	parts := strings.Split(string(body), "\x00")
	if len(parts) != 4 || parts[2] != tenant {
		return handle{}, unknown
	}
	return handle{claim: parts[0], lease: parts[1], tenant: parts[2], exec: parts[3]}, nil
}
