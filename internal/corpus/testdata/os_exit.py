import os, atexit, sys
atexit.register(print, "never")
f = open("left", "w")
f.write("never written")
sys.stdout.write("written")
os._exit(13)
