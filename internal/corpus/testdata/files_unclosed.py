import atexit, os, sys
f = open("out1", "w"); f.write("text ü")
g = open("out2", "wb", buffering=1 << 20); g.write(b"x" * 70000)
r, w = os.pipe()
pid = os.fork()
if pid == 0:
    os.close(w)
    data = os.read(r, 10)
    while os.read(r, 1):
        pass
    import time
    os._exit(0)
os.close(r)
h = os.fdopen(w, "w"); h.write("to the child")
cyc = [open("out3", "w")]; cyc.append(cyc); cyc[0].write("cycle")
print("buffered", end="")
sys.stderr.write("err")
os.write(1, b"direct\n")
