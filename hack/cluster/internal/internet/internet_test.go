package internet

import (
	"encoding/binary"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/dns/dnsmessage"

	"github.com/sandbox-broker/sandbox-broker/hack/cluster/internal/plan"
)

func question(t *testing.T, name string, kind dnsmessage.Type) []byte {
	t.Helper()
	m := dnsmessage.Message{
		Header:    dnsmessage.Header{ID: 7, RecursionDesired: true},
		Questions: []dnsmessage.Question{{Name: dnsmessage.MustNewName(name), Type: kind, Class: dnsmessage.ClassINET}},
	}
	packed, err := m.Pack()
	require.NoError(t, err)
	return packed
}

func parse(t *testing.T, reply []byte) dnsmessage.Message {
	t.Helper()
	var m dnsmessage.Message
	require.NoError(t, m.Unpack(reply))
	return m
}

func TestAnswer(t *testing.T) {
	z := newZone(plan.Internets, plan.Families{V6: true})
	for name, c := range map[string]struct {
		name    string
		kind    dnsmessage.Type
		code    dnsmessage.RCode
		answers int
	}{
		"IPv4":         {"b.internet.test.", dnsmessage.TypeA, dnsmessage.RCodeSuccess, 1},
		"IPv6":         {"b.internet.test.", dnsmessage.TypeAAAA, dnsmessage.RCodeSuccess, 1},
		"another kind": {"b.internet.test.", dnsmessage.TypeMX, dnsmessage.RCodeSuccess, 0},
		"unknown name": {"c.internet.test.", dnsmessage.TypeA, dnsmessage.RCodeNameError, 0},
	} {
		t.Run(name, func(t *testing.T) {
			reply, err := z.answer(question(t, c.name, c.kind))
			require.NoError(t, err)
			m := parse(t, reply)
			require.Equal(t, uint16(7), m.ID)
			require.Equal(t, c.code, m.RCode)
			require.Len(t, m.Answers, c.answers)
		})
	}
	_, err := z.answer([]byte("no question"))
	require.Error(t, err)
}

func TestStreamAnswersSeveralQuestions(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	served := make(chan error, 1)
	go func() { served <- serveStream(l, newZone(plan.Internets, plan.Families{})) }()
	conn, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	for range 2 {
		q := question(t, "a.internet.test.", dnsmessage.TypeA)
		_, err = conn.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(q))), q...))
		require.NoError(t, err)
		var length uint16
		require.NoError(t, binary.Read(conn, binary.BigEndian, &length))
		reply := make([]byte, length)
		_, err = io.ReadFull(conn, reply)
		require.NoError(t, err)
		body := parse(t, reply).Answers[0].Body.(*dnsmessage.AResource)
		require.Equal(t, plan.Internets[0].Address.V4, net.IP(body.A[:]).String())
	}
	require.NoError(t, conn.Close())
	require.NoError(t, l.Close())
	require.ErrorIs(t, <-served, net.ErrClosed)
}

func TestHello(t *testing.T) {
	server := httptest.NewServer(hello("a.internet.test"))
	defer server.Close()
	response, err := http.Get(server.URL)
	require.NoError(t, err)
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	require.Equal(t, "a.internet.test saw 127.0.0.1\n", string(text))
}
