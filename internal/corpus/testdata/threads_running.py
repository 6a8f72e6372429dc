import threading, time, sys
def work(n):
    time.sleep(0.06 * n)
    sys.stdout.write(f"thread {n} {threading.current_thread().name}\n")
for i in (1, 2, 3):
    threading.Thread(target=work, args=(i,)).start()
sys.stdout.write(f"main ends {threading.active_count()} {threading.main_thread().name}\n")
