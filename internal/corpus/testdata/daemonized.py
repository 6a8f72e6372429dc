import os, time
# Left behind in a session of its own, without an exec: it ends with the run.
r, w = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.write(w, b"x")
        time.sleep(60)
    os._exit(0)
os.wait()
os.read(r, 1)
print("left")
