package chaos

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

// ranFile is where each program of a sandbox writes its ID when it starts: one that
// is there twice ran twice.
const ranFile = "ran"

// Source is the program's code.
func (p Program) Source() string {
	var s string
	switch p.Language {
	case "python":
		s = python
	case "node":
		s = node
	default:
		s = shell
	}
	signal := strings.TrimPrefix(p.Signal, "SIG")
	return strings.NewReplacer(
		"@RAN", ranFile, "@ID", p.ID, "@ECHO", strconv.FormatBool(p.Echo),
		"@OUTKEY", string(p.stdoutKey()), "@ERRKEY", string(p.stderrKey()),
		"@OUT", strconv.FormatInt(p.Stdout, 10), "@ERR", strconv.FormatInt(p.Stderr, 10),
		"@STEPS", strconv.Itoa(p.Steps), "@PAUSEMS", strconv.FormatInt(p.Pause.Milliseconds(), 10), "@PAUSE", fmt.Sprintf("%.3f", p.Pause.Seconds()),
		"@SIGNALED", strconv.FormatBool(p.Reason == wire.ReasonSignaled), "@SIGNAL", signal,
		"@WAITS", strconv.FormatBool(p.waits()), "@CODE", strconv.Itoa(p.Code),
	).Replace(s)
}

const python = `import os, signal, time
yes = {"true": True, "false": False}
with open("@RAN", "a") as f:
    f.write("@ID\n")
def write(fd, b):
    while b:
        b = b[os.write(fd, b):]
def piece(fd, key, n, step):
    a, z = n * step // @STEPS, n * (step + 1) // @STEPS
    write(fd, "".join("%s:%08d\n" % (key, i) for i in range(a, z)).encode())
if yes["@ECHO"]:
    while b := os.read(0, 65536):
        write(1, b)
else:
    for step in range(@STEPS):
        piece(1, "@OUTKEY", @OUT, step)
        piece(2, "@ERRKEY", @ERR, step)
        time.sleep(@PAUSE)
if yes["@WAITS"]:
    time.sleep(600)
if yes["@SIGNALED"]:
    os.kill(os.getpid(), getattr(signal, "SIG@SIGNAL", signal.SIGKILL))
    time.sleep(600)
os._exit(@CODE)
`

const node = `const fs = require("fs")
fs.appendFileSync("@RAN", "@ID\n")
const sleep = (ms) => Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, ms)
const write = (fd, b) => { for (let n = 0; n < b.length;) n += fs.writeSync(fd, b, n) }
const piece = (fd, key, n, step) => {
  const a = Math.floor(n * step / @STEPS), z = Math.floor(n * (step + 1) / @STEPS)
  const lines = []
  for (let i = a; i < z; i++) lines.push(key + ":" + String(i).padStart(8, "0") + "\n")
  write(fd, Buffer.from(lines.join("")))
}
for (let step = 0; step < @STEPS; step++) {
  piece(1, "@OUTKEY", @OUT, step)
  piece(2, "@ERRKEY", @ERR, step)
  if (@PAUSEMS > 0) sleep(@PAUSEMS)
}
if (@WAITS) sleep(600000)
if (@SIGNALED) {
  process.kill(process.pid, "SIG@SIGNAL")
  sleep(600000)
}
process.exit(@CODE)
`

const shell = `echo @ID >>@RAN
piece() { # descriptor, key, records, step
  a=$(($3 * $4 / @STEPS)) z=$(($3 * ($4 + 1) / @STEPS))
  if [ "$a" -lt "$z" ]; then seq -f "$2:%08.0f" "$a" $((z - 1)) >&"$1"; fi
}
if @ECHO; then
  cat
else
  step=0
  while [ "$step" -lt @STEPS ]; do
    piece 1 @OUTKEY @OUT "$step"
    piece 2 @ERRKEY @ERR "$step"
    sleep @PAUSE
    step=$((step + 1))
  done
fi
if @WAITS; then sleep 600; fi
if @SIGNALED; then
  kill -@SIGNAL $$
  sleep 600
fi
exit @CODE
`
