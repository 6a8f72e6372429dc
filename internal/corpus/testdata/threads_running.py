import threading, sys
def work(n, before):
    before.join()  # the first waits for the end of the main program
    sys.stdout.write(f"thread {n} {threading.current_thread().name}\n")
before = threading.main_thread()
for i in (1, 2, 3):
    t = threading.Thread(target=work, args=(i, before))
    t.start()
    before = t
sys.stdout.write(f"main ends {threading.active_count()} {threading.main_thread().name}\n")
