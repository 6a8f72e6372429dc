package pki

import (
	"crypto/x509"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var server = Subject{Name: "server", Hosts: []string{"server.test", "192.0.2.1", "2001:db8::1"}}

func TestIssuedCertificateVerifies(t *testing.T) {
	s := Store{Dir: t.TempDir()}
	ca, err := s.Authority("ca")
	require.NoError(t, err)
	pair, err := s.Issue(ca, "server", server)
	require.NoError(t, err)

	roots := x509.NewCertPool()
	roots.AddCert(ca.Cert)
	for _, host := range server.Hosts {
		_, err = pair.Cert.Verify(x509.VerifyOptions{Roots: roots, DNSName: host})
		require.NoError(t, err, host)
	}
	_, err = pair.Cert.Verify(x509.VerifyOptions{Roots: roots, DNSName: "other.test"})
	require.Error(t, err)

	client, err := s.Issue(ca, "client", Subject{Name: "client", Groups: []string{"group"}})
	require.NoError(t, err)
	require.Equal(t, []string{"group"}, client.Cert.Subject.Organization)
	_, err = client.Cert.Verify(x509.VerifyOptions{Roots: roots})
	require.Error(t, err, "a client's certificate serves no server")
}

func TestKeysAreKeptWhileTheyFit(t *testing.T) {
	s := Store{Dir: t.TempDir()}
	ca, err := s.Authority("ca")
	require.NoError(t, err)
	first, err := s.Issue(ca, "server", server)
	require.NoError(t, err)
	issue := func(t *testing.T, s Store, subject Subject) Pair {
		t.Helper()
		ca, err := s.Authority("ca")
		require.NoError(t, err)
		p, err := s.Issue(ca, "server", subject)
		require.NoError(t, err)
		return p
	}
	require.Equal(t, first.Cert.Raw, issue(t, s, server).Cert.Raw)

	renamed := server
	renamed.Hosts = append([]string{"new.test"}, server.Hosts...)
	second := issue(t, s, renamed)
	require.NotEqual(t, first.Cert.Raw, second.Cert.Raw, "other names")

	later := s
	later.Now = func() time.Time { return time.Now().Add(lifetime - renewBefore/2) }
	require.NotEqual(t, second.Cert.Raw, issue(t, later, renamed).Cert.Raw, "about to expire")
}

func TestDamagedKeysAreMadeAnew(t *testing.T) {
	s := Store{Dir: t.TempDir()}
	ca, err := s.Authority("ca")
	require.NoError(t, err)
	other, err := s.Issue(ca, "other", server)
	require.NoError(t, err)
	foreignKey, err := os.ReadFile(other.KeyFile)
	require.NoError(t, err)
	for name, damage := range map[string]func(Pair) error{
		"key missing":        func(p Pair) error { return os.Remove(p.KeyFile) },
		"certificate cut":    func(p Pair) error { return os.Truncate(p.CertFile, 40) },
		"key of another one": func(p Pair) error { return os.WriteFile(p.KeyFile, foreignKey, 0o600) },
	} {
		t.Run(name, func(t *testing.T) {
			before, err := s.Issue(ca, "server", server)
			require.NoError(t, err)
			require.NoError(t, damage(before))
			after, err := s.Issue(ca, "server", server)
			require.NoError(t, err)
			require.NotEqual(t, before.Cert.Raw, after.Cert.Raw)
			require.True(t, after.Key.PublicKey.Equal(after.Cert.PublicKey))
		})
	}
}

func TestCertificateOfAnotherAuthorityIsReplaced(t *testing.T) {
	s := Store{Dir: t.TempDir()}
	first, err := s.Authority("ca")
	require.NoError(t, err)
	old, err := s.Issue(first, "server", server)
	require.NoError(t, err)
	require.NoError(t, os.Remove(first.KeyFile))
	second, err := s.Authority("ca")
	require.NoError(t, err)
	again, err := s.Issue(second, "server", server)
	require.NoError(t, err)
	require.NotEqual(t, old.Cert.Raw, again.Cert.Raw)
	require.NoError(t, again.Cert.CheckSignatureFrom(second.Cert))
}
