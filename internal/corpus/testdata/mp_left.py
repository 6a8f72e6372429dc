import multiprocessing as mp, time
def f():
    time.sleep(0.05)
    print("child ends")
p = mp.Process(target=f)
p.start()
d = mp.Process(target=time.sleep, args=(60,), daemon=True)
d.start()
print("main ends")
