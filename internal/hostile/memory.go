package hostile

// Programs in Python that take more memory than they may. Each prints "up" first.
const (
	// GrowsSlowly takes 1 MiB every 20 ms: on a busy machine, too, the runner looks before
	// the kernel has to act.
	GrowsSlowly = `
import time
print("up", flush=True)
kept = []
while True:
    kept.append(bytearray(1 << 20))
    time.sleep(0.02)`
	// GrowsAtOnce takes as much as it can as fast as it can.
	GrowsAtOnce = `
print("up", flush=True)
kept = []
while True: kept.append(b"m" * (64 << 20))`
	// GrowsUnseen reads a line, which says that its output has arrived, and stops the
	// runner, so that only the kernel is left to look.
	GrowsUnseen = `
import os, signal
print("up", flush=True)
input()
os.kill(1, signal.SIGSTOP)
kept = []
while True: kept.append(b"m" * (64 << 20))`
)
