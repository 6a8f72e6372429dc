import sys, atexit
atexit.register(print, "at exit")
sys.exit(None)
