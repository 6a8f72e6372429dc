// Package internet serves what is found on the played internet: in each
// namespace an HTTP server that says who asked, and in one a name server. Tests
// use them to prove what a pod can reach and what it cannot.
package internet

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/sandbox-broker/sandbox-broker/hack/cluster/internal/plan"
)

const (
	// headerWait bounds how long a client may take to say what it wants.
	headerWait = 10 * time.Second
	// dnsWait bounds how long a TCP client of the name server may be silent.
	dnsWait = 10 * time.Second
)

// Serve answers in the network namespace it was started in, until ctx ends.
func Serve(ctx context.Context, i plan.Internet, fam plan.Families) error {
	serving, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	for _, address := range fam.Of(i.Address) {
		if err := serveAddress(serving, cancel, i, address, fam); err != nil {
			return fmt.Errorf("serving %s: %w", i.Name, err)
		}
	}
	<-serving.Done()
	if ctx.Err() != nil {
		return nil // asked to end
	}
	return context.Cause(serving)
}

// serveAddress opens the listeners of one address, and closes them with ctx. A
// server that fails ends all by cancel.
func serveAddress(ctx context.Context, cancel context.CancelCauseFunc, i plan.Internet, address string, fam plan.Families) error {
	var lc net.ListenConfig
	web, err := lc.Listen(ctx, "tcp", net.JoinHostPort(address, strconv.Itoa(plan.InternetHTTPPort)))
	if err != nil {
		return err
	}
	server := &http.Server{Handler: hello(i.Host()), ReadHeaderTimeout: headerWait}
	context.AfterFunc(ctx, func() { _ = server.Close() })
	go func() { cancel(server.Serve(web)) }()
	if !i.DNS {
		return nil
	}
	at := net.JoinHostPort(address, strconv.Itoa(plan.InternetDNSPort))
	packets, err := lc.ListenPacket(ctx, "udp", at)
	if err != nil {
		return err
	}
	stream, err := lc.Listen(ctx, "tcp", at)
	if err != nil {
		return err
	}
	context.AfterFunc(ctx, func() { _ = packets.Close(); _ = stream.Close() })
	zone := newZone(plan.Internets, fam)
	go func() { cancel(servePackets(packets, zone)) }()
	go func() { cancel(serveStream(stream, zone)) }()
	return nil
}

// hello answers every request with the host's name and the caller's address.
func hello(host string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		caller, _, err := net.SplitHostPort(r.RemoteAddr)
		if err != nil {
			caller = r.RemoteAddr
		}
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		fmt.Fprintf(w, "%s saw %s\n", host, caller)
	})
}
