package hostile

import (
	"time"

	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

// Program is code that attacks what runs it. It is for sandboxes that isolate: as a
// plain process it would attack the machine.
type Program struct {
	Name    string
	Source  string        // in Python
	Timeout time.Duration // of the exec
	// Reasons are how it can end, by the sandbox's limits.
	Reasons []wire.Reason
	// Survives says that the lease lives on, and runs the next program.
	Survives bool
	// Prints is what it prints, if that is always the same.
	Prints string
}

// Programs are attacks on the runner, the sandbox's resources and the broker.
func Programs() []Program {
	timeout, exited, lost := wire.ReasonTimeout, wire.ReasonExited, wire.ReasonLost
	// Where limits are hit, which of them is first depends on the sandbox.
	hog := []wire.Reason{timeout, exited, lost, wire.ReasonOOM, wire.ReasonSignaled}
	return []Program{
		{Name: "kills the first process", Timeout: 10 * time.Second, Reasons: []wire.Reason{lost}, Source: `
import os, time
os.kill(1, 9)
time.sleep(60)`},
		// A second later its start has been answered: else it would end as one that never is.
		{Name: "stops the first process", Timeout: 3 * time.Second, Reasons: []wire.Reason{timeout}, Source: `
import os, time, signal
time.sleep(1)
os.kill(1, signal.SIGSTOP)
time.sleep(60)`},
		{Name: "floods both outputs", Timeout: 3 * time.Second, Reasons: []wire.Reason{timeout}, Survives: true, Source: `
import os, threading
def flood(fd):
    while True: os.write(fd, b"f" * 65536)
threading.Thread(target=flood, args=(2,)).start()
flood(1)`},
		{Name: "forges frames on the runner's socket", Timeout: 30 * time.Second, Reasons: []wire.Reason{exited}, Survives: true, Prints: "refused\n", Source: `
import base64, hashlib, hmac, json, os, socket, struct
def dial():
    s = socket.socket(socket.AF_UNIX)
    s.connect("\0sandbox-runner")
    return s
def channel():
    s, (theirs_in, ours_out), (ours_in, theirs_out) = dial(), os.pipe(), os.pipe()
    socket.send_fds(s, [b"\0"], [theirs_in, theirs_out])
    os.close(theirs_in); os.close(theirs_out)
    return s, os.fdopen(ours_in, "rb"), os.fdopen(ours_out, "wb", 0)
def read(f):
    head = f.read(2)
    return json.loads(f.read(struct.unpack(">H", head)[0])) if len(head) == 2 else {}
def proof(key, h, nonce):
    m = hmac.new(key, digestmod=hashlib.sha256)
    for part in (b"sandbox-broker channel v1", b"broker", h["boot"].encode(), base64.b64decode(h["nonce"]), nonce):
        m.update(struct.pack(">I", len(part)) + part)
    return m.digest()
b64 = lambda b: base64.b64encode(b).decode()
held = [dial() for _ in range(3)] # and never a word
for garbage in (b"\0", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\xff\xff" + b"{" * 65535):
    s = dial()
    try: s.sendall(garbage)
    except OSError: pass
    s, r, w = channel()
    try: w.write(garbage)
    except OSError: pass
key, nonce = b"k" * 32, b"n" * 32
for answer in (lambda h: {"version": 1, "key": b64(key), "nonce": b64(nonce), "proof": b64(proof(key, h, nonce))},
               lambda h: {"version": 1, "nonce": b64(nonce), "proof": ""}, lambda h: {"version": 2}):
    s, r, w = channel()
    h = read(r)
    assert h["keyed"], h
    b = json.dumps(answer(h)).encode()
    w.write(struct.pack(">H", len(b)) + b)
    assert not read(r).get("proof"), "a forged handshake was taken"
print("refused")`},
		{Name: "reads and writes the runner's memory", Timeout: 30 * time.Second, Reasons: []wire.Reason{exited}, Survives: true, Prints: "refused\n", Source: `
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
for path, mode in (("/proc/1/mem", "rb"), ("/proc/1/mem", "r+b"), ("/proc/1/environ", "rb")):
    try:
        with open(path, mode) as f:
            if f.read(1): print("opened", path, mode)
    except OSError: pass
try:
    for fd in os.listdir("/proc/1/fd"):
        try: print("opened", os.open("/proc/1/fd/" + fd, os.O_RDWR))
        except OSError: pass
except OSError: pass
if libc.ptrace(16, 1, 0, 0) == 0: print("attached")
try:
    open("/opt/sandbox-runner/sandbox-runner", "r+b")
    print("opened the runner")
except OSError: pass
print("refused")`},
		{Name: "fills every disk", Timeout: 40 * time.Second, Reasons: hog, Source: `
import os
for d in ("/workspace", "/tmp", os.environ["HOME"], "/dev/shm"):
    try:
        with open(d + "/big", "wb") as f:
            for _ in range(800): f.write(b"x" * (1 << 20))
    except OSError as e: print(d, e.strerror)`},
		{Name: "makes a million files", Timeout: 5 * time.Second, Reasons: hog, Source: `
import itertools
for i in itertools.count():
    open("/workspace/f%d" % i, "w").close()
    if i % 1000 == 0: print(i, flush=True)`},
		{Name: "forks until nothing is left", Timeout: 5 * time.Second, Reasons: hog, Source: `
import os, time
while True:
    try: os.fork()
    except OSError: time.sleep(0.01)`},
		{Name: "closes every descriptor", Timeout: 30 * time.Second, Reasons: []wire.Reason{exited}, Survives: true, Source: `
import os, time
os.closerange(0, 1 << 16)
time.sleep(0.5)
os._exit(0)`},
		{Name: "ignores every request to end", Timeout: time.Second, Reasons: []wire.Reason{timeout}, Survives: true, Prints: "deaf\n", Source: `
import signal, time
for s in range(1, 65):
    try: signal.signal(s, signal.SIG_IGN)
    except (OSError, ValueError): pass
print("deaf", flush=True)
while True: time.sleep(1)`},
		{Name: "leaves a daemon behind", Timeout: 30 * time.Second, Reasons: []wire.Reason{exited}, Survives: true, Prints: "gone\n", Source: `
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.environ.clear()
        while True:
            if os.fork() == 0: os.setsid()
            else: time.sleep(600)
            time.sleep(0.05)
    os._exit(0)
os.wait()
print("gone", flush=True)`},
	}
}
