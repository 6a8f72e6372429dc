import atexit, threading, weakref, sys
class T:
    def __init__(self, n): self.n = n
    def __del__(self): print("del", self.n)
atexit.register(print, "first registered")
atexit.register(lambda: 1 / 0)
@atexit.register
def last():
    print("last registered", threading.main_thread().is_alive())
threading._register_atexit(print, "threading's")
keep = T("global")
weakref.finalize(keep, print, "finalized")
cycle = T("cycle")
cycle.me = cycle
print("end", file=sys.stderr)
