package runner

import (
	"encoding/json"
	"net/http"

	"github.com/sandbox-broker/sandbox-broker/internal/channel"
	"github.com/sandbox-broker/sandbox-broker/internal/version"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

// handler serves one sandbox's channel.
func (s *supervisor) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc(channel.PathBind, s.serveBind)
	mux.HandleFunc(channel.PathPrepare, s.servePrepare)
	mux.HandleFunc(channel.PathExec, s.serveExec)
	mux.HandleFunc(channel.PathEcho, serveEcho)
	mux.HandleFunc(channel.PathStatus, func(w http.ResponseWriter, _ *http.Request) {
		st := s.status()
		st.Version, st.Languages = version.String(), s.known()
		answer(w, st)
	})
	return mux
}

func (s *supervisor) serveBind(w http.ResponseWriter, r *http.Request) {
	var b channel.Bind
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, wire.MaxControl)).Decode(&b); err != nil {
		refuse(w, wire.Invalid("bind", 0, "not the JSON it must be: %v", err))
		return
	}
	if err := s.bind(b); err != nil {
		refuse(w, err)
		return
	}
	answer(w, struct{}{})
}

func (s *supervisor) servePrepare(w http.ResponseWriter, r *http.Request) {
	var p channel.Prepare
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, wire.MaxControl)).Decode(&p); err != nil {
		refuse(w, wire.Invalid("prepare", 0, "not the JSON it must be: %v", err))
		return
	}
	s.startSpares(p)
	s.awaitSpares(r.Context())
	answer(w, channel.Prepared{Spares: s.status().Spares})
}

// serveEcho sends back what comes, until the request's body ends.
func serveEcho(w http.ResponseWriter, r *http.Request) {
	in, out := channel.NewFrameReader(r.Body, wire.MaxData), channel.NewFrameWriter(w, http.NewResponseController(w).Flush)
	for {
		f, err := in.Read()
		if err != nil {
			return
		}
		if err := out.Write(f); err != nil {
			return
		}
	}
}

// serveExec carries one exec's stream; see channel.Start.
func (s *supervisor) serveExec(w http.ResponseWriter, r *http.Request) {
	id := r.PathValue("id")
	if err := wire.CheckExecID(id); err != nil {
		refuse(w, err)
		return
	}
	in := channel.NewFrameReader(r.Body, wire.MaxControl+wire.MaxCode)
	st, code, err := readStart(in)
	if err != nil {
		refuse(w, err)
		return
	}
	e, started, err := s.open(id, st, code)
	if err != nil {
		refuse(w, err)
		return
	}
	rc := http.NewResponseController(w)
	out := channel.NewFrameWriter(w, rc.Flush)
	a := newAttachment(e, out, st)
	if err := e.attach(a, started); err != nil {
		refuse(w, err)
		return
	}
	defer e.detach(a)
	if err := out.Queue(wire.JSONFrame(wire.KindResponse, 0, e.terms(started))); err != nil {
		return // the channel broke: the exec goes on
	}
	go a.receive(in) // ends with this request's body
	if err := a.send(r.Context()); err != nil {
		_ = out.Write(wire.JSONFrame(wire.KindError, 0, asWire(err)))
		return
	}
	s.forget(e)
}

func readStart(in *channel.FrameReader) (channel.Start, []byte, error) {
	var st channel.Start
	f, err := in.Read()
	if err != nil {
		return st, nil, asWire(err)
	}
	if f.Kind != wire.KindRequest {
		return st, nil, wire.Invalid("frame.kind", 0, "an exec's stream starts with a request, not with a %s frame", f.Kind)
	}
	if err := wire.Unmarshal(f.Kind, f.Payload[:f.Offset], &st); err != nil {
		return st, nil, err
	}
	return st, f.Payload[f.Offset:], nil
}

func answer(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(wire.Marshal(v)) // a broken channel is found by the broker
}

func refuse(w http.ResponseWriter, err error) {
	e := asWire(err)
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(e.Code.Status())
	_, _ = w.Write(wire.Marshal(e))
}
