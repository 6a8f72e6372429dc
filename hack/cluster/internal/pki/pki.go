// Package pki makes the cluster's keys and certificates and keeps them in a
// folder. Each is made once and kept for as long as it still fits what is asked
// of it; one that is missing, unreadable, about to expire, of another authority
// or for other names is made anew.
package pki

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"time"
)

const (
	lifetime = 365 * 24 * time.Hour
	// renewBefore is how much life a kept certificate must have left.
	renewBefore = 30 * 24 * time.Hour
	// backdate makes a certificate valid at once on a machine whose clock is a
	// little behind.
	backdate = 5 * time.Minute
)

// Pair is a certificate and its key, in memory and as files.
type Pair struct {
	Cert *x509.Certificate
	Key  *ecdsa.PrivateKey
	// CertFile and KeyFile are PEM.
	CertFile, KeyFile string
}

// Subject is who a certificate is for.
type Subject struct {
	// Name is the common name, Groups the organisations: in Kubernetes the user
	// and its groups.
	Name   string
	Groups []string
	// Hosts are the DNS names and IP addresses that a server answers to; with
	// none the certificate is a client's.
	Hosts []string
}

// Store is a folder of pairs.
type Store struct {
	Dir string
	// Now tells the time; nil means time.Now.
	Now func() time.Time
}

// Authority returns the self-signed authority of that name.
func (s Store) Authority(name string) (Pair, error) {
	if p, err := s.load(name); err == nil && p.Cert.IsCA && s.fresh(p.Cert) {
		return p, nil
	}
	template, err := s.template(Subject{Name: name})
	if err != nil {
		return Pair{}, err
	}
	template.IsCA, template.BasicConstraintsValid = true, true
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature
	return s.issue(name, template, nil)
}

// Issue returns a certificate of that authority for the subject, kept under name.
func (s Store) Issue(authority Pair, name string, subject Subject) (Pair, error) {
	template, err := s.template(subject)
	if err != nil {
		return Pair{}, err
	}
	if p, err := s.load(name); err == nil && s.fits(p.Cert, authority.Cert, template) {
		return p, nil
	}
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	if len(subject.Hosts) > 0 {
		template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	}
	return s.issue(name, template, &authority)
}

func (s Store) now() time.Time {
	if s.Now != nil {
		return s.Now()
	}
	return time.Now()
}

func (s Store) fresh(c *x509.Certificate) bool {
	return s.now().After(c.NotBefore) && s.now().Add(renewBefore).Before(c.NotAfter)
}

func (s Store) fits(have, authority, want *x509.Certificate) bool {
	sameIPs := slices.EqualFunc(have.IPAddresses, want.IPAddresses, net.IP.Equal)
	return s.fresh(have) && have.CheckSignatureFrom(authority) == nil && sameIPs &&
		have.Subject.CommonName == want.Subject.CommonName &&
		slices.Equal(have.Subject.Organization, want.Subject.Organization) &&
		slices.Equal(have.DNSNames, want.DNSNames)
}

func (s Store) template(subject Subject) (*x509.Certificate, error) {
	const serialBits = 127
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), serialBits))
	if err != nil {
		return nil, err
	}
	t := &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: subject.Name, Organization: subject.Groups},
		NotBefore:    s.now().Add(-backdate),
		NotAfter:     s.now().Add(lifetime),
	}
	for _, h := range subject.Hosts {
		if ip := net.ParseIP(h); ip != nil {
			t.IPAddresses = append(t.IPAddresses, ip)
		} else {
			t.DNSNames = append(t.DNSNames, h)
		}
	}
	return t, nil
}

// issue signs the template with the authority, or with its own key, and saves.
func (s Store) issue(name string, template *x509.Certificate, authority *Pair) (Pair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return Pair{}, err
	}
	parent, signer := template, key
	if authority != nil {
		parent, signer = authority.Cert, authority.Key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
	if err != nil {
		return Pair{}, fmt.Errorf("signing the certificate %s: %w", name, err)
	}
	keyDER, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return Pair{}, err
	}
	if err := os.MkdirAll(s.Dir, 0o700); err != nil {
		return Pair{}, err
	}
	p := s.files(name)
	err = errors.Join(
		writePEM(p.KeyFile, "EC PRIVATE KEY", keyDER, 0o600),
		writePEM(p.CertFile, "CERTIFICATE", der, 0o644))
	if err != nil {
		return Pair{}, fmt.Errorf("saving the certificate %s: %w", name, err)
	}
	return s.load(name)
}

func (s Store) files(name string) Pair {
	return Pair{
		CertFile: filepath.Join(s.Dir, name+".crt"),
		KeyFile:  filepath.Join(s.Dir, name+".key"),
	}
}

// load reads a pair and makes sure that its halves belong together: a run that
// was cut off may have written only one of them.
func (s Store) load(name string) (Pair, error) {
	p := s.files(name)
	certDER, err := readPEM(p.CertFile)
	if err != nil {
		return Pair{}, err
	}
	keyDER, err := readPEM(p.KeyFile)
	if err != nil {
		return Pair{}, err
	}
	if p.Cert, err = x509.ParseCertificate(certDER); err != nil {
		return Pair{}, err
	}
	if p.Key, err = x509.ParseECPrivateKey(keyDER); err != nil {
		return Pair{}, err
	}
	if !p.Key.PublicKey.Equal(p.Cert.PublicKey) {
		return Pair{}, fmt.Errorf("%s and %s do not belong together", p.CertFile, p.KeyFile)
	}
	return p, nil
}

func readPEM(path string) ([]byte, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, fmt.Errorf("%s holds no PEM block", path)
	}
	return block.Bytes, nil
}

func writePEM(path, kind string, der []byte, mode os.FileMode) error {
	text := pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
	if err := os.WriteFile(path+".new", text, mode); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}
