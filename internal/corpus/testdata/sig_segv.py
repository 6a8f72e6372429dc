import os, signal, faulthandler
print(faulthandler.is_enabled())
os.kill(os.getpid(), signal.SIGSEGV)
