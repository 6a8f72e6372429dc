// Package brokertest is a broker for tests that does as it is told. It speaks the
// protocol of package wire over a real WebSocket on loopback and runs nothing: a
// script decides what each connection or each stream says, mistakes included.
//
//	server := brokertest.New(t, brokertest.Each(func(s *brokertest.Stream) {
//		s.Respond(wire.Response{Exec: "e1"})
//		s.Stdout("hello\n")
//		s.Exit(wire.Ending{Reason: wire.ReasonExited})
//	}))
//	client, err := sandboxclient.New(server.URL)
//
// With [Programs] a script speaks for programs instead, which outlive the connections
// that a test cuts.
package brokertest
