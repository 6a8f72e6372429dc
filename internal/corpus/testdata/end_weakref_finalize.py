# weakref's own finaliser, of which the exit's functions are not told.
import os
import weakref


class Node:
    def __init__(self):
        self.me = self


quiet = weakref.finalize(Node(), os.write, 1, b"finalised\n")
quiet.atexit = False
print("end")
