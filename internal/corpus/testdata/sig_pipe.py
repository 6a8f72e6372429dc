import os, subprocess, signal
r, w = os.pipe()
os.close(r)
try:
    os.write(w, b"x")
except BrokenPipeError as e:
    print(e)
print(signal.getsignal(signal.SIGPIPE))
print(subprocess.run("yes | head -n1", shell=True, capture_output=True).stdout)
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
os.write(w, b"x")
