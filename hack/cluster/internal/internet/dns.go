package internet

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/sandbox-broker/sandbox-broker/hack/cluster/internal/plan"
)

const (
	// maxPacket is the largest question read; real ones are far smaller.
	maxPacket = 4 << 10
	// ttl is how long an answer may be kept, in seconds.
	ttl = 1
	// maxStreams bounds the TCP clients served at once.
	maxStreams = 64
)

// zone knows the addresses of every name there is.
type zone map[string][]netip.Addr

func newZone(internets []plan.Internet, fam plan.Families) zone {
	z := zone{}
	for _, i := range internets {
		for _, a := range fam.Of(i.Address) {
			name := i.Host() + "."
			z[name] = append(z[name], netip.MustParseAddr(a))
		}
	}
	return z
}

// answer replies to one question in wire form.
func (z zone) answer(question []byte) ([]byte, error) {
	var p dnsmessage.Parser
	header, err := p.Start(question)
	if err != nil {
		return nil, fmt.Errorf("reading a question: %w", err)
	}
	q, err := p.Question()
	if err != nil {
		return nil, fmt.Errorf("reading a question: %w", err)
	}
	addresses, known := z[q.Name.String()]
	reply := dnsmessage.Message{
		Header: dnsmessage.Header{
			ID: header.ID, Response: true, Authoritative: true, RecursionDesired: header.RecursionDesired,
		},
		Questions: []dnsmessage.Question{q},
	}
	if !known {
		reply.RCode = dnsmessage.RCodeNameError
	}
	for _, a := range addresses {
		if body := resource(q.Type, a); body != nil {
			reply.Answers = append(reply.Answers, dnsmessage.Resource{
				Header: dnsmessage.ResourceHeader{Name: q.Name, Class: dnsmessage.ClassINET, TTL: ttl},
				Body:   body,
			})
		}
	}
	return reply.Pack()
}

// resource is the address in the form that was asked for, or nil.
func resource(want dnsmessage.Type, a netip.Addr) dnsmessage.ResourceBody {
	switch {
	case want == dnsmessage.TypeA && a.Is4():
		return &dnsmessage.AResource{A: a.As4()}
	case want == dnsmessage.TypeAAAA && a.Is6():
		return &dnsmessage.AAAAResource{AAAA: a.As16()}
	}
	return nil
}

// servePackets answers over UDP until the socket is closed. What it cannot read
// it leaves unanswered.
func servePackets(socket net.PacketConn, z zone) error {
	buf := make([]byte, maxPacket)
	for {
		n, from, err := socket.ReadFrom(buf)
		if err != nil {
			return err
		}
		reply, err := z.answer(buf[:n])
		if err != nil {
			continue
		}
		// A reply that cannot be sent is the asker's loss; it asks again.
		_, _ = socket.WriteTo(reply, from)
	}
}

// serveStream answers over TCP until the listener is closed.
func serveStream(l net.Listener, z zone) error {
	slots := make(chan struct{}, maxStreams)
	for {
		conn, err := l.Accept()
		if err != nil {
			return err
		}
		slots <- struct{}{}
		go func() {
			defer func() { <-slots }()
			defer conn.Close()
			for answerOne(conn, z) == nil {
			}
		}()
	}
}

// answerOne reads and answers one question; over TCP a length goes before each.
func answerOne(conn net.Conn, z zone) error {
	if err := conn.SetDeadline(time.Now().Add(dnsWait)); err != nil {
		return err
	}
	var length uint16
	if err := binary.Read(conn, binary.BigEndian, &length); err != nil {
		return err
	}
	if length > maxPacket {
		return errors.New("question too long")
	}
	question := make([]byte, length)
	if _, err := io.ReadFull(conn, question); err != nil {
		return err
	}
	reply, err := z.answer(question)
	if err != nil {
		return err
	}
	framed := binary.BigEndian.AppendUint16(nil, uint16(len(reply)))
	_, err = conn.Write(append(framed, reply...))
	return err
}
