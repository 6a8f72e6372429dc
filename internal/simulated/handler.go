package simulated

import (
	"encoding/json"
	"errors"
	"net/http"

	"github.com/sandbox-broker/sandbox-broker/internal/channel"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

// maxExecs bounds the execs that a sandbox holds, as the real runner does.
const maxExecs = 64

// languages are those of which the runners say that they have an interpreter, so
// that a broker does for them all that it does for real ones.
var languages = []string{"node", "python", "shell"}

// handler serves the channels of all sandboxes; each request's context says whose
// it is.
func handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc(channel.PathBind, serveBind)
	mux.HandleFunc(channel.PathPrepare, servePrepare)
	mux.HandleFunc(channel.PathExec, serveExec)
	mux.HandleFunc(channel.PathStatus, serveStatus)
	return mux
}

func runnerOf(r *http.Request) *runner { return r.Context().Value(runnerKey{}).(*runner) }

func serveBind(w http.ResponseWriter, r *http.Request) {
	var b channel.Bind
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, wire.MaxControl)).Decode(&b); err != nil {
		refuse(w, wire.Invalid("bind", 0, "not the JSON it must be: %v", err))
		return
	}
	if err := runnerOf(r).bind(b); err != nil {
		refuse(w, err)
		return
	}
	answer(w, struct{}{})
}

// bind gives the sandbox to a lease, once.
func (sb *runner) bind(b channel.Bind) error {
	sb.mu.Lock()
	defer sb.mu.Unlock()
	return sb.bindLocked(b)
}

// bindLocked is bind; mu is held.
func (sb *runner) bindLocked(b channel.Bind) error {
	if b.Lease == "" {
		return wire.Invalid("lease", 0, "a bind names no lease")
	}
	if sb.bound == nil {
		sb.bound = &b
	}
	if *sb.bound != b {
		return &wire.Error{Code: wire.CodeConflict, Reason: channel.ReasonBoundElsewhere, Message: "this sandbox belongs to another lease"}
	}
	return nil
}

// servePrepare takes note of what there is nothing to do for.
func servePrepare(w http.ResponseWriter, r *http.Request) {
	var p channel.Prepare
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, wire.MaxControl)).Decode(&p); err != nil {
		refuse(w, wire.Invalid("prepare", 0, "not the JSON it must be: %v", err))
		return
	}
	answer(w, struct{}{})
}

func serveStatus(w http.ResponseWriter, r *http.Request) {
	sb := runnerOf(r)
	sb.mu.Lock()
	st := channel.Status{Boot: sb.identity.Boot(), Bound: sb.bound != nil, Execs: len(sb.execs), Version: "simulated", Languages: languages}
	sb.mu.Unlock()
	answer(w, st)
}

func serveExec(w http.ResponseWriter, r *http.Request) {
	sb, id := runnerOf(r), r.PathValue("id")
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
	e, started, err := sb.open(id, st, code)
	if err != nil {
		refuse(w, err)
		return
	}
	if printed := e.look().printed; st.Stdout.Acked > printed {
		refuse(w, wire.Invalid("stdout.acked", int64(printed), "stdout at offset %d is not available: 0 to %d are", st.Stdout.Acked, printed))
		return
	}
	out := channel.NewFrameWriter(w, http.NewResponseController(w).Flush)
	if err := out.Queue(wire.JSONFrame(wire.KindResponse, 0, channel.Started{New: started})); err != nil {
		return // the channel broke: the exec goes on
	}
	a := e.attach(out, st.Stdout)
	go a.receive(in) // ends with this request's body
	if err := a.send(r.Context()); err != nil {
		_ = out.Write(wire.JSONFrame(wire.KindError, 0, asWire(err)))
		return
	}
	sb.forget(e)
}

// open finds the exec id, or starts it. started says that it is new.
func (sb *runner) open(id string, st channel.Start, code []byte) (e *execution, started bool, err error) {
	sb.mu.Lock()
	defer sb.mu.Unlock()
	if sb.bound != nil || !st.AttachOnly {
		if err := sb.bindLocked(st.Bind); err != nil {
			return nil, false, err
		}
	}
	if e := sb.execs[id]; e != nil {
		return e, false, nil
	}
	switch {
	case st.AttachOnly:
		return nil, false, wire.Errorf(wire.CodeNotFound, "the sandbox knows no such exec")
	case len(sb.execs) >= maxExecs:
		return nil, false, &wire.Error{Code: wire.CodeExhausted, Field: "exec", Limit: maxExecs, Message: "the lease holds as many execs as it may"}
	case st.Program == nil || st.Program.File != nil || st.Program.Stdin:
		return nil, false, wire.Invalid("program", 0, "a simulated runner moves no files and reads no input")
	}
	p, err := parseProgram(code)
	if err != nil {
		return nil, false, err
	}
	e = newExecution(id, p, st.Timeout)
	sb.execs[id] = e
	return e, true, nil
}

// forget drops an exec whose ending has been confirmed.
func (sb *runner) forget(e *execution) {
	sb.mu.Lock()
	defer sb.mu.Unlock()
	delete(sb.execs, e.id)
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
	err = wire.Unmarshal(f.Kind, f.Payload[:f.Offset], &st)
	return st, f.Payload[f.Offset:], err
}

func answer(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(wire.Marshal(v)) // a broken channel is the broker's to find
}

func refuse(w http.ResponseWriter, err error) {
	e := asWire(err)
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(e.Code.Status())
	_, _ = w.Write(wire.Marshal(e))
}

// asWire makes any error one that can be sent.
func asWire(err error) *wire.Error {
	var e *wire.Error
	if errors.As(err, &e) {
		return e
	}
	return wire.Errorf(wire.CodeInternal, "%v", err)
}
