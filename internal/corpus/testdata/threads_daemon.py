import threading, time
def work():
    while True:
        time.sleep(0.001)
started = threading.Event()
def once():
    started.set()
    work()
threading.Thread(target=once, daemon=True).start()
started.wait()
print("main ends")
