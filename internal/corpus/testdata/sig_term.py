import os, signal, atexit
atexit.register(print, "never")
print("before")
os.kill(os.getpid(), signal.SIGTERM)
