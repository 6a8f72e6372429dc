from concurrent.futures import ThreadPoolExecutor, ProcessPoolExecutor
import threading, time
ex = ThreadPoolExecutor(2)
fs = [ex.submit(lambda i=i: (time.sleep(0.01), i)[1]) for i in range(5)]
print([f.result() for f in fs])
ended = threading.Event()
ex.submit(lambda: (ended.wait(), print("still runs")))
def square(x): return x * x
with ProcessPoolExecutor(2) as p:
    print(list(p.map(square, range(5))))
ended.set()
