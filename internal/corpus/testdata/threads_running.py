import threading, time
def work(n):
    time.sleep(0.02 * n)
    print("thread", n, threading.current_thread().name)
for i in (1, 2, 3):
    threading.Thread(target=work, args=(i,)).start()
print("main ends", threading.active_count(), threading.main_thread().name)
