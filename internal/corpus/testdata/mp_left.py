import multiprocessing as mp, os, time
r, w = os.pipe()
def f():
    os.read(r, 1)
    time.sleep(0.05)
    print("child ends")
p = mp.Process(target=f)
p.start()
d = mp.Process(target=time.sleep, args=(60,), daemon=True)
d.start()
print("main ends", flush=True)
os.write(w, b"x")
