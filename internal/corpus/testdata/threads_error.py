import threading
def f():
    raise ValueError("in a thread")
t = threading.Thread(target=f, name="T")
t.start(); t.join()
threading.excepthook = lambda a: print("hook", a.exc_type, a.thread.name)
t = threading.Thread(target=f, name="U")
t.start(); t.join()
print(threading.get_ident() == threading.main_thread().ident, threading.get_native_id() == __import__("os").getpid())
